"""gRPC channels and the channel options that every hop shares.

Keepalive: a client pings after 6 s without traffic and gives up 24 s later, so a half-open peer is noticed within
30 s while a process that is merely stopped for 20 s keeps its connections. Servers take pings as often as every
5 s, with or without calls in flight, and never punish them.
"""

import ipaddress
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio

from services.common.address import is_loopback, split_address
from services.common.config import ClientTlsConfig
from services.common.errors import ConfigError

DEFAULT_MAX_MESSAGE_BYTES = 16 * 2**20
KEEPALIVE_TIME_MS = 6_000
KEEPALIVE_TIMEOUT_MS = 24_000
MIN_PING_INTERVAL_MS = 5_000

RECEIVE_HEADROOM = 4
"""gRPC itself cuts off messages over this many times the limit; those in between are refused by name."""

ChannelOptions = list[tuple[str, str | int]]


def channel_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES, *, keepalive: bool = True) -> ChannelOptions:
    """Options of a client channel."""
    options: ChannelOptions = [
        ("grpc.max_send_message_length", max_message_bytes * RECEIVE_HEADROOM),
        ("grpc.max_receive_message_length", max_message_bytes),
        # The default, pick_first, pins all calls to one of several addresses.
        ("grpc.lb_policy_name", "round_robin"),
        # A proxy named in the environment must not come between the parts of one system.
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
        # A restarted peer is found again within two seconds; one that accepts but never answers costs five.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    ]
    return options + _keepalive_options() if keepalive else options


def server_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> ChannelOptions:
    """Options of a server."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        # Messages between this and the limit reach the server's own check, which names the limit.
        ("grpc.max_receive_message_length", max_message_bytes * RECEIVE_HEADROOM),
        # Two processes must never share a port by accident: a port in use fails the bind.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", 0),
        *_keepalive_options(),
    ]


def _keepalive_options() -> ChannelOptions:
    return [
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # What really bounds the wait for an answer to a ping; a minute by default, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def aio_channel(
    address: str,
    tls: ClientTlsConfig | None = None,
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    keepalive: bool = True,
    allow_plaintext: bool = False,
) -> grpc.aio.Channel:
    """An asyncio channel to ``host:port``, or to several as ``host:port,host:port`` (calls go round).

    Connects lazily. Raises ``ConfigError`` when a certificate is unreadable, or when the address is not loopback
    and neither ``tls`` nor ``allow_plaintext`` is given.
    """
    target, options = _target(address), channel_options(max_message_bytes, keepalive=keepalive)
    if tls is None:
        _check_plaintext(address, allow_plaintext)
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, _credentials(tls), options=options + _name_override(tls))


def sync_channel(
    address: str,
    tls: ClientTlsConfig | None = None,
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    keepalive: bool = True,
    allow_plaintext: bool = False,
) -> grpc.Channel:
    """``aio_channel`` for threads."""
    target, options = _target(address), channel_options(max_message_bytes, keepalive=keepalive)
    if tls is None:
        _check_plaintext(address, allow_plaintext)
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, _credentials(tls), options=options + _name_override(tls))


def _addresses(address: str) -> Sequence[str]:
    return [part.strip() for part in address.split(",")]


def _target(address: str) -> str:
    try:
        hosts = [split_address(part)[0] for part in _addresses(address)]
    except ValueError as error:
        raise ConfigError(f"gRPC address: {error}") from None
    if len(hosts) == 1:
        return address
    versions = {_ip_version(host) for host in hosts}
    if versions not in ({4}, {6}):
        raise ConfigError(
            f"gRPC address: {address}: several addresses must be IP addresses of one version; "
            "for several behind one name, give the name"
        )
    return f"ipv{versions.pop()}:{','.join(_addresses(address))}"


def _ip_version(host: str) -> int | None:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None


def _check_plaintext(address: str, allow_plaintext: bool) -> None:
    exposed = [part for part in _addresses(address) if not is_loopback(split_address(part)[0])]
    if exposed and not allow_plaintext:
        raise ConfigError(
            f"tls: {exposed[0]} is not loopback, and plain text would be readable on the way; "
            "configure tls, or set allow_plaintext: true"
        )


def _name_override(tls: ClientTlsConfig) -> ChannelOptions:
    return [("grpc.ssl_target_name_override", tls.server_name_override)] if tls.server_name_override else []


def _credentials(tls: ClientTlsConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=read_pem(tls.ca_file, "tls.ca_file"),
        private_key=read_pem(tls.key_file, "tls.key_file") if tls.key_file else None,
        certificate_chain=read_pem(tls.cert_file, "tls.cert_file") if tls.cert_file else None,
    )


def read_pem(path: Path, field: str) -> bytes:
    """A PEM file's bytes. Raises ``ConfigError`` naming the field when it is unreadable or not PEM."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{field}: cannot read {path}: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise ConfigError(f"{field}: {path} is not a PEM file")
    return content

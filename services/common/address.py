"""Network addresses as text: ``host:port``, IPv6 hosts in brackets."""

import ipaddress


def split_address(address: str) -> tuple[str, int]:
    """``"[::1]:80"`` to ``("::1", 80)``. Raises ``ValueError`` when the host or the port (0 to 65535) is missing."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not host:port with a port of 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise ValueError(f"{address!r}: write an IPv6 host in brackets, as in [::1]:50051")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of ``split_address``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host. A name other than ``localhost`` counts as reachable by others."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

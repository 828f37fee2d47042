"""Finds taken ports before anything starts, and names the line that asks for them."""

from services.cli.local_config import LocalConfig
from services.cli.ports import who_listens
from services.common.address import split_address
from services.common.config_yaml import Location, YamlDocument
from services.common.errors import ConfigError


def check_ports(config: LocalConfig, document: YamlDocument) -> None:
    """Raises ``ConfigError`` with one line for each fixed port that cannot be had; ``document`` is the file."""
    problems = []
    for location, address in fixed_addresses(config):
        where = f"{document.where(location)}: {'.'.join(str(part) for part in location)}"
        try:
            owner = who_listens(address)
        except OSError as error:
            problems.append(f"{where}: {address} cannot be listened on: {error.strerror}")
            continue
        if owner is not None:
            problems.append(f"{where}: {address} is taken by {owner}; stop it, or choose another port (0: a free one)")
    if problems:
        raise ConfigError("\n".join(problems))


def fixed_addresses(config: LocalConfig) -> list[tuple[Location, str]]:
    """Every address with a port other than 0, with its place in the file."""
    found: list[tuple[Location, str | None]] = [
        (("router", "server", "listen"), config.router.server.listen),
        (("router", "server", "metrics_listen"), config.router.server.metrics_listen),
        (("router", "http_listen"), config.router.http_listen),
    ]
    for index, replica in enumerate(config.replicas):
        found += [
            (("replicas", index, "server", "listen"), replica.server.listen),
            (("replicas", index, "server", "metrics_listen"), replica.server.metrics_listen),
            (("replicas", index, "engine_metrics_listen"), replica.engine_metrics_listen),
        ]
    if config.redis.start and not config.ledger.enabled:
        found.append((("redis", "listen"), config.redis.listen))
    return [(location, address) for location, address in found if address and split_address(address)[1] != 0]

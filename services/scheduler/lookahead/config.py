"""How a replica admits waiting requests to its batch."""

from typing import Literal

from pydantic import Field, PositiveFloat

from services.common.config import Address, ConfigModel


class PredictorLink(ConfigModel):
    """The sidecar that predicts how many tokens running answers still have."""

    address: Address
    """host:port. The stages call it, with their ``peer_tls``."""
    layer: int = Field(ge=1)
    """Layers of the model before the states that it reads, as its ``config.json`` says."""


class AdmissionConfig(ConfigModel):
    """When a waiting request starts. Whatever the policy, the order of arrival within a priority is kept."""

    policy: Literal["aggressive", "reserve-full", "lookahead"] = "aggressive"
    """aggressive: as soon as its prompt fits, as vLLM does; running requests are preempted when the pool is full.
    reserve-full: when the pool could hold it and all that run at their longest; nothing is ever preempted.
    lookahead: when the forecast of the pool leaves room for it, or waiting would cost more than a preemption."""
    margin: float = Field(default=0.9, gt=0.0, le=1.0)
    """lookahead: the share of the KV pool that forecasts may fill."""
    max_delay_s: float = Field(default=10.0, ge=0.0)
    """lookahead: a request is held back no longer than this."""
    fair_share: bool = False
    """Whether tenants share the replica by weight: of the requests that wait, those of the tenant that has had the
    least, for its weight, come first. Whatever the policy. Within a tenant the order of arrival is kept."""
    tenant_weights: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Shares of tenants beside one another; 1 for those not named."""
    make_way: bool = True
    """With ``engine_args.scheduling_policy: priority``, where all places are taken: whether an urgent request takes the
    place of the least urgent one that runs, which goes on later. vLLM alone lets it wait for as long as that takes."""
    expected_answer_tokens: int = Field(default=256, ge=1)
    """Tokens of a usual answer, until answers have shown it."""

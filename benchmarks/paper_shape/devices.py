"""Step times of a large model on GPUs that are not here, from data sheets and named assumptions (a roofline).

Published: the model's shape, memory and its bandwidth, bf16 operations and link bandwidth of a GPU (the vendor's data
sheets; dense operations, links in one direction). Assumed: everything in ``Assumptions``.
"""

from dataclasses import dataclass

BF16_BYTES = 2


@dataclass(frozen=True)
class Gpu:
    """One data sheet."""

    name: str
    memory_gb: float
    memory_gb_per_s: float
    tera_operations_per_s: float
    link_gb_per_s: float
    """To the other GPUs of its node, one direction."""
    is_nvlink: bool


A40 = Gpu("a40", 48, 696, 149.7, 31.5, is_nvlink=False)
L40S = Gpu("l40s", 48, 864, 362, 31.5, is_nvlink=False)
A100_SXM = Gpu("a100_sxm", 80, 2039, 312, 300, is_nvlink=True)


@dataclass(frozen=True)
class ModelShape:
    """A decoder with grouped-query attention and a gated MLP; no tied head."""

    name: str
    layers: int
    hidden: int
    kv_width: int
    """Width of all key heads together."""
    mlp: int
    vocabulary: int

    @property
    def attention_parameters(self) -> int:
        """Of one layer: q and o, k and v."""
        return 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_width

    @property
    def head_parameters(self) -> int:
        """Of the LM head, and of the input embedding."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        """That a step reads: all but the input embedding."""
        return self.layers * (self.attention_parameters + 3 * self.hidden * self.mlp) + self.head_parameters

    @property
    def adapter_parameters(self) -> int:
        """That drafting reads: a linear layer, an attention layer, the LM head."""
        return self.hidden * self.hidden + self.attention_parameters + self.head_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Of one layer."""
        return 2 * self.kv_width * BF16_BYTES


LLAMA_70B = ModelShape("Llama-3.3-70B", 80, 8192, 1024, 28672, 128256)


@dataclass(frozen=True)
class Assumptions:
    """What no publication says. Each report varies them and shows how far its figures move."""

    context: int
    """Tokens of each sequence."""
    bandwidth_share: float
    """Of a data sheet's bandwidths that is reached."""
    compute_share: float
    """Of a data sheet's operations that is reached."""
    nvlink_step_us: float
    """Latency of one of the 2(n-1) steps of an all-reduce over NVLink."""
    pcie_step_us: float
    """The same over PCIe."""
    layer_us: float = 20.0
    """Launching a layer's kernels, and its small operations."""
    network_gb_per_s: float = 12.5
    """Between nodes: 100 Gbit/s."""
    memory_share: float = 0.9
    """Of a GPU's memory, for weights and KV cache."""


@dataclass(frozen=True)
class Cluster:
    """GPUs that run one model."""

    gpu: Gpu
    devices: int
    model: ModelShape
    assumptions: Assumptions

    def step_ms(self, rows: float, tp: int) -> float:
        """One token for each of ``rows`` sequences through all layers and the head, on ``tp`` GPUs at a time."""
        model = self.model
        return self._operators_ms(model.parameters, model.layers, 2 * model.layers, rows, tp)

    def draft_ms(self, rows: float, tp: int) -> float:
        """One draft for each row: the adapter's linear and attention layer, and the head."""
        return self._operators_ms(self.model.adapter_parameters, 1, 2, rows, tp)

    def hop_ms(self, rows: float) -> float:
        """The rows' activations to another node."""
        gigabytes = rows * self.model.hidden * BF16_BYTES / 1e9
        return 1e3 * gigabytes / (self.assumptions.network_gb_per_s * self.assumptions.bandwidth_share)

    def kv_sequences(self, *, drafts: bool) -> int:
        """Sequences whose KV fits beside the weights."""
        model = self.model
        layers = model.layers + drafts
        # With drafts the input embedding moves to the host, in exchange for the second head.
        parameters = model.parameters + (model.adapter_parameters if drafts else model.head_parameters)
        memory = self.assumptions.memory_share * self.gpu.memory_gb * 1e9 * self.devices
        each = self.assumptions.context * model.kv_bytes_per_token * layers
        return int((memory - parameters * BF16_BYTES) / each)

    def _operators_ms(self, parameters: int, layers: int, all_reduces: int, rows: float, tp: int) -> float:
        assumed = self.assumptions
        bandwidth = tp * self.gpu.memory_gb_per_s * 1e9 * assumed.bandwidth_share
        operations = tp * self.gpu.tera_operations_per_s * 1e12 * assumed.compute_share
        weights_s = max(parameters * BF16_BYTES / bandwidth, 2 * parameters * rows / operations)
        kv_s = rows * assumed.context * self.model.kv_bytes_per_token * layers / bandwidth
        fixed_s = layers * assumed.layer_us * 1e-6
        return 1e3 * (weights_s + kv_s + fixed_s + all_reduces * self._all_reduce_s(rows, tp))

    def _all_reduce_s(self, rows: float, tp: int) -> float:
        """A ring: 2(n-1) steps, in which each GPU sends 2(n-1)/n of the data."""
        assumed = self.assumptions
        step_us = assumed.nvlink_step_us if self.gpu.is_nvlink else assumed.pcie_step_us
        sent = 2 * (tp - 1) / tp * rows * self.model.hidden * BF16_BYTES
        return 2 * (tp - 1) * step_us * 1e-6 + sent / (self.gpu.link_gb_per_s * 1e9 * assumed.bandwidth_share)

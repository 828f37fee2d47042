"""``config.json`` of a draft adapter: for which target it was trained, and how it is built."""

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from services.common.errors import ConfigError
from services.common.even_shares import even_shares

FORMAT_VERSION: Final = 1
CONFIG_NAME = "config.json"


class DraftAdapterConfig(BaseModel):
    """What must be known, beside the weights, to draft with an adapter.

    The dimensions are the target's: the adapter's attention layer has its heads, so that its keys and values fit the
    target's KV blocks, and its drafts come out of the target's own final norm and LM head.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    format_version: Literal[1] = FORMAT_VERSION
    """Of this file and of the tensors beside it."""
    target: str
    """Name of the target model; for people."""
    target_layers: PositiveInt
    """Decoder layers of the target."""
    exit_layer: PositiveInt
    """Layers before the exit: the adapter reads the residual stream after so many layers."""
    hidden_size: PositiveInt
    """Of the target's residual stream."""
    num_attention_heads: PositiveInt
    """Of the target."""
    num_key_value_heads: PositiveInt
    """Of the target."""
    head_dim: PositiveInt
    """Of the target."""
    vocab_size: PositiveInt
    """Of the target."""
    rope_parameters: dict[str, Any]
    """The target's rotary embedding, as in its own configuration."""
    max_position_embeddings: PositiveInt
    """Of the target."""
    rms_norm_eps: PositiveFloat
    """Of the target's and the adapter's norms."""
    input_residual: bool
    """Whether the exit's residual stream is added to the projected one: ``x = input_proj(norm(h)) + h``."""
    draft_vocab_size: PositiveInt = Field(description="Tokens that can be drafted; rows of ``d2t``.")
    lookup_agreement: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = ()
    """How often the token behind a match of 1, 2, … tokens in the request's own text was the target's next one, in its
    greedy answers. Where that is more than the adapter's confidence, that token is drafted; empty: never."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.exit_layer >= self.target_layers:
            raise ValueError(f"exit_layer must be below target_layers ({self.target_layers})")
        if self.draft_vocab_size > self.vocab_size:
            raise ValueError(f"draft_vocab_size must be at most vocab_size ({self.vocab_size})")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads must be a multiple of num_key_value_heads ({self.num_key_value_heads})"
            )
        return self

    @classmethod
    def for_target(cls, target: str, hf_config: Any, **adapter: Any) -> Self:
        """A configuration with the dimensions of a target.

        Args:
            target: its name.
            hf_config: its Hugging Face configuration, of a Llama- or Qwen-type model.
            adapter: the fields that are the adapter's own: ``exit_layer``, ``input_residual``, ``draft_vocab_size``,
                ``lookup_agreement``.
        """
        return cls(target=target, **_dimensions(hf_config), **adapter)

    def check_target(self, hf_config: Any) -> None:
        """Refuses a target with other dimensions than the one that the adapter was trained for.

        Raises:
            ConfigError: names the first field that differs.
        """
        for name, theirs in _dimensions(hf_config).items():
            if (mine := getattr(self, name)) != theirs:
                raise ConfigError(
                    f"the draft adapter's {name} is {mine}, the model's {theirs}: it was trained for another model "
                    f"({self.target}); train one for this model with `forerun train adapter`"
                )

    def layer_partition(self, stages: int) -> list[int]:
        """Layers of each of ``stages`` pipeline stages: the first one's end at the exit, the others share the rest.

        Where the rest is not divisible, stages before the last take one more: that one carries the LM head.

        Raises:
            ConfigError: there are more stages than layers for them.
        """
        rest, others = self.target_layers - self.exit_layer, stages - 1
        if rest < others:
            raise ConfigError(
                f"the draft adapter's exit_layer {self.exit_layer} leaves {rest} of {self.target_layers} layers for "
                f"{others} stages; use fewer stages or an adapter with an earlier exit"
            )
        return [self.exit_layer, *even_shares(rest, others)]

    def write(self, folder: Path) -> None:
        """Stores it in ``folder``."""
        (folder / CONFIG_NAME).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The configuration in ``folder``.

        Raises:
            ConfigError: missing, not JSON, of another format version, or a field is wrong; names file, field and fix.
        """
        path = folder / CONFIG_NAME
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a draft adapter's folder") from error
        except ValueError as error:
            raise ConfigError(f"{path}: not JSON ({error}); fetch or train the adapter again") from error
        found = fields.get("format_version") if isinstance(fields, dict) else None
        if found != FORMAT_VERSION:
            raise ConfigError(
                f"{path}: format_version: {found!r} is not {FORMAT_VERSION}; train the adapter again with this version"
            )
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"])) or "the file"
            raise ConfigError(
                f"{path}: {field}: {problem['msg']}; restore the file that was trained with the weights beside it"
            ) from error


def _dimensions(hf_config: Any) -> dict[str, Any]:
    """The fields that are the target's own."""
    head_dim = getattr(hf_config, "head_dim", None)
    return {
        "target_layers": hf_config.num_hidden_layers,
        "hidden_size": hf_config.hidden_size,
        "num_attention_heads": hf_config.num_attention_heads,
        "num_key_value_heads": hf_config.num_key_value_heads,
        "head_dim": head_dim or hf_config.hidden_size // hf_config.num_attention_heads,
        "vocab_size": hf_config.vocab_size,
        "rope_parameters": dict(hf_config.rope_parameters),
        "max_position_embeddings": hf_config.max_position_embeddings,
        "rms_norm_eps": hf_config.rms_norm_eps,
    }

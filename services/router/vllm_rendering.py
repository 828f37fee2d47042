"""vLLM's renderer over a model's configuration, without weights: tokenizer, chat template, input checks.

Long prompts do not block the event loop: vLLM tokenizes in the renderer's own threads.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jinja2 import TemplateError
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import resolve_default_chat_template_kwargs
from vllm.exceptions import VLLMClientError
from vllm.renderers import BaseRenderer, renderer_from_config
from vllm.renderers.chat_utils import load_chat_template
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.renderers.params import ChatParams
from vllm.v1.engine.input_processor import InputProcessor

from services.common.errors import RequestEndedError, invalid
from services.router.request import ChatPrompt, TextPrompt

_RESERVED = frozenset({"chat_template", "tokenize", "return_dict", "conversation", "messages"})
"""Template arguments that would replace the template or its output."""

_REFUSALS: Final = (VLLMClientError, TemplateError, ValueError, TypeError, OverflowError)
"""What rendering raises for prompts at fault; the same set that vLLM's HTTP handlers answer with 400."""


class VllmRenderer:
    """A ``PromptRenderer``; also holds what vLLM's HTTP app needs of the model."""

    def __init__(self, args: Namespace) -> None:
        """Loads configuration and tokenizer; blocks for seconds. Raises what vLLM raises when files are missing."""
        self.vllm_config = _load_config(args)
        self.renderer: BaseRenderer = renderer_from_config(self.vllm_config)
        self.input_processor = InputProcessor(self.vllm_config, self.renderer)
        self._chat_template = load_chat_template(args.chat_template)
        self._content_format = args.chat_template_content_format
        self._template_defaults = resolve_default_chat_template_kwargs(args)

    async def tokenize(self, prompt: TextPrompt) -> tuple[int, ...]:
        """See ``PromptRenderer``."""
        try:
            parsed = parse_model_prompt(self.vllm_config.model_config, prompt.text)
            inputs = await self.renderer.render_cmpl_async([parsed])
        except _REFUSALS as error:
            raise _refusal("text", error) from None
        return _token_ids(inputs)

    async def render_chat(self, prompt: ChatPrompt) -> tuple[int, ...]:
        """See ``PromptRenderer``."""
        if reserved := sorted(_RESERVED & prompt.template_arguments.keys()):
            raise invalid("chat.template_arguments_json", f"{', '.join(reserved)} cannot be set by a request")
        messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
        arguments = {"add_generation_prompt": True, **self._template_defaults, **prompt.template_arguments}
        params = ChatParams(self._chat_template, self._content_format, {**arguments, "tokenize": False})
        try:
            _, inputs = await self.renderer.render_chat_async([messages], params)
        except _REFUSALS as error:
            raise _refusal("chat", error) from None
        return _token_ids(inputs)


def _load_config(args: Namespace) -> VllmConfig:
    """As vLLM's own render server does: no device is looked for, no cache is sized, no weights are read."""
    engine_args = AsyncEngineArgs.from_cli_args(args)
    model_config = engine_args.create_model_config()
    # Quantization is checked against the device's kernels, and this process runs none.
    model_config.quantization = None
    return VllmConfig(
        model_config=model_config,
        logging_config=engine_args.create_logging_config(),
        structured_outputs_config=engine_args.create_structured_outputs_config(),
    )


def _token_ids(inputs: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    return tuple(inputs[0]["prompt_token_ids"])


def _refusal(field: str, error: Exception) -> RequestEndedError:
    return invalid(field, str(error) or type(error).__name__)

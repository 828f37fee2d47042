"""Everything of the router that needs vLLM, behind one import: it takes seconds, and routers of tokens never do it."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp

from services.common.errors import ConfigError
from services.common.types import ReplicaInfo
from services.router.http_parts import HttpParts
from services.router.vllm_app import build_http_app
from services.router.vllm_args import parse_http_args
from services.router.vllm_engine_client import RouterEngineClient
from services.router.vllm_rendering import VllmRenderer

__all__ = ["VllmEdge", "load_vllm_edge"]


class VllmEdge:
    """One model's tokenizer, and the HTTP app over it."""

    def __init__(self, args: Namespace, renderer: VllmRenderer) -> None:
        self.renderer = renderer
        self._args = args

    async def http_app(self, parts: HttpParts) -> tuple[ASGIApp, Any]:
        """The app to serve, and vLLM's state in it. Raises ``ConfigError``."""
        model = self._args.served_model_name[0]
        client = RouterEngineClient(parts.call, parts.pool, parts.admission, self.renderer, model)
        app, inner = await build_http_app(self._args, client, parts)
        return app, inner.state


def load_vllm_edge(model: str, info: ReplicaInfo, http_args: Mapping[str, Any]) -> VllmEdge:
    """Loads tokenizer and configuration; blocks for seconds. Raises ``ConfigError``."""
    args = parse_http_args(http_args, model, info)
    try:
        return VllmEdge(args, VllmRenderer(args))
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"model: cannot load the tokenizer of {model} ({error}); "
            "set model to its files, or tokenizer: false for token prompts only"
        ) from error

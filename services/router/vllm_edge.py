"""Everything of the router that needs vLLM, behind one import: it takes seconds, and routers of tokens never do it."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from prometheus_client import REGISTRY, CollectorRegistry
from starlette.types import ASGIApp

from services.common.errors import ConfigError
from services.common.types import ReplicaInfo
from services.router.admission import Admission
from services.router.api_keys import ApiKeys
from services.router.generate import GenerateCall
from services.router.replica_pool import ReplicaPool
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

    async def http_app(
        self,
        call: GenerateCall,
        pool: ReplicaPool,
        admission: Admission,
        keys: ApiKeys,
        max_body_bytes: int,
        list_replicas: Callable[[], Message],
        registries: Sequence[CollectorRegistry],
    ) -> tuple[ASGIApp, Any]:
        """The app to serve, and vLLM's state in it. Raises ``ConfigError``."""
        client = RouterEngineClient(call, pool, admission, self.renderer, self._args.served_model_name[0])
        app, inner = await build_http_app(
            self._args, client, keys, max_body_bytes, list_replicas, [*registries, REGISTRY]
        )
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

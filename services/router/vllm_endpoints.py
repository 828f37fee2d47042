"""The router's own routes in vLLM's HTTP app, by its endpoint plugin interface."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.datastructures import State

PLUGIN_NAME = "forerun"
"""Of the entry point, and what ``VLLM_PLUGINS`` must name."""


class ForerunEndpoints:
    """An ``EndpointPlugin``. Its routes read ``app.state.forerun``, which the router sets before the app serves."""

    name = PLUGIN_NAME
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """Adds the routes; /metrics takes the place of vLLM's, which knows nothing of the router's registry."""
        app.get("/forerun/replicas")(list_replicas)
        app.get("/metrics")(metrics)
        # vLLM's own handler turns "not available" into 500.
        app.post("/scale_elastic_ep")(not_available)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Nothing to prepare."""


class ForerunState:
    """What the routes read."""

    def __init__(self, list_replicas: Callable[[], Message], registries: Sequence[CollectorRegistry]) -> None:
        self.list_replicas = list_replicas
        self.registries = registries


async def list_replicas(request: Request) -> dict[str, Any]:
    """``InferenceService.ListReplicas`` as JSON, with the proto's field names; fields at zero included."""
    state: ForerunState = request.app.state.forerun
    message = state.list_replicas()
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


async def metrics(request: Request) -> Response:
    """Prometheus exposition of the router's metrics and of vLLM's HTTP app."""
    state: ForerunState = request.app.state.forerun
    return Response(generate_latest(_joined(state.registries)), media_type=CONTENT_TYPE_LATEST)


async def not_available() -> None:
    """501."""
    raise NotImplementedError("not available through a router")


def _joined(registries: Sequence[CollectorRegistry]) -> CollectorRegistry:
    """All registries as one. Of a name that several have, such as the process's memory, the first one's counts:
    scrapers refuse a page that has a sample twice."""
    families: dict[str, Metric] = {}
    for registry in registries:
        for family in registry.collect():
            families.setdefault(family.name, family)
    joined = CollectorRegistry(auto_describe=False)
    joined.register(_Families(families.values()))
    return joined


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families

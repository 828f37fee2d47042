"""vLLM's own OpenAI-compatible FastAPI app, over the router's domain call."""

import json
import os
from argparse import Namespace
from functools import partial
from importlib.metadata import entry_points

from fastapi import FastAPI
from prometheus_client import REGISTRY
from starlette.types import ASGIApp
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

from services.common.errors import ConfigError, RequestEndedError
from services.router.http_edge import HttpEdge
from services.router.http_parts import HttpParts
from services.router.request import Edge
from services.router.vllm_endpoints import PLUGIN_NAME, ForerunEndpoints, ForerunState
from services.router.vllm_engine_client import SUPPORTED_TASKS, RouterEngineClient
from services.router.vllm_errors import http_error


async def build_http_app(args: Namespace, client: RouterEngineClient, parts: HttpParts) -> tuple[ASGIApp, FastAPI]:
    """The app as served, and vLLM's app inside it. Raises ``ConfigError`` when the arguments do not suit the model."""
    _allow_own_plugin()
    app = build_app(args, SUPPORTED_TASKS, client.model_config)
    if not any(isinstance(plugin, ForerunEndpoints) for plugin in app.state.endpoint_plugins):
        raise ConfigError(
            "vLLM did not load the endpoint plugin 'forerun'; install the forerun package, "
            f"and let VLLM_PLUGINS (now {os.environ.get('VLLM_PLUGINS')!r}) name it"
        )
    try:
        await init_app_state(client, app.state, args, SUPPORTED_TASKS)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ConfigError(f"http_args: {error}") from None
    app.state.forerun = ForerunState(parts.list_replicas, [parts.metrics.registry, REGISTRY])
    return HttpEdge(app, parts.keys, parts.max_body_bytes, error_body, partial(parts.metrics.refused, Edge.HTTP)), app


def error_body(error: RequestEndedError) -> tuple[int, bytes]:
    """Status and body as vLLM answers requests without streaming."""
    response = create_error_response(http_error(error))
    return response.error.code, json.dumps(response.model_dump()).encode()


def _allow_own_plugin() -> None:
    """vLLM loads endpoint plugins only by name, and a list of names shuts out all other plugins that are not on it."""
    listed = os.environ.get("VLLM_PLUGINS")
    if listed is not None:
        names = [*filter(None, listed.split(",")), PLUGIN_NAME]
    else:
        found = entry_points()
        groups = [group for group in found.groups if group.startswith("vllm.") and group != "vllm.endpoint_plugins"]
        names = [PLUGIN_NAME, *(point.name for group in groups for point in found.select(group=group))]
    os.environ["VLLM_PLUGINS"] = ",".join(dict.fromkeys(names))

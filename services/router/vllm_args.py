"""``http_args`` as vLLM's own API-server arguments: its parser decides names, types and defaults."""

import json
from argparse import Action, Namespace
from collections.abc import Mapping
from typing import Any, NoReturn

from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import validate_api_server_args
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from services.common.errors import ConfigError
from services.common.types import ReplicaInfo

OWNED = {
    "host": "http_listen",
    "port": "http_listen",
    "uds": "http_listen",
    "model": "model",
    "model_tag": "model",
    "served_model_name": "the replicas' served_model_names",
    "max_model_len": "the replicas' engine_args",
    "api_key": "api_keys or api_key_file",
    "ssl_keyfile": "http_tls",
    "ssl_certfile": "http_tls",
    "ssl_ca_certs": "http_tls",
    "ssl_cert_reqs": "http_tls",
    "enable_ssl_refresh": "http_tls",
    "config": "this file",
    "grpc": "server.listen",
    "grpc_port": "server.listen",
    "headless": "the router's own processes",
    "api_server_count": "the router's own processes",
}
"""Flags that the router itself decides, and by what."""


class _Parser(FlexibleArgumentParser):
    """Raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"http_args: {message}; names and types are those of `vllm serve --help=all`")


def parse_http_args(http_args: Mapping[str, Any], model: str, info: ReplicaInfo) -> Namespace:
    """vLLM's parsed arguments for ``model``, served under the replica's names.

    Raises ``ConfigError`` naming the argument.
    """
    for name in http_args:
        if owner := OWNED.get(name.replace("-", "_")):
            raise ConfigError(f"http_args.{name}: is decided by {owner}; remove it")
    parser = make_arg_parser(_Parser())
    arguments = [part for name, value in http_args.items() for part in _arguments(parser, name, value)]
    fixed = ["--model", model, "--max-model-len", str(info.max_model_len), "--served-model-name", *info.model_names]
    args: Namespace = parser.parse_args([*arguments, *fixed])
    _load_plugins(args)
    if args.reasoning_parser:
        # As the engine's own configuration does later; vLLM looks for it there.
        args.structured_outputs_config.reasoning_parser = args.reasoning_parser
    try:
        validate_parsed_serve_args(args)
        validate_api_server_args(args)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"http_args: {error}") from None
    return args


def _arguments(parser: FlexibleArgumentParser, name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    action = _actions(parser).get(flag)
    if action is None:
        raise ConfigError(f"http_args.{name}: vLLM has no such flag; see `vllm serve --help=all`")
    if value is None:
        return []
    if isinstance(value, bool) and action.nargs == 0:
        off = f"--no-{flag.removeprefix('--')}"
        return [flag] if value else [off] if off in action.option_strings else []
    if isinstance(value, list) and action.nargs in ("*", "+"):
        return [flag, *map(str, value)]
    return [f"{flag}={json.dumps(value) if isinstance(value, dict | list | bool) else value}"]


def _actions(parser: FlexibleArgumentParser) -> dict[str, Action]:
    return {option: action for action in parser._actions for option in action.option_strings}


def _load_plugins(args: Namespace) -> None:
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)

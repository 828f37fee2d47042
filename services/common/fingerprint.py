"""The configuration fingerprint that a scheduler and its stages compare before any weight is loaded.

A stage that built another model, another vLLM version or other engine arguments than its scheduler would not
fail: it would answer with other text. The fingerprint covers everything that decides what is computed.
"""

import hashlib
import json

from services.common.version import FORERUN_VERSION, STAGE_PROTOCOL_VERSION


def fingerprint(engine_args_json: str, model_config_json: str, vllm_version: str) -> str:
    """SHA-256 in hexadecimal over versions, engine arguments and the model's own configuration file.

    Args:
        engine_args_json: vLLM engine arguments, a JSON object; key order does not matter.
        model_config_json: the Hugging Face configuration as each side read it from its own disk.
        vllm_version: of the process that computes the fingerprint.

    Raises:
        ValueError: one of the two is not JSON.
    """
    document = {
        "engine_args": json.loads(engine_args_json),
        "forerun": FORERUN_VERSION,
        "model": json.loads(model_config_json),
        "protocol": STAGE_PROTOCOL_VERSION,
        "vllm": vllm_version,
    }
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()

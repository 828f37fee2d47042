"""A draft adapter's two files: what is written is read, and what is wrong is named with its fix."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.common.errors import ConfigError
from services.workers.draft_adapter.config import CONFIG_NAME, DraftAdapterConfig
from services.workers.draft_adapter.files import D2T, WEIGHTS_NAME, load_adapter, save_adapter
from tests.support.small_adapter import TARGET, make_config, make_tensors


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    config = make_config()
    tensors = make_tensors(config)
    save_adapter(tmp_path, config, tensors, torch.float32)
    loaded_config, loaded = load_adapter(tmp_path)
    assert loaded_config == config
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_the_stages_layers_follow_from_the_exit() -> None:
    early, late = make_config(exit_layer=1), make_config(exit_layer=3)
    assert [late.layer_partition(stages) for stages in (2, 3, 4)] == [[3, 3], [3, 2, 1], [3, 1, 1, 1]]
    assert early.layer_partition(2) == [1, 5]
    with pytest.raises(ConfigError, match=r"exit_layer 3 leaves 3 of 6 layers for 4 stages; use fewer stages"):
        late.layer_partition(5)


def test_weights_are_stored_in_half_the_bytes_and_token_ids_exactly(tmp_path: Path) -> None:
    config = make_config()
    save_adapter(tmp_path, config, make_tensors(config))
    _, loaded = load_adapter(tmp_path)
    assert loaded["o_proj.weight"].dtype == torch.bfloat16
    assert loaded[D2T].dtype == torch.int64


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("o_proj.weight", torch.zeros(32, 16), r"o_proj\.weight has shape \[32, 16\], config.json wants \[32, 32\]"),
        ("lm_head.weight", torch.zeros(1), "lm_head.weight is unknown"),
        (D2T, torch.arange(10, dtype=torch.int32), "must be torch.int64"),
        (D2T, torch.arange(10) + 91, "different token ids from 0 to 99"),
        (D2T, torch.zeros(10, dtype=torch.int64), "different token ids from 0 to 99"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, name: str, tensor: torch.Tensor, message: str) -> None:
    config = make_config()
    with pytest.raises(ConfigError, match=message):
        save_adapter(tmp_path, config, make_tensors(config) | {name: tensor})
    assert not list(tmp_path.iterdir())


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    config = make_config()
    tensors = make_tensors(config)
    del tensors["qkv_proj.weight"]
    with pytest.raises(ConfigError, match=r"qkv_proj\.weight is missing"):
        save_adapter(tmp_path, config, tensors)


@pytest.mark.parametrize("damage", [b"", b"not safetensors at all"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: bytes) -> None:
    config = make_config()
    save_adapter(tmp_path, config, make_tensors(config))
    (tmp_path / WEIGHTS_NAME).write_bytes(damage)
    with pytest.raises(ConfigError, match=WEIGHTS_NAME):
        load_adapter(tmp_path)


def test_a_folder_without_an_adapter_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a draft adapter's folder"):
        load_adapter(tmp_path / "absent")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format_version: 2 is not 1; train the adapter again"),
        ({"exit_layer": 6}, "exit_layer must be below target_layers"),
        ({"draft_vocab_size": 101}, "draft_vocab_size must be at most vocab_size"),
        ({"num_key_value_heads": 3}, "num_attention_heads must be a multiple"),
        ({"hidden_size": "wide"}, "hidden_size: .*valid integer.*restore the file"),
        ({"surprise": 1}, "surprise: .*restore the file"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_fix(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    fields = make_config().model_dump() | changes
    (tmp_path / CONFIG_NAME).write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=rf"{CONFIG_NAME}: .*{message}"):
        DraftAdapterConfig.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG_NAME).write_text(text)
    with pytest.raises(ConfigError, match=CONFIG_NAME):
        DraftAdapterConfig.read(tmp_path)


def test_its_own_target_fits_and_another_does_not() -> None:
    config = make_config()
    config.check_target(TARGET)
    with pytest.raises(ConfigError, match=r"hidden_size is 32, the model's 64.*forerun train adapter"):
        config.check_target(SimpleNamespace(**vars(TARGET) | {"hidden_size": 64}))
    with pytest.raises(ConfigError, match="rope_parameters"):
        config.check_target(SimpleNamespace(**vars(TARGET) | {"rope_parameters": {"rope_theta": 1.0}}))


def test_a_target_too_shallow_for_the_exit_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="target_layers is 6, the model's 3"):
        make_config().check_target(SimpleNamespace(**vars(TARGET) | {"num_hidden_layers": 3}))

"""The remaining-length model: its arithmetic, its files and the registry."""

from pathlib import Path

import numpy as np
import pytest
import torch

from services.common.errors import ConfigError, RequestEndedError
from services.common.net_files import CONFIG_NAME
from services.predictor.model import WEIGHTS_NAME, RemainingLengthModel, load_model, save_model
from services.predictor.registry import ModelRegistry
from tests.support.small_predictor import make_predictor_config, random_tensors, write_random_predictor

RNG = np.random.default_rng(1)
STATES = RNG.normal(size=(7, 64)).astype(np.float16)
AGES = np.arange(7)


def test_it_is_the_perceptron_that_was_trained() -> None:
    config = make_predictor_config()
    tensors = {name: torch.from_numpy(each) for name, each in random_tensors(config).items()}
    states = ((torch.from_numpy(STATES).float() - tensors["mean"]) / tensors["scale"]).clamp(-8, 8)
    hidden = torch.cat([states, torch.log1p(torch.from_numpy(AGES))[:, None]], dim=1).float()
    for index in range(2):
        hidden = torch.relu(torch.nn.functional.linear(hidden, tensors[f"{index}.weight"], tensors[f"{index}.bias"]))
    chances = torch.sigmoid(torch.nn.functional.linear(hidden, tensors["2.weight"], tensors["2.bias"]))
    model = RemainingLengthModel(config, random_tensors(config))
    assert model.chances(STATES, AGES) == pytest.approx(chances.cummax(dim=1).values.numpy(), abs=1e-5)


def test_chances_ascend_and_rows_do_not_depend_on_one_another() -> None:
    config = make_predictor_config()
    model = RemainingLengthModel(config, random_tensors(config))
    together = model.chances(STATES, AGES)
    assert (np.diff(together, axis=1) >= 0).all()
    alone = np.concatenate([model.chances(STATES[row : row + 1], AGES[row : row + 1]) for row in range(7)])
    assert together == pytest.approx(alone, abs=1e-6)


def test_huge_coordinates_do_not_overflow() -> None:
    config = make_predictor_config()
    model = RemainingLengthModel(config, random_tensors(config))
    huge = np.full((1, 64), np.finfo(np.float16).max, np.float16)
    with np.errstate(all="raise"):
        assert np.isfinite(model.chances(huge, np.array([0]))).all()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    written = write_random_predictor(tmp_path)
    read = load_model(tmp_path)
    assert read.config == written.config
    assert (read.chances(STATES, AGES) == written.chances(STATES, AGES)).all()


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: No such file.*forerun train predictor"):
        load_model(tmp_path)
    write_random_predictor(tmp_path)
    (tmp_path / WEIGHTS_NAME).write_bytes(b"\0" * 100)
    with pytest.raises(ConfigError, match=rf"{WEIGHTS_NAME}: cannot be used"):
        load_model(tmp_path)
    write_random_predictor(tmp_path)
    (tmp_path / CONFIG_NAME).write_text((tmp_path / CONFIG_NAME).read_text().replace('"width": 16', '"width": 17'))
    with pytest.raises(ConfigError, match=r"0\.weight has shape \[16, 65\], config\.json wants \[17, 65\]"):
        load_model(tmp_path)
    write_random_predictor(tmp_path)
    text = (tmp_path / CONFIG_NAME).read_text()
    (tmp_path / CONFIG_NAME).write_text(text.replace('"layer": 2', '"layer": -2'))
    with pytest.raises(ConfigError, match="layer: Input should be greater than 0"):
        load_model(tmp_path)


def test_tensors_of_another_model_are_not_written(tmp_path: Path) -> None:
    config = make_predictor_config()
    with pytest.raises(ValueError, match="mean is missing"):
        save_model(tmp_path, config, {name: each for name, each in random_tensors(config).items() if name != "mean"})
    assert list(tmp_path.iterdir()) == []


def test_models_are_found_by_target_and_layer(tmp_path: Path) -> None:
    for layer in (2, 3):
        write_random_predictor(tmp_path / str(layer), layer=layer)
    registry = ModelRegistry.load([tmp_path / "2", tmp_path / "3"])
    assert registry.find("f" * 64, 3).config.layer == 3
    with pytest.raises(RequestEndedError, match="loaded: tiny after layer 2, tiny after layer 3") as caught:
        registry.find("e" * 64, 3)
    assert caught.value.not_found
    with pytest.raises(ConfigError, match="two are for tiny after layer 2; remove one"):
        ModelRegistry.load([tmp_path / "2", tmp_path / "2"])

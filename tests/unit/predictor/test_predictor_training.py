"""From prompts to a model card with a tiny random target: every step real but the engine, in seconds."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from services.common.training.answer_shards import AnswerShards
from services.common.training.answers import AnswerOptions
from services.common.training.prompt import Message, Prompt, write_prompts
from services.predictor.model import load_model
from services.predictor.model_config import THRESHOLDS
from services.predictor.training.predictor_training import PredictorOptions, PredictorTraining
from services.predictor.training.trainer import Labelled, Trainer, TrainOptions
from tests.support.tiny_checkpoint import TinyTarget, write_tiny_checkpoint

TRAINING = TrainOptions(epochs=3, batch=32, width=16, learning_rate=1e-3, weight_decay=0.05)


class Listener:
    """Interrupts after some epochs, as Ctrl-C would."""

    def __init__(self, stop_after: int = 0) -> None:
        self._stop_after = stop_after
        self._is_training = False

    def step(self, name: str, total: int | None = None) -> None:
        self._is_training = name == "train"

    def reach(self, done: int, note: str) -> None:
        if self._is_training and done == self._stop_after:
            raise KeyboardInterrupt


@pytest.fixture(scope="module", name="model")
def model_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"))


def make_training(model: Path, work: Path, listen: Listener) -> PredictorTraining:
    options = PredictorOptions(
        model=model,
        name="tiny",
        layer=2,
        prompts=40,
        prompt_seed=0,
        answering=AnswerOptions(max_answer_tokens=12, shard=8),
        answer_tokens=10**9,
        judged_prompts=4,
        precision=0.83,
    )
    return PredictorTraining(options, TinyTarget, work, listen)


def prepare(model: Path, work: Path) -> None:
    work.mkdir()
    trained = [Prompt.make("chat", "test", "train", [Message("user", f"{index} is a number")]) for index in range(40)]
    judged = [
        Prompt.make(name, "test", "held_out", [Message("user", f"{index} in {name}")])
        for name in ("conversation", "other")
        for index in range(4)
    ]
    write_prompts(work / "prompts-40-0.jsonl", trained)
    write_prompts(work / "judged-4-0.jsonl", judged)
    training = make_training(model, work, Listener())
    training.generate_answers()
    training.compute_states()


def test_the_command_leaves_a_model_that_loads_with_its_report(model: Path, tmp_path: Path) -> None:
    prepare(model, tmp_path / "work")
    out = tmp_path / "predictor-2"
    report = make_training(model, tmp_path / "work", Listener()).train(out, TRAINING, "forerun train predictor …")
    loaded = load_model(out)
    assert (loaded.config.layer, loaded.config.target, loaded.config.thresholds) == (2, "tiny", THRESHOLDS)
    assert loaded.config.cut_offs == pytest.approx(report.cut_offs["model"])
    written = json.loads((out / "report.json").read_text())
    assert set(written["accuracy"]) == {"model", "constant hazard", "progress"}
    assert set(written["accuracy"]["model"]) == {"conversation", "other"}
    made = json.loads((out / "provenance.json").read_text())
    assert made["train"]["prompts"] == {"chat": 40}
    assert made["held_out"]["prompts"] == {"conversation": 4, "other": 4}
    assert "forerun train predictor …" in (out / "README.md").read_text()


def test_answers_to_another_choice_of_prompts_do_not_stand_for_these(model: Path, tmp_path: Path) -> None:
    prepare(model, tmp_path / "work")
    others = [Prompt.make("other", "test", "held_out", [Message("user", f"{index} again")]) for index in range(2)]
    write_prompts(tmp_path / "work/judged-4-0.jsonl", others)
    make_training(model, tmp_path / "work", Listener()).generate_answers()
    answered = {answer.prompt_id for answer in AnswerShards(tmp_path / "work/judged")}
    assert {prompt.id for prompt in others} <= answered


def test_an_interrupted_training_goes_on_to_the_same_weights(model: Path, tmp_path: Path) -> None:
    prepare(model, tmp_path / "work")
    with pytest.raises(KeyboardInterrupt):
        make_training(model, tmp_path / "work", Listener(stop_after=2)).train(tmp_path / "none", TRAINING, "")
    make_training(model, tmp_path / "work", Listener()).train(tmp_path / "resumed", TRAINING, "")
    (tmp_path / "work/checkpoints/predictor-02.pt").unlink()
    make_training(model, tmp_path / "work", Listener()).train(tmp_path / "straight", TRAINING, "")
    states, ages = np.random.default_rng(0).normal(size=(9, 64)).astype("f4"), np.arange(9)
    resumed, straight = (load_model(tmp_path / name).chances(states, ages) for name in ("resumed", "straight"))
    assert resumed == pytest.approx(straight, abs=1e-6)


def test_it_learns_what_the_inputs_say_and_is_calibrated() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(4000, 3)).astype("f4")
    chance = 1 / (1 + np.exp(-2 * inputs[:, :1]))
    labels = np.concatenate([rng.random((4000, 1)) < chance, rng.random((4000, 1)) < 0.1], axis=1)
    known = np.ones_like(labels)
    # What is not known must not count: here it is all wrong.
    known[:2000, 1], labels[:2000, 1] = False, True
    data = Labelled(inputs, labels, known)
    trainer = Trainer(
        3, 2, TrainOptions(epochs=8, batch=64, learning_rate=0.01, weight_decay=0.05, width=16, dropout=0.0), None
    )
    trainer.run(data, data, lambda _epoch, _loss: None)
    found = torch.sigmoid(trainer.logits(inputs)).numpy()
    assert np.abs(found[:, 0] - chance[:, 0]).mean() < 0.05
    assert found[:, 1].mean() == pytest.approx(0.1, abs=0.03)

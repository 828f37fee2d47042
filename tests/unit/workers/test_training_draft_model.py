"""A draft model is cut from its target, learns its distribution, and is an ordinary checkpoint."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.common.errors import ConfigError
from services.common.training.step_trainer import TrainOptions
from services.common.training.target_model import TargetStreams
from services.common.training.training_data import load_batch, read_tokens
from services.workers.training.draft_model.bridges import fit_bridges, widen
from services.workers.training.draft_model.cut import cut_model, save_draft, spread_layers
from services.workers.training.draft_model.draft_training import DraftModelOptions, DraftModelTraining
from services.workers.training.draft_model.student import DraftModelStudent
from tests.support.tiny_checkpoint import TinyTarget, write_tiny_checkpoint
from tests.support.tiny_training import (
    ANSWERING,
    CountingListener,
    SilentListener,
    StoppingListener,
    write_tiny_prompts,
)

LAYERS = 4
TRAINING = TrainOptions(epochs=6, batch_tokens=64, learning_rate=0.003, checkpoint_steps=2, soft_share=1.0)


@pytest.fixture(scope="module", name="model")
def model_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"), layers=LAYERS, hidden_size=32, spread=0.1)


def make_training(model: Path, work: Path, listen: SilentListener) -> DraftModelTraining:
    options = DraftModelOptions(
        model=model,
        name="tiny",
        layers=2,
        prompts=16,
        prompt_seed=0,
        answering=ANSWERING,
        answer_tokens=10**9,
        prompt_tokens=0,
    )
    return DraftModelTraining(options, TinyTarget, work, listen)


@pytest.fixture(scope="module", name="prepared")
def prepared_fixture(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("prepared") / "work"
    write_tiny_prompts(work)
    training = make_training(model, work, SilentListener())
    training.generate_answers()
    training.compute_states()
    return work


def test_layers_are_spread_from_the_first_to_the_last() -> None:
    assert spread_layers(30, 4) == (0, 10, 19, 29)
    assert spread_layers(30, 2) == (0, 29)
    assert spread_layers(30, 1) == (0,)
    assert spread_layers(3, 3) == (0, 1, 2)
    with pytest.raises(ConfigError, match="5 layers cannot be cut from a model of 4"):
        spread_layers(4, 5)


def test_a_draft_with_all_layers_is_the_target(model: Path, tmp_path: Path) -> None:
    save_draft(tmp_path / "draft", cut_model(model, range(LAYERS)), model)
    target, draft = (
        AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.bfloat16).float()
        for path in (model, tmp_path / "draft")
    )
    ids = torch.arange(12)[None] * 7
    torch.testing.assert_close(draft(ids).logits, target(ids).logits)


def test_the_file_is_an_ordinary_checkpoint_with_the_targets_tokenizer(model: Path, tmp_path: Path) -> None:
    cut = cut_model(model, [0, 3])
    save_draft(tmp_path / "draft", cut, model)
    config = json.loads((tmp_path / "draft/config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_hidden_layers"], config["vocab_size"], config["dtype"]) == (2, 259, "bfloat16")
    tensors = load_file(tmp_path / "draft/model.safetensors")
    assert "lm_head.weight" not in tensors, "the tied head must not be stored again"
    assert {each.dtype for each in tensors.values()} == {torch.bfloat16}
    source = load_file(model / "model.safetensors")
    assert torch.equal(
        tensors["model.layers.1.mlp.up_proj.weight"], source["model.layers.3.mlp.up_proj.weight"].bfloat16()
    )
    ours, theirs = (AutoTokenizer.from_pretrained(str(path)) for path in (tmp_path / "draft", model))
    assert ours("A text").input_ids == theirs("A text").input_ids
    assert cut.dtype == torch.float32


def test_packed_outputs_are_those_of_each_sequence_alone(model: Path, prepared: Path) -> None:
    sequences = make_training(model, prepared, SilentListener())._data(()).part("train")[:5]
    student = DraftModelStudent(model, [0, 3], TRAINING)
    batch = load_batch(sequences)
    # One much shorter sequence, which must go into a group of its own.
    tokens, lengths = torch.cat([batch.tokens, torch.tensor([5, 6])]), [*batch.lengths, 2]
    with torch.no_grad():
        packed, start = student.outputs(tokens, lengths), 0
        for length in lengths:
            part = tokens[start : start + length]
            alone = student.module.get_decoder()(input_ids=part[None]).last_hidden_state[0]
            torch.testing.assert_close(packed[start : start + length], alone, rtol=1e-4, atol=1e-5)
            start += length


def test_added_units_change_nothing_before_they_are_set(model: Path) -> None:
    ids, cut = torch.arange(12)[None] * 7, cut_model(model, [0, 3])
    before = cut(ids).logits
    widen(cut)
    torch.testing.assert_close(cut(ids).logits, before)


def test_bridges_bring_the_stream_nearer_to_the_targets(model: Path, prepared: Path) -> None:
    data = make_training(model, prepared, SilentListener())._data(())
    sequences = [read_tokens(each.answer) for each in data.part("train")]
    cut = cut_model(model, [0, 3])
    widen(cut)
    target = TargetStreams(model, [LAYERS])

    def distance() -> float:
        """Of the last stream, on text that was not learnt from."""
        found = []
        for each in data.part("held_out"):
            ids = read_tokens(each.answer)
            decoder, norm = cut.get_decoder(), cut.get_decoder().norm
            wanted = norm(target.streams([ids])[LAYERS][0])[1:]
            found.append((decoder(input_ids=ids[None]).last_hidden_state[0, 1:] - wanted).pow(2).mean())
        return float(torch.stack(found).mean())

    with torch.no_grad():
        before = distance()
        fit_bridges(cut, model, [0, 3], sequences)
        assert distance() < 0.7 * before


def test_training_lowers_the_loss_and_leaves_embedding_and_head(model: Path, prepared: Path, tmp_path: Path) -> None:
    listen, out = CountingListener(), tmp_path / "draft-2"
    work = shutil.copytree(prepared, tmp_path / "work")
    gently = replace(TRAINING, learning_rate=0.0005)
    report = make_training(model, work, listen).train(out, gently, 3, "forerun train draft …")
    losses = [float(note.removeprefix("loss ")) for note in listen.notes if note.startswith("loss")]
    an_epoch = len(losses) // TRAINING.epochs
    assert sum(losses[-an_epoch:]) < sum(losses[:an_epoch])
    name = "model.embed_tokens.weight"
    tensors, source = load_file(out / "model.safetensors"), load_file(model / "model.safetensors")
    assert torch.equal(tensors[name], source[name].bfloat16())
    written = json.loads((out / "report.json").read_text())
    assert written["overall"]["accepted"] == list(report.overall.accepted)
    assert written["target_layers"] == [0, 3]
    assert "vLLM does not share it" in (out / "README.md").read_text().replace("\n", " ")
    assert json.loads((out / "provenance.json").read_text())["command"] == "forerun train draft …"
    state = torch.load(work / "checkpoints/draft-2.pt", weights_only=True)
    assert not {"model.embed_tokens.weight", "lm_head.weight"} & set(state["weights"])


def test_what_the_report_counts_is_what_the_draft_writes_by_itself(model: Path, prepared: Path, tmp_path: Path) -> None:
    training = make_training(model, shutil.copytree(prepared, tmp_path / "work"), SilentListener())
    report = training.train(tmp_path / "draft-2", TRAINING, 3, "")
    draft = AutoModelForCausalLM.from_pretrained(str(tmp_path / "draft-2"), dtype=torch.float32)
    accepted, chains = 0, 0
    for sequence in training._data(()).part("held_out"):
        if sequence.prompt.temperature:
            continue
        prompt, answer = sequence.answer.prompt.tolist(), sequence.answer.answer.tolist()
        for start in range(1, len(answer) - 2):
            text = [*prompt, *answer[:start]]
            chains += 1
            for step in range(3):
                text.append(int(draft(torch.tensor([text])).logits[0, -1].argmax()))
                if text[-1] != answer[start + step]:
                    break
                accepted += 1
    assert chains == report.overall.chains
    assert accepted / chains == pytest.approx(report.overall.mean_accepted, abs=0.1)


def test_an_interrupted_training_ends_with_the_same_weights(model: Path, prepared: Path, tmp_path: Path) -> None:
    work = shutil.copytree(prepared, tmp_path / "work")
    with pytest.raises(KeyboardInterrupt):
        make_training(model, work, StoppingListener(after=5)).train(tmp_path / "cut", TRAINING, 3, "")
    counting = CountingListener()
    make_training(model, work, counting).train(tmp_path / "resumed", TRAINING, 3, "")
    assert counting.reached[0] == 5
    (work / "checkpoints/draft-2.pt").unlink()
    make_training(model, work, SilentListener()).train(tmp_path / "whole", TRAINING, 3, "")
    resumed, whole = (load_file(tmp_path / name / "model.safetensors") for name in ("resumed", "whole"))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)

"""From prompts to a model card with a tiny random target: every step real but the engine, in seconds."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.common.target_weights import TargetWeights
from services.common.training.answer_shards import AnswerShards
from services.common.training.states import compute_states
from services.common.training.step_trainer import TrainOptions
from services.common.training.target_model import TargetStreams
from services.common.training.training_data import TrainingData, in_batches, load_batch
from services.workers.context_lookup import LONGEST_MATCH, look_up
from services.workers.draft_adapter.files import D2T, load_adapter
from services.workers.draft_adapter.torch_adapter import DraftAdapter, DraftHead
from services.workers.training.adapter.adapter_training import AdapterOptions, AdapterTraining
from services.workers.training.adapter.agreement import measure_agreement
from services.workers.training.adapter.evaluation import evaluate, measure_lookups, with_lookups
from services.workers.training.adapter.starting_point import fit_start
from services.workers.training.draft_vocabulary import choose_draft_vocabulary, inverse
from tests.support.small_adapter import make_config
from tests.support.tiny_checkpoint import TinyTarget, write_tiny_checkpoint
from tests.support.tiny_training import (
    ANSWERING,
    CountingListener,
    SilentListener,
    StoppingListener,
    make_prompts,
    write_tiny_prompts,
)

EXIT, LAYERS = 2, 3
TRAINING = TrainOptions(epochs=6, batch_tokens=64, learning_rate=0.01, checkpoint_steps=2)


@pytest.fixture(scope="module", name="model")
def model_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"))


MakeTraining = Callable[[SilentListener], AdapterTraining]


def options_for(model: Path) -> AdapterOptions:
    return AdapterOptions(
        model=model,
        name="tiny",
        exit_layers=[EXIT],
        draft_vocab_size=64,
        input_residual=True,
        prompts=16,
        prompt_seed=0,
        answering=ANSWERING,
        answer_tokens=10**9,
        prompt_tokens=0,
    )


@pytest.fixture(scope="module", name="prepared")
def prepared_fixture(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with prompts, answers and states; tests take copies of it."""
    work = tmp_path_factory.mktemp("prepared") / "work"
    write_tiny_prompts(work)
    training = AdapterTraining(options_for(model), TinyTarget, work, SilentListener())
    training.generate_answers()
    training.compute_states()
    return work


@pytest.fixture
def make_training(model: Path, prepared: Path, tmp_path: Path) -> MakeTraining:
    """Trainings that share one work folder, as two calls of the command do."""
    work = shutil.copytree(prepared, tmp_path / "work")

    def make(listen: SilentListener) -> AdapterTraining:
        return AdapterTraining(options_for(model), TinyTarget, work, listen)

    return make


def test_the_command_leaves_an_adapter_that_loads_with_its_report(make_training: MakeTraining, tmp_path: Path) -> None:
    training = make_training(SilentListener())
    reports = training.train(EXIT, tmp_path / "adapter-2", TRAINING, "forerun train adapter …")
    report = reports.served
    config, tensors = load_adapter(tmp_path / "adapter-2")
    assert (config.exit_layer, config.target, len(tensors[D2T])) == (EXIT, "tiny", 64)
    written = json.loads((tmp_path / "adapter-2/report.json").read_text())
    assert written["overall"]["share"] == report.overall.share
    assert written["adapter_alone"]["overall"]["share"] == reports.adapter_alone.overall.share
    assert f"**{report.overall.share:.3f}**" in (tmp_path / "adapter-2/README.md").read_text()
    provenance = json.loads((tmp_path / "adapter-2/provenance.json").read_text())
    assert provenance["train"]["prompts"] == {"chat": 8, "code": 4}
    assert provenance["held_out"]["answer_tokens"] == report.overall.positions + (
        report.sampled.positions if report.sampled else 0
    )
    assert provenance["command"] == "forerun train adapter …"


def test_an_interrupted_training_ends_with_the_same_weights(make_training: MakeTraining, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_training(StoppingListener(after=5)).train(EXIT, tmp_path / "cut", TRAINING, "")
    assert not (tmp_path / "cut").exists()
    counting = CountingListener()
    make_training(counting).train(EXIT, tmp_path / "resumed", TRAINING, "")
    assert counting.reached[0] == 5, "the checkpoint after step 4 was not used"
    (tmp_path / "work/checkpoints/exit-02-64.pt").unlink()
    make_training(SilentListener()).train(EXIT, tmp_path / "whole", TRAINING, "")
    _, resumed = load_adapter(tmp_path / "resumed")
    _, whole = load_adapter(tmp_path / "whole")
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_a_checkpoint_of_other_options_is_not_gone_on_with(make_training: MakeTraining, tmp_path: Path) -> None:
    training = make_training(SilentListener())
    training.train(EXIT, tmp_path / "first", TRAINING, "")
    other = TrainOptions(epochs=6, batch_tokens=64, learning_rate=0.02, checkpoint_steps=2)
    training.train(EXIT, tmp_path / "second", other, "")
    _, first = load_adapter(tmp_path / "first")
    _, second = load_adapter(tmp_path / "second")
    assert not torch.equal(first["o_proj.weight"], second["o_proj.weight"])


def test_the_states_are_the_residual_streams_of_the_whole_model(model: Path) -> None:
    whole = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32)
    sequences = [torch.arange(5) + 3, torch.arange(9) * 2]
    states = TargetStreams(model, [1, EXIT]).streams(sequences)
    for row, ids in enumerate(sequences):
        streams = whole(ids[None], output_hidden_states=True).hidden_states
        for exit_layer in (1, EXIT):
            torch.testing.assert_close(states[exit_layer][row], streams[exit_layer][0], rtol=1e-4, atol=1e-5)


def test_the_norm_and_the_head_are_the_targets(model: Path) -> None:
    whole = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32)
    target = TargetWeights(str(model))
    norm, rows = target.final_norm(), target.head_rows(torch.arange(whole.config.vocab_size))
    ids = torch.arange(6)[None]
    last = whole.get_decoder().layers[-1]
    caught: list[torch.Tensor] = []
    last.register_forward_hook(lambda _module, _inputs, output: caught.append(output))
    logits = whole(ids).logits[0]
    stream = caught[0][0] if caught[0].dim() == 3 else caught[0]
    torch.testing.assert_close(DraftHead(norm, rows, 1e-5)(stream), logits, rtol=1e-4, atol=1e-4)


@pytest.fixture
def data(prepared: Path) -> TrainingData:
    prompts = {prompt.id: prompt for prompt in make_prompts()}
    return TrainingData(AnswerShards(prepared / "answers").paths(), prepared / "states", [EXIT], LAYERS, prompts)


def test_a_batch_holds_the_states_after_which_each_label_comes(model: Path, data: TrainingData) -> None:
    target = TargetStreams(model, [EXIT, LAYERS])
    batch = load_batch(data.part("train")[:5])
    start = 0
    for sequence, length in zip(batch.sequences, batch.lengths, strict=True):
        tokens = torch.tensor([*sequence.answer.prompt.tolist(), *sequence.answer.answer.tolist()])
        streams = target.streams([tokens[:-1]])
        for layer, packed in ((EXIT, batch.states), (LAYERS, batch.last)):
            torch.testing.assert_close(packed[start : start + length], streams[layer][0], rtol=1e-2, atol=1e-2)
        mine = (batch.answers >= start) & (batch.answers < start + length)
        assert torch.equal(batch.labels[mine], tokens[batch.answers[mine] - start + 1])
        assert batch.starts[start : start + length].tolist() == [True] + [False] * (length - 1)
        start += length


def test_an_epoch_holds_every_training_answer_once_in_batches_that_fit(data: TrainingData) -> None:
    first, second = data.epoch(100, seed=1), data.epoch(100, seed=2)
    wanted = sorted(sequence.prompt.id for sequence in data.part("train"))
    for epoch in (first, second):
        assert sorted(sequence.prompt.id for batch in epoch for sequence in batch) == wanted
        assert all(sum(map(len, batch)) <= 100 or len(batch) == 1 for batch in epoch)
    assert [s.prompt.id for b in first for s in b] != [s.prompt.id for b in second for s in b]


def test_answers_to_other_prompts_do_not_shift_the_states(data: TrainingData, prepared: Path) -> None:
    kept = {prompt.id: prompt for prompt in make_prompts()[::3]}
    fewer = TrainingData(AnswerShards(prepared / "answers").paths(), prepared / "states", [EXIT], LAYERS, kept)
    starts = {sequence.prompt.id: (sequence.state_paths, sequence.start) for sequence in data.part("train")}
    assert fewer.part("train")
    assert all(starts[each.prompt.id] == (each.state_paths, each.start) for each in fewer.part("train"))


def test_states_are_computed_for_new_answers_only(model: Path, prepared: Path, tmp_path: Path) -> None:
    shards, folder = AnswerShards(prepared / "answers"), tmp_path / "states"
    shutil.copytree(prepared / "states", folder)
    passed: list[int] = []
    compute_states(model, shards.paths(), folder, [EXIT], passed.append)
    assert not passed
    (folder / "layer-02/answers/answers-00000.safetensors").unlink()
    compute_states(model, shards.paths(), folder, [EXIT], passed.append)
    assert sum(passed) == sum(answer.positions for answer in list(shards)[: ANSWERING.shard])


def test_the_draft_vocabulary_is_the_most_used_tokens(data: TrainingData) -> None:
    answers = [sequence.answer for sequence in data.part("train")]
    counts = np.bincount(np.concatenate([answer.answer for answer in answers]), minlength=259)
    d2t = choose_draft_vocabulary(answers, 3, 259)
    assert d2t.tolist() == sorted(d2t.tolist())
    assert min(counts[d2t]) >= max(np.delete(counts, d2t.numpy()))
    t2d = inverse(d2t, 259)
    assert torch.equal(t2d[d2t], torch.arange(3))
    assert (t2d >= 0).sum() == 3


def test_evaluation_packs_without_changing_what_is_drafted(model: Path, data: TrainingData) -> None:
    held_out = data.part("held_out")
    d2t = choose_draft_vocabulary((each.answer for each in data.part("train")), 64, 259)
    target = TargetWeights(str(model))
    head = DraftHead(target.final_norm(), target.head_rows(d2t), 1e-5)
    torch.manual_seed(0)
    config = make_config(exit_layer=EXIT, draft_vocab_size=64).model_copy(
        update={"hidden_size": 64, "head_dim": 16, "vocab_size": 259}
    )
    adapter = DraftAdapter(config)
    together = evaluate(adapter, head, d2t, held_out, batch_tokens=10_000)
    alone = evaluate(adapter, head, d2t, held_out, batch_tokens=1)
    np.testing.assert_array_equal(together.agrees, alone.agrees)
    np.testing.assert_allclose(together.confidence, alone.confidence, rtol=1e-4)
    assert len(list(in_batches(held_out, 1))) == len(held_out)
    first = held_out[0].answer
    assert together.position[: len(first.answer)].tolist() == list(range(len(first.answer)))
    assert measure_agreement(together).coverage == together.draftable[together.greedy].mean()


def test_training_starts_near_the_targets_last_stream(data: TrainingData) -> None:
    config = make_config(exit_layer=EXIT, draft_vocab_size=64).model_copy(
        update={"hidden_size": 64, "head_dim": 16, "vocab_size": 259}
    )
    torch.manual_seed(0)
    fitted, random = DraftAdapter(config), DraftAdapter(config)
    fit_start(fitted, data.part("train"))
    batch = load_batch(data.part("held_out"))
    errors = [
        (adapter(batch.states, batch.lengths) - batch.last)[~batch.starts].pow(2).mean().item()
        for adapter in (fitted, random)
    ]
    assert errors[0] < errors[1] / 2


def test_lookups_are_measured_and_preferred_where_they_are_likelier_to_be_right(data: TrainingData) -> None:
    held_out, lookups = data.part("held_out"), measure_lookups(data.part("train"))
    assert len(lookups) == LONGEST_MATCH
    config = make_config(exit_layer=EXIT, draft_vocab_size=64).model_copy(
        update={"hidden_size": 64, "head_dim": 16, "vocab_size": 259}
    )
    adapter = DraftAdapter(config)
    d2t = torch.arange(64)
    head = DraftHead(torch.ones(64), torch.randn(64, 64), 1e-5)
    alone = evaluate(adapter, head, d2t, held_out)
    never = with_lookups(alone, held_out, [0.0] * LONGEST_MATCH)
    always = with_lookups(alone, held_out, [1.0] * LONGEST_MATCH)
    np.testing.assert_array_equal(alone.agrees, never.agrees)
    expected = []
    for sequence in held_out:
        text = [*sequence.answer.prompt.tolist(), *sequence.answer.answer.tolist()]
        for end in range(len(sequence.answer.prompt), len(text)):
            found = look_up(np.array(text[:end], np.int32))
            if found is None or sequence.prompt.temperature > 0:
                expected.append(None)
            else:
                expected.append(found.token_id == text[end])
    assert any(each is not None for each in expected)
    for each, without, served in zip(expected, alone.agrees, always.agrees, strict=True):
        assert served == (without if each is None else each)

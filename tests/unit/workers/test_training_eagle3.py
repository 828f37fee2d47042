"""An EAGLE-3 head is what vLLM computes, its unrolled training is what it does when it drafts, and it learns."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy, silu
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from services.common.errors import ConfigError
from services.common.target_weights import TargetWeights
from services.common.training.training_data import load_batch
from services.workers.training.eagle3.config import aux_layers, head_config
from services.workers.training.eagle3.eagle3_training import Eagle3Options, Eagle3Training
from services.workers.training.eagle3.files import head_tensors
from services.workers.training.eagle3.head import Eagle3Head
from services.workers.training.eagle3.student import Eagle3Student, Eagle3TrainOptions
from tests.support.tiny_checkpoint import TinyTarget, write_tiny_checkpoint
from tests.support.tiny_training import (
    ANSWERING,
    CountingListener,
    SilentListener,
    StoppingListener,
    write_tiny_prompts,
)

LAYERS, HIDDEN = 6, 32
TRAINING = Eagle3TrainOptions(
    epochs=6, batch_tokens=64, learning_rate=0.01, checkpoint_steps=2, unroll=3, soft_share=1.0
)


@pytest.fixture(scope="module", name="model")
def model_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"), layers=LAYERS, hidden_size=HIDDEN, spread=0.1)


@pytest.fixture(scope="module", name="config")
def config_fixture(model: Path) -> LlamaConfig:
    return head_config(AutoConfig.from_pretrained(model), aux_layers(LAYERS), 64)


def random_head(config: LlamaConfig) -> Eagle3Head:
    torch.manual_seed(1)
    head = Eagle3Head(config)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, 1.0 if weight.dim() == 1 else 0.0, 0.3)
    return head.eval()


def make_training(model: Path, work: Path, listen: SilentListener) -> Eagle3Training:
    options = Eagle3Options(
        model=model,
        name="tiny",
        draft_vocab_size=64,
        prompts=16,
        prompt_seed=0,
        answering=ANSWERING,
        answer_tokens=10**9,
        prompt_tokens=0,
    )
    return Eagle3Training(options, TinyTarget, work, listen)


@pytest.fixture(scope="module", name="prepared")
def prepared_fixture(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("prepared") / "work"
    write_tiny_prompts(work)
    training = make_training(model, work, SilentListener())
    training.generate_answers()
    training.compute_states()
    return work


def test_the_streams_that_are_read_are_vllms_default() -> None:
    assert aux_layers(30) == (2, 15, 27)
    assert aux_layers(36) == (2, 18, 33)
    assert aux_layers(6) == (4, 5, 6)
    assert aux_layers(2) == (0, 1, 2)
    with pytest.raises(ConfigError, match="1 layer"):
        aux_layers(1)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotate(x: Tensor, position: int) -> Tensor:
    """[heads, width] → the same at a position; Llama's halves."""
    half = x.shape[-1] // 2
    angles = position * 10000.0 ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )


class NaiveDrafter:
    """vLLM's ``Eagle3LlamaForCausalLM``, written down token by token with a key-value cache, for one sequence."""

    def __init__(self, tensors: dict[str, Tensor], config: LlamaConfig) -> None:
        self.weights = {name: each.float() for name, each in tensors.items()}
        self.config = config
        self.cache: list[tuple[Tensor, Tensor]] = []

    def step(self, embedding: Tensor, hidden: Tensor, position: int) -> Tensor:
        """Reads one token; returns what vLLM hands on, the sum before the final norm."""
        config, weights, layer = self.config, self.weights, "midlayer"
        eps, width = config.rms_norm_eps, config.head_dim
        x = torch.cat(
            [
                rms(embedding, weights[f"{layer}.input_layernorm.weight"], eps),
                rms(hidden, weights[f"{layer}.hidden_norm.weight"], eps),
            ]
        )
        query, key, value = (
            (weights[f"{layer}.self_attn.{name}_proj.weight"] @ x).view(-1, width) for name in ("q", "k", "v")
        )
        self.cache.append((rotate(key, position), value))
        keys, values = (torch.stack(parts, dim=1) for parts in zip(*self.cache, strict=True))
        shared = config.num_attention_heads // config.num_key_value_heads
        mixed = [
            (keys[head // shared] @ rotate(query, position)[head] / width**0.5).softmax(-1) @ values[head // shared]
            for head in range(config.num_attention_heads)
        ]
        hidden = hidden + weights[f"{layer}.self_attn.o_proj.weight"] @ torch.cat(mixed)
        normed = rms(hidden, weights[f"{layer}.post_attention_layernorm.weight"], eps)
        gate, up = (weights[f"{layer}.mlp.{name}_proj.weight"] @ normed for name in ("gate", "up"))
        return hidden + weights[f"{layer}.mlp.down_proj.weight"] @ (silu(gate) * up)

    def logits(self, output: Tensor) -> Tensor:
        return self.weights["lm_head.weight"] @ rms(output, self.weights["norm.weight"], self.config.rms_norm_eps)


def test_every_unrolled_step_is_the_head_run_again_on_its_own_output(config: LlamaConfig) -> None:
    head, steps, lengths = random_head(config), 3, [7, 5]
    aux, embeddings = torch.randn(12, 3 * HIDDEN), torch.randn(12, HIDDEN)
    weights = dict(head.named_parameters())
    with torch.no_grad():
        outputs = head.unroll(aux, embeddings, lengths, steps)
        for start, length in ((0, 7), (7, 5)):
            for row in range(length - steps):
                naive = NaiveDrafter(weights, config)
                for position in range(row + 1):
                    at = start + position
                    hidden = naive.step(embeddings[at + 1], head.fc.weight @ aux[at], position)
                for step in range(steps):
                    torch.testing.assert_close(outputs[step][start + row], hidden, rtol=1e-4, atol=1e-4)
                    torch.testing.assert_close(head.logits(hidden[None])[0], naive.logits(hidden), rtol=1e-4, atol=1e-4)
                    if step + 1 < steps:
                        token = start + row + step + 2
                        hidden = naive.step(embeddings[token], hidden, row + step + 1)


def test_no_step_sees_what_comes_later_or_other_sequences(config: LlamaConfig) -> None:
    head, steps = random_head(config), 3
    aux, embeddings = torch.randn(12, 3 * HIDDEN), torch.randn(12, HIDDEN)
    other_aux, other_embeddings = aux.clone(), embeddings.clone()
    # Row 3 of the first sequence has read its tokens up to 4 + step; everything else changes.
    other_aux[4:], other_embeddings[7:] = torch.randn(8, 3 * HIDDEN), torch.randn(5, HIDDEN)
    with torch.no_grad():
        one = head.unroll(aux, embeddings, [8, 4], steps)
        other = head.unroll(other_aux, other_embeddings, [8, 4], steps)
    for step in range(steps):
        torch.testing.assert_close(one[step][3], other[step][3])


def test_the_loss_and_its_gradient_are_those_of_all_steps_at_once(
    model: Path, config: LlamaConfig, prepared: Path
) -> None:
    data = make_training(model, prepared, SilentListener())._data(aux_layers(LAYERS))
    batch = load_batch(data.part("train")[:3])
    student = Eagle3Student(config, TargetWeights(str(model)), torch.arange(64) * 4, TRAINING)
    student.begin(data.part("train"))
    lesson = student.learn(batch)
    gradients = {name: each.grad.clone() for name, each in student.module.named_parameters() if each.grad is not None}
    assert set(gradients) == {name for name, _ in student.module.named_parameters()}
    student.module.zero_grad()
    embedding = TargetWeights(str(model)).embedding().float()
    outputs = student.module.unroll(batch.states, embedding[batch.tokens], batch.lengths, 3)
    wanted = student._target_head(batch.last).softmax(-1)
    total, start = [torch.zeros(()) for _ in outputs], 0
    weight_sums = [0.0] * 3
    for sequence, length in zip(batch.sequences, batch.lengths, strict=True):
        for position in range(1, length):
            weight = 1.0 if position >= len(sequence.answer.prompt) - 1 else TRAINING.prompt_weight
            for step in range(3):
                if (row := position - 1 - step) >= 0:
                    logits = student.module.logits(outputs[step][start + row][None])
                    total[step] = total[step] + weight * cross_entropy(logits, wanted[start + position][None])
                    weight_sums[step] += weight
        start += length
    shares = [0.8**step / (1 + 0.8 + 0.64) for step in range(3)]
    loss = sum(share * each / norm for share, each, norm in zip(shares, total, weight_sums, strict=True))
    assert isinstance(loss, Tensor)
    loss.backward()
    assert lesson.loss == pytest.approx(loss.item(), rel=1e-4)
    for name, each in student.module.named_parameters():
        torch.testing.assert_close(gradients[name], each.grad, rtol=1e-3, atol=1e-5)


def test_training_starts_with_what_a_linear_map_knows(model: Path, config: LlamaConfig, prepared: Path) -> None:
    data = make_training(model, prepared, SilentListener())._data(aux_layers(LAYERS))
    batch, target, d2t = load_batch(data.part("train")), TargetWeights(str(model)), torch.arange(64) * 4
    started, random = (Eagle3Student(config, target, d2t, TRAINING) for _ in range(2))
    started.begin(data.part("train"))
    assert started.learn(batch).loss < random.learn(batch).loss - 0.1
    # Heads that share keys must not learn the same for ever.
    first, second = started.module.midlayer.self_attn.q_proj.weight[: 2 * config.head_dim].chunk(2)
    assert not torch.equal(first, second)


def test_the_streams_on_disk_are_those_after_the_named_layers(model: Path, prepared: Path) -> None:
    data = make_training(model, prepared, SilentListener())._data(aux_layers(LAYERS))
    batch = load_batch(data.part("train")[:1])
    whole = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32)
    caught: list[Tensor] = []
    for layer in whole.get_decoder().layers:
        layer.register_forward_hook(lambda _module, _inputs, output: caught.append(output.view(-1, HIDDEN)))
    whole(batch.tokens[None])
    # vLLM's index n is taken after layer n - 1 has run, with the residual added.
    expected = torch.cat([caught[count - 1] for count in aux_layers(LAYERS)], dim=-1)
    torch.testing.assert_close(batch.states, expected, rtol=1e-2, atol=1e-2)


def test_the_file_has_the_names_and_the_folded_weights_that_vllm_reads(config: LlamaConfig) -> None:
    head, d2t = random_head(config), torch.arange(64) * 4 + 2
    head.aux_scale.uniform_(0.5, 2.0)
    tensors = head_tensors(head, d2t, config.vocab_size)
    assert set(tensors) == {
        "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d",
        "midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight", "midlayer.post_attention_layernorm.weight",
        *(f"midlayer.self_attn.{name}_proj.weight" for name in "qkvo"),
        *(f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    }  # fmt: skip
    assert torch.equal(torch.arange(64) + tensors["d2t"], d2t)
    assert tensors["t2d"].nonzero()[:, 0].tolist() == d2t.tolist()
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (HIDDEN, 2 * HIDDEN)
    aux = torch.randn(5, 3 * HIDDEN)
    torch.testing.assert_close(
        aux @ tensors["fc.weight"].float().T, head.fc(aux * head.aux_scale), rtol=0.02, atol=0.05
    )


def test_a_head_that_can_draft_every_token_has_no_maps(config: LlamaConfig) -> None:
    whole = LlamaConfig(**{**config.to_dict(), "draft_vocab_size": config.vocab_size})
    tensors = head_tensors(random_head(whole), torch.arange(config.vocab_size), config.vocab_size)
    assert not {"d2t", "t2d"} & set(tensors)


def test_the_command_leaves_a_head_with_its_report(model: Path, prepared: Path, tmp_path: Path) -> None:
    listen, out = CountingListener(), tmp_path / "eagle3"
    work = shutil.copytree(prepared, tmp_path / "work")
    report = make_training(model, work, listen).train(out, TRAINING, 3, "forerun train eagle3 …")
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == list(aux_layers(LAYERS))
    assert (config["draft_vocab_size"], config["vocab_size"], config["num_hidden_layers"]) == (64, 259, 1)
    assert load_file(out / "model.safetensors")["lm_head.weight"].shape == (64, HIDDEN)
    written = json.loads((out / "report.json").read_text())
    assert written["overall"]["mean_accepted"] == report.overall.mean_accepted
    assert len(written["overall"]["accuracy"]) == 3
    assert "LlamaForCausalLMEagle3" in (out / "README.md").read_text()
    assert json.loads((out / "provenance.json").read_text())["training"]["unroll"] == 3
    losses = [float(note.removeprefix("loss ")) for note in listen.notes if note.startswith("loss")]
    assert losses[-1] < losses[0]


def test_what_the_report_counts_is_what_the_head_drafts_by_itself(model: Path, prepared: Path, tmp_path: Path) -> None:
    """Free-running drafts of the saved file, each step on the token drafted before."""
    training = make_training(model, shutil.copytree(prepared, tmp_path / "work"), SilentListener())
    report = training.train(tmp_path / "eagle3", TRAINING, 3, "")
    held_out = training._data(aux_layers(LAYERS)).part("held_out")
    config = LlamaConfig(**json.loads((tmp_path / "eagle3/config.json").read_text()))
    tensors = load_file(tmp_path / "eagle3/model.safetensors")
    d2t = torch.arange(64) + tensors["d2t"]
    embedding = TargetWeights(str(model)).embedding().float()
    accepted, chains = 0, 0
    for sequence in (each for each in held_out if each.prompt.temperature == 0):
        batch = load_batch([sequence])
        text = [*batch.tokens.tolist(), int(sequence.answer.answer[-1])]
        for known in range(len(sequence.answer.prompt) + 1, len(text) - 2):
            naive = NaiveDrafter(tensors, config)
            for position in range(known - 1):
                hidden = naive.weights["fc.weight"] @ batch.states[position]
                output = naive.step(embedding[text[position + 1]], hidden, position)
            chains += 1
            for step in range(3):
                token = int(d2t[naive.logits(output).argmax()])
                if token != text[known + step]:
                    break
                accepted += 1
                output = naive.step(embedding[token], output, known - 1 + step)
    assert chains == report.overall.chains
    # The file's weights are rounded, so a draft may differ here and there.
    assert accepted / chains == pytest.approx(report.overall.mean_accepted, abs=0.1)


def test_an_interrupted_training_ends_with_the_same_weights(model: Path, prepared: Path, tmp_path: Path) -> None:
    work = shutil.copytree(prepared, tmp_path / "work")
    with pytest.raises(KeyboardInterrupt):
        make_training(model, work, StoppingListener(after=5)).train(tmp_path / "cut", TRAINING, 3, "")
    counting = CountingListener()
    make_training(model, work, counting).train(tmp_path / "resumed", TRAINING, 3, "")
    assert counting.reached[0] == 5
    (work / "checkpoints/eagle3-64.pt").unlink()
    make_training(model, work, SilentListener()).train(tmp_path / "whole", TRAINING, 3, "")
    resumed, whole = (load_file(tmp_path / name / "model.safetensors") for name in ("resumed", "whole"))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)

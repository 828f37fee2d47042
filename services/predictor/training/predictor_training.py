"""All of ``forerun train predictor`` after its options are read: six steps, each resumable, each on disk when it ends.

prompts-*.jsonl, answers/   ← shared with every training for the same target
judged/                     ← prompts of held-out and unseen sets, and the target's answers to them
states/                     ← the target, whole sequences at once
checkpoints/                ← training
the out folder              ← weights, configuration, report, model card, provenance
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from services.common.target_fingerprint import target_fingerprint
from services.common.training.answer_shards import Answer, AnswerShards
from services.common.training.answers import AnswerOptions
from services.common.training.progress import Count, Listener
from services.common.training.prompt import Prompt, read_prompts, stable_hash, write_prompts
from services.common.training.provenance import Part, Provenance, config_sha256
from services.common.training.states import compute_states
from services.common.training.target_answers import PromptChoice, StartTarget, TargetAnswers
from services.common.training.target_model import target_config
from services.common.training.wheels import Download, fetch_wheels
from services.predictor.model import Floats, RemainingLengthModel, features, save_model
from services.predictor.model_config import THRESHOLDS, RemainingLengthConfig
from services.predictor.training.card import write_card
from services.predictor.training.cut_offs import NEVER
from services.predictor.training.evaluation import (
    HAZARD,
    MODEL,
    PROGRESS,
    Predict,
    Report,
    constant_hazard,
    evaluate,
    progress_inputs,
)
from services.predictor.training.evaluation_prompts import evaluation_prompts
from services.predictor.training.examples import Examples, read_examples
from services.predictor.training.trainer import Labelled, Trainer, TrainOptions

VALIDATION_PERCENT = 12
"""Of the training answers choose the epoch and the cut-offs."""
PROGRESS_WIDTH = 64
"""Of the baseline's layers: it has two inputs."""


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """What to make."""

    model: Path
    name: str
    """Of the model; also of its work folder."""
    layer: int
    """Number of layers before the stream that is read."""
    prompts: int
    prompt_seed: int
    answering: AnswerOptions
    answer_tokens: int
    """Generate until the answers hold so many tokens, or the prompts are used up."""
    judged_prompts: int
    """Of each data set that the predictor is judged on."""
    precision: float
    """At which the cut-offs are set."""


class PredictorTraining:
    """The steps, in order. ``work`` holds what lies between them and can be deleted afterwards."""

    def __init__(self, options: PredictorOptions, start_target: StartTarget, work: Path, listen: Listener) -> None:
        self._options = options
        self._work = work
        self._listen = listen
        choice = PromptChoice(options.prompts, options.prompt_seed)
        self._target = TargetAnswers(options.model, choice, options.answering, start_target, work)
        self._judged = AnswerShards(work / "judged")
        self._judged_path = work / f"judged-{options.judged_prompts}-{options.prompt_seed}.jsonl"

    def prepare_prompts(self, wheels: Path, download: Download) -> None:
        """Step 1: the prompts to learn from and those to be judged on, unless they are there."""
        self._target.prepare_prompts(wheels, download, self._listen)
        if not self._judged_path.is_file():
            options = self._options
            judged = evaluation_prompts(fetch_wheels(wheels, download), options.judged_prompts, options.prompt_seed)
            learnt_from = {prompt.id for prompt in self._target.prompts}
            write_prompts(self._judged_path, (each for each in judged if each.id not in learnt_from))

    def generate_answers(self) -> None:
        """Steps 2 and 3: lets the target answer both."""
        self._target.generate(self._options.answer_tokens, self._listen)
        prompts = read_prompts(self._judged_path)
        # Other choices of prompts may have left answers there, too.
        answered = len({prompt.id for prompt in prompts} & {answer.prompt_id for answer in self._judged})
        if answered == len(prompts):
            return
        self._listen.step("answers to be judged on", len(prompts))
        count = Count(self._listen, "answers", answered)

        def on_answer(_answer: Answer) -> bool:
            count.add(1)
            return False

        self._target.answer(prompts, self._judged, on_answer)

    def compute_states(self) -> None:
        """Step 4: the residual streams."""
        shards = (self._target.shards, self._judged)
        self._listen.step("states", sum(each.positions for some in shards for each in some))
        options, count = self._options, Count(self._listen, "tokens")
        compute_states(options.model, self._shard_paths(), self._work / "states", [options.layer], count.add)

    def train(self, out: Path, training: TrainOptions, command: str) -> Report:
        """Steps 5 and 6: trains the model and writes it with its report into ``out``.

        Args:
            command: the command line, for people who want to make it again.
        """
        examples = self._examples(self._target.shards.paths(), self._target.prompts, split="train")
        validating = {each for each in examples.prompt_ids if _validates(each)}
        train, validation = examples.of(set(examples.prompt_ids) - validating), examples.of(validating)
        checkpoint = self._work / "checkpoints" / f"predictor-{self._options.layer:02d}.pt"
        mean, scale = _standard(train)
        trainer = Trainer(train.states.shape[1] + 1, len(THRESHOLDS), training, checkpoint)
        self._listen.step("train", training.epochs)
        trainer.run(
            _labelled(train, features(train.states, train.answer_tokens, mean, scale)),
            _labelled(validation, features(validation.states, validation.answer_tokens, mean, scale)),
            lambda epoch, loss: self._listen.reach(epoch, f"validation loss {loss:.4f}"),
        )
        tensors = {"mean": mean, "scale": scale, **trainer.tensors()}
        config = self._config(training)
        report = self._judge(RemainingLengthModel(config, tensors), train, validation)
        config = config.model_copy(update={"cut_offs": report.cut_offs[MODEL]})
        save_model(out, config, tensors)
        provenance = self._provenance(training, command)
        provenance.write(out)
        write_card(out, config, report, provenance)
        return report

    def _judge(self, model: RemainingLengthModel, train: Examples, validation: Examples) -> Report:
        limit = self._options.answering.max_answer_tokens
        baseline = Trainer(
            2,
            len(THRESHOLDS),
            TrainOptions(width=PROGRESS_WIDTH, dropout=0.0, learning_rate=1e-3, weight_decay=0.05),
            None,
        )
        baseline.run(
            _labelled(train, progress_inputs(train, limit)),
            _labelled(validation, progress_inputs(validation, limit)),
            lambda _epoch, _loss: None,
        )
        predictors: dict[str, Predict] = {
            MODEL: lambda data: model.chances(data.states, data.answer_tokens),
            HAZARD: constant_hazard(train, THRESHOLDS),
            PROGRESS: lambda data: torch.sigmoid(baseline.logits(progress_inputs(data, limit))).numpy(),
        }
        prompts = read_prompts(self._judged_path)
        judged = self._examples(self._judged.paths(), prompts, split="held_out")
        sets = {
            name: judged.of({prompt.id for prompt in prompts if prompt.workload == name})
            for name in dict.fromkeys(prompt.workload for prompt in prompts)
        }
        return evaluate(predictors, validation, sets, THRESHOLDS, self._options.precision)

    def _examples(self, shards: Sequence[Path], prompts: Sequence[Prompt], split: str) -> Examples:
        options = self._options
        wanted = {prompt.id for prompt in prompts if prompt.split == split}
        stop = target_config(options.model).eos_token_id
        stop_ids = stop if isinstance(stop, list) else [stop]
        states = self._work / "states"
        return read_examples(shards, states, options.layer, wanted, options.answering.max_answer_tokens, stop_ids)

    def _shard_paths(self) -> list[Path]:
        return [*self._target.shards.paths(), *self._judged.paths()]

    def _config(self, training: TrainOptions) -> RemainingLengthConfig:
        """Without cut-offs yet, which are set on what it says."""
        options, hf_config = self._options, target_config(self._options.model)
        return RemainingLengthConfig(
            target=options.name,
            target_fingerprint=target_fingerprint(str(options.model), hf_config),
            layer=options.layer,
            hidden_size=hf_config.hidden_size,
            width=training.width,
            cut_offs=(NEVER,) * len(THRESHOLDS),
            precision=options.precision,
        )

    def _provenance(self, training: TrainOptions, command: str) -> Provenance:
        prompts = {prompt.id: prompt for prompt in self._target.prompts if prompt.split == "train"}
        judged = {prompt.id: prompt for prompt in read_prompts(self._judged_path)}
        return Provenance(
            command=command,
            model_config_sha256=config_sha256(self._options.model),
            prompt_seed=self._options.prompt_seed,
            answers=self._options.answering,
            training=training,
            train=Part.of((prompts[each.prompt_id], each) for each in self._target.shards if each.prompt_id in prompts),
            held_out=Part.of((judged[each.prompt_id], each) for each in self._judged if each.prompt_id in judged),
        )


def _validates(prompt_id: str) -> bool:
    return stable_hash(f"validation {prompt_id}") % 100 < VALIDATION_PERCENT


def _standard(train: Examples) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each coordinate; [hidden] both."""
    states = train.states.astype(np.float32)
    return states.mean(axis=0), states.std(axis=0) + 1e-4


def _labelled(data: Examples, inputs: Floats) -> Labelled:
    return Labelled(inputs, *data.labels(THRESHOLDS))

"""The first four steps of training any drafter, each resumable, each on disk when it ends.

prompts-*.jsonl ← packaged texts and generators
answers/        ← the target, plain vLLM
prompts/        ← prompts alone, which cost no decoding
states/         ← the target, whole sequences at once

All lie in the target's work folder, so that one drafter finds there what another one's training left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from services.common.training.answer_shards import AnswerShards
from services.common.training.answers import AnswerOptions
from services.common.training.chat_rendering import prompt_renderer
from services.common.training.progress import Count, Listener
from services.common.training.prompts_alone import add_prompts_alone
from services.common.training.provenance import Part, Provenance, config_sha256
from services.common.training.states import compute_states
from services.common.training.step_trainer import StepTrainer, Student, TrainOptions, plan
from services.common.training.target_answers import PromptChoice, StartTarget, TargetAnswers
from services.common.training.target_model import target_config
from services.common.training.training_data import TrainingData
from services.common.training.wheels import Download


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Of which target a drafter is trained, and on what."""

    model: Path
    name: str
    """Of the model; also of its work folder."""
    prompts: int
    prompt_seed: int
    answering: AnswerOptions
    answer_tokens: int
    """Generate until the answers hold so many tokens, or the prompts are used up."""
    prompt_tokens: int
    """Of prompts that are not answered, to train on as well."""


class DrafterTraining:
    """The steps, in order. ``work`` holds what lies between them and can be deleted afterwards."""

    def __init__(
        self, options: DataOptions, layers: Sequence[int], start_target: StartTarget, work: Path, listen: Listener
    ) -> None:
        """``layers``: numbers of layers before the streams that are read, beside the last one."""
        self._data_options = options
        self._layers = layers
        self._work = work
        self._listen = listen
        choice = PromptChoice(options.prompts, options.prompt_seed)
        self._target = TargetAnswers(options.model, choice, options.answering, start_target, work)
        self._alone = AnswerShards(work / "prompts")
        self._states = work / "states"

    def prepare_prompts(self, wheels: Path, download: Download) -> None:
        """Step 1: builds the prompt set, unless it is there."""
        self._target.prepare_prompts(wheels, download, self._listen)

    def generate_answers(self) -> None:
        """Step 2: lets the target answer until there are tokens enough."""
        self._target.generate(self._data_options.answer_tokens, self._listen)

    def take_prompts_alone(self) -> None:
        """Step 3: prompts of the training part that have no answer, from the far end of their list, until enough."""
        options = self._data_options
        answered = {answer.prompt_id for answer in self._target.shards}
        add_prompts_alone(
            [each for each in reversed(self._target.prompts) if each.id not in answered],
            prompt_renderer(options.model, options.answering.max_prompt_tokens),
            self._alone,
            options.prompt_tokens,
        )

    def compute_states(self) -> None:
        """Step 4: the residual streams that are read, and the last ones."""
        self._listen.step(
            "states", sum(each.positions for shards in (self._target.shards, self._alone) for each in shards)
        )
        count = Count(self._listen, "tokens")
        layers = [*self._layers, self._last_layer]
        compute_states(self._data_options.model, self._shard_paths(), self._states, layers, count.add)

    def _data(self, layers: Sequence[int]) -> TrainingData:
        prompts = {prompt.id: prompt for prompt in self._target.prompts}
        return TrainingData(self._shard_paths(), self._states, layers, self._last_layer, prompts)

    def _teach(self, title: str, student: Student, data: TrainingData, training: TrainOptions, checkpoint: str) -> None:
        """Trains ``student``; its state is kept in a file named ``checkpoint``."""
        batches = plan(data, training)
        trainer = StepTrainer(student, training, self._work / "checkpoints" / checkpoint)
        self._listen.step(title, len(batches))
        trainer.run(batches, lambda done: self._listen.reach(done.step, f"loss {done.loss:.3f}"))

    def _shard_paths(self) -> list[Path]:
        return [*self._target.shards.paths(), *self._alone.paths()]

    @cached_property
    def _last_layer(self) -> int:
        return int(target_config(self._data_options.model).num_hidden_layers)

    def _provenance(self, data: TrainingData, training: TrainOptions, command: str) -> Provenance:
        return Provenance(
            command=command,
            model_config_sha256=config_sha256(self._data_options.model),
            prompt_seed=self._data_options.prompt_seed,
            answers=self._data_options.answering,
            training=training,
            train=Part.of((each.prompt, each.answer) for each in data.part("train")),
            held_out=Part.of((each.prompt, each.answer) for each in data.part("held_out")),
        )

"""All of ``forerun train adapter`` after its options are read: six steps, each resumable, each on disk when it ends.

prompts-*.jsonl ← packaged texts and generators
answers/        ← the target, plain vLLM
prompts/        ← prompts alone, which cost no decoding
states/         ← the target, whole sequences at once
checkpoints/    ← training, one for each exit and draft vocabulary
the out folder  ← weights, configuration, report, model card, provenance
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from services.common.target_weights import TargetWeights
from services.common.training.answer_shards import AnswerShards
from services.common.training.answers import AnswerOptions
from services.common.training.chat_rendering import prompt_renderer
from services.common.training.progress import Count, Listener
from services.common.training.provenance import Part, Provenance, config_sha256
from services.common.training.states import compute_states
from services.common.training.target_answers import PromptChoice, StartTarget, TargetAnswers
from services.common.training.target_model import target_config
from services.common.training.wheels import Download
from services.workers.draft_adapter.config import DraftAdapterConfig
from services.workers.draft_adapter.files import D2T, save_adapter
from services.workers.draft_adapter.torch_adapter import DraftHead
from services.workers.training.agreement import measure_agreement
from services.workers.training.card import Reports, write_card
from services.workers.training.draft_vocabulary import choose_draft_vocabulary
from services.workers.training.evaluation import evaluate, measure_lookups, with_lookups
from services.workers.training.prompts_alone import add_prompts_alone
from services.workers.training.trainer import Trainer, TrainOptions, plan
from services.workers.training.training_data import TrainingData


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """What to make."""

    model: Path
    name: str
    """Of the model; also of its work folder."""
    exit_layers: Sequence[int]
    draft_vocab_size: int
    input_residual: bool
    prompts: int
    prompt_seed: int
    answering: AnswerOptions
    answer_tokens: int
    """Generate until the answers hold so many tokens, or the prompts are used up."""
    prompt_tokens: int
    """Of prompts that are not answered, to train on as well."""


class AdapterTraining:
    """The steps, in order. ``work`` holds what lies between them and can be deleted afterwards."""

    def __init__(self, options: AdapterOptions, start_target: StartTarget, work: Path, listen: Listener) -> None:
        self._options = options
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
        self._target.generate(self._options.answer_tokens, self._listen)

    def take_prompts_alone(self) -> None:
        """Step 3: prompts of the training part that have no answer, from the far end of their list, until enough."""
        options = self._options
        answered = {answer.prompt_id for answer in self._target.shards}
        add_prompts_alone(
            [each for each in reversed(self._target.prompts) if each.id not in answered],
            prompt_renderer(options.model, options.answering.max_prompt_tokens),
            self._alone,
            options.prompt_tokens,
        )

    def compute_states(self) -> None:
        """Step 4: the residual streams at the exits, and the last ones."""
        self._listen.step(
            "states", sum(each.positions for shards in (self._target.shards, self._alone) for each in shards)
        )
        count = Count(self._listen, "tokens")
        layers = [*self._options.exit_layers, self._last_layer]
        compute_states(self._options.model, self._shard_paths(), self._states, layers, count.add)

    def train(self, exit_layer: int, out: Path, training: TrainOptions, command: str) -> Reports:
        """Steps 5 and 6: trains the adapter of one exit and writes it with its report into ``out``.

        Args:
            command: the command line, for people who want to make it again.
        """
        options = self._options
        data = self._data(exit_layer)
        config = DraftAdapterConfig.for_target(
            options.name,
            target_config(options.model),
            exit_layer=exit_layer,
            input_residual=options.input_residual,
            draft_vocab_size=options.draft_vocab_size,
            lookup_agreement=measure_lookups(data.part("train")),
        )
        in_training = (sequence.answer for sequence in data.part("train"))
        d2t = choose_draft_vocabulary(in_training, config.draft_vocab_size, config.vocab_size)
        target = TargetWeights(str(options.model))
        head = DraftHead(target.final_norm().float(), target.head_rows(d2t).float(), config.rms_norm_eps)
        checkpoint = self._work / "checkpoints" / f"exit-{exit_layer:02d}-{options.draft_vocab_size}.pt"
        trainer, batches = Trainer(config, head, d2t, training, checkpoint), plan(data, training)
        self._listen.step(f"train exit {exit_layer}", len(batches))
        trainer.run(batches, lambda done: self._listen.reach(done.step, f"loss {done.loss:.3f}"))
        held_out = data.part("held_out")
        alone = evaluate(trainer.adapter, head, d2t, held_out)
        reports = Reports(
            served=measure_agreement(with_lookups(alone, held_out, config.lookup_agreement)),
            adapter_alone=measure_agreement(alone),
        )
        save_adapter(out, config, {**trainer.adapter.state_dict(), D2T: d2t})
        made = self._provenance(data, training, command)
        made.write(out)
        write_card(out, config, reports, made)
        return reports

    def _shard_paths(self) -> list[Path]:
        return [*self._target.shards.paths(), *self._alone.paths()]

    @cached_property
    def _last_layer(self) -> int:
        return int(target_config(self._options.model).num_hidden_layers)

    def _data(self, exit_layer: int) -> TrainingData:
        prompts = {prompt.id: prompt for prompt in self._target.prompts}
        return TrainingData(self._shard_paths(), self._states, exit_layer, self._last_layer, prompts)

    def _provenance(self, data: TrainingData, training: TrainOptions, command: str) -> Provenance:
        return Provenance(
            command=command,
            model_config_sha256=config_sha256(self._options.model),
            prompt_seed=self._options.prompt_seed,
            answers=self._options.answering,
            training=training,
            train=Part.of((each.prompt, each.answer) for each in data.part("train")),
            held_out=Part.of((each.prompt, each.answer) for each in data.part("held_out")),
        )

"""All of ``forerun train adapter`` after its options are read: the steps of every drafter, then its own two.

checkpoints/    ← training, one for each exit and draft vocabulary
the out folder  ← weights, configuration, report, model card, provenance
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.common.target_weights import TargetWeights
from services.common.training.progress import Listener
from services.common.training.step_trainer import TrainOptions
from services.common.training.target_answers import StartTarget
from services.common.training.target_model import target_config
from services.workers.draft_adapter.config import DraftAdapterConfig
from services.workers.draft_adapter.files import D2T, save_adapter
from services.workers.draft_adapter.torch_adapter import DraftHead
from services.workers.training.adapter.agreement import measure_agreement
from services.workers.training.adapter.card import Reports, write_card
from services.workers.training.adapter.evaluation import evaluate, measure_lookups, with_lookups
from services.workers.training.adapter.student import AdapterStudent
from services.workers.training.draft_vocabulary import choose_draft_vocabulary
from services.workers.training.drafter_training import DataOptions, DrafterTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions(DataOptions):
    """What to make."""

    exit_layers: Sequence[int]
    draft_vocab_size: int
    input_residual: bool


class AdapterTraining(DrafterTraining):
    """The steps, in order. ``work`` holds what lies between them and can be deleted afterwards."""

    def __init__(self, options: AdapterOptions, start_target: StartTarget, work: Path, listen: Listener) -> None:
        super().__init__(options, options.exit_layers, start_target, work, listen)
        self._options = options

    def train(self, exit_layer: int, out: Path, training: TrainOptions, command: str) -> Reports:
        """Steps 5 and 6: trains the adapter of one exit and writes it with its report into ``out``.

        Args:
            command: the command line, for people who want to make it again.
        """
        options = self._options
        data = self._data([exit_layer])
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
        student = AdapterStudent(config, head, d2t, training)
        checkpoint = f"exit-{exit_layer:02d}-{options.draft_vocab_size}.pt"
        self._teach(f"train exit {exit_layer}", student, data, training, checkpoint)
        held_out = data.part("held_out")
        alone = evaluate(student.module, head, d2t, held_out)
        reports = Reports(
            served=measure_agreement(with_lookups(alone, held_out, config.lookup_agreement)),
            adapter_alone=measure_agreement(alone),
        )
        save_adapter(out, config, {**student.module.state_dict(), D2T: d2t})
        made = self._provenance(data, training, command)
        made.write(out)
        write_card(out, config, reports, made)
        return reports

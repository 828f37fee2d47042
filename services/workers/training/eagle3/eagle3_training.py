"""All of ``forerun train eagle3`` after its options are read: the steps of every drafter, then its own two.

checkpoints/    ← training, one for each draft vocabulary
the out folder  ← weights, configuration, report, model card, provenance
"""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import LlamaConfig

from services.common.target_weights import TargetWeights
from services.common.training.progress import Listener
from services.common.training.target_answers import StartTarget
from services.common.training.target_model import target_config
from services.common.training.training_data import TrainingData
from services.workers.training.chain_card import Drafter, write_chain_card
from services.workers.training.chains import ChainReport, measure_chains
from services.workers.training.draft_vocabulary import choose_draft_vocabulary, coverage
from services.workers.training.drafter_training import DataOptions, DrafterTraining
from services.workers.training.eagle3.config import aux_layers, head_config
from services.workers.training.eagle3.files import save_head
from services.workers.training.eagle3.student import Eagle3Student, Eagle3TrainOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Options(DataOptions):
    """What to make."""

    draft_vocab_size: int


class Eagle3Training(DrafterTraining):
    """The steps, in order. ``work`` holds what lies between them and can be deleted afterwards."""

    def __init__(self, options: Eagle3Options, start_target: StartTarget, work: Path, listen: Listener) -> None:
        """Raises ``ConfigError`` for a target of one layer."""
        self._hf_config = target_config(options.model)
        self._aux_layers = aux_layers(self._hf_config.num_hidden_layers)
        super().__init__(options, self._aux_layers, start_target, work, listen)
        self._options = options

    def train(self, out: Path, training: Eagle3TrainOptions, depth: int, command: str) -> ChainReport:
        """Steps 5 and 6: trains the head and writes it with its report into ``out``.

        Args:
            out: folder, which need not be there.
            training: how.
            depth: drafts of a chain in the report.
            command: the command line, for people who want to make it again.
        """
        options = self._options
        data = self._data(self._aux_layers)
        size = min(options.draft_vocab_size, self._hf_config.vocab_size)
        in_training = (sequence.answer for sequence in data.part("train"))
        d2t = choose_draft_vocabulary(in_training, size, self._hf_config.vocab_size)
        config = head_config(self._hf_config, self._aux_layers, size)
        student = Eagle3Student(config, TargetWeights(str(options.model)), d2t, training)
        self._teach("train eagle3", student, data, training, f"eagle3-{size}.pt")
        report = measure_chains(student.draft, data.part("held_out"), depth)
        save_head(out, config, student.module, d2t)
        made = self._provenance(data, training, command)
        made.write(out)
        write_chain_card(out, self._described(config, data, d2t), report, made)
        return report

    def _described(self, config: LlamaConfig, data: TrainingData, d2t: Tensor) -> Drafter:
        held_out = coverage((each.answer for each in data.part("held_out")), d2t)
        layers = ", ".join(map(str, self._aux_layers))
        return Drafter(
            title=f"EAGLE-3 head for {self._options.name}",
            about=(
                f"Drafts from the target's residual streams after {layers} layers and from its own outputs: one "
                f"decoder layer and an LM head over {config.draft_vocab_size:,} of {config.vocab_size:,} tokens, which "
                f"are {held_out:.1%} of the held-out answers' tokens. Weights in bfloat16 under the names of published "
                f"EAGLE-3 heads (`{config.architectures[0]}`); the embedding is the target's and not in the file. "
                "Licence: Apache-2.0; the LM head started as rows of the target's, where its licence holds."
            ),
            method="eagle3",
            limits=(
                "Drafts decide how fast answers come, never what they say: each one is verified by the target. The "
                "training prompts are English; elsewhere fewer drafts are accepted. The head fits the very weights it "
                "was trained with. vLLM shares the target's embedding with it on one pipeline stage only."
            ),
            facts={"draft_vocabulary_coverage": held_out, "aux_layers": list(self._aux_layers)},
        )

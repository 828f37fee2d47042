"""All of ``forerun train draft`` after its options are read: the steps of every drafter, then its own two.

checkpoints/    ← training, one for each number of layers
the out folder  ← an ordinary checkpoint, report, model card, provenance
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.training.progress import Listener
from services.common.training.step_trainer import TrainOptions
from services.common.training.target_answers import StartTarget
from services.workers.training.chain_card import Drafter, write_chain_card
from services.workers.training.chains import ChainReport, measure_chains
from services.workers.training.draft_model.cut import save_draft, spread_layers
from services.workers.training.draft_model.student import DraftModelStudent
from services.workers.training.drafter_training import DataOptions, DrafterTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelOptions(DataOptions):
    """What to make."""

    layers: int
    """Of the draft."""


class DraftModelTraining(DrafterTraining):
    """The steps, in order. ``work`` holds what lies between them and can be deleted afterwards."""

    def __init__(self, options: DraftModelOptions, start_target: StartTarget, work: Path, listen: Listener) -> None:
        """Raises ``ConfigError`` when the target has fewer layers than the draft shall have."""
        super().__init__(options, (), start_target, work, listen)
        self._options = options
        self._chosen = spread_layers(self._last_layer, options.layers)

    def train(self, out: Path, training: TrainOptions, depth: int, command: str) -> ChainReport:
        """Steps 5 and 6: trains the draft and writes it with its report into ``out``.

        Args:
            out: folder, which need not be there.
            training: how.
            depth: drafts of a chain in the report.
            command: the command line, for people who want to make it again.
        """
        options = self._options
        data = self._data(())
        student = DraftModelStudent(options.model, self._chosen, training)
        self._teach("train draft", student, data, training, f"draft-{options.layers}.pt")
        report = measure_chains(student.draft, data.part("held_out"), depth)
        save_draft(out, student.module, options.model)
        made = self._provenance(data, training, command)
        made.write(out)
        write_chain_card(out, self._described(student.module), report, made)
        return report

    def _described(self, draft: Any) -> Drafter:
        embedding = draft.get_input_embeddings().weight
        weights = sum(each.numel() for each in draft.parameters())
        return Drafter(
            title=f"Draft model of {self._options.layers} layers for {self._options.name}",
            about=(
                f"A {draft.config.model_type} checkpoint with the target's vocabulary, tokenizer, embedding and LM "
                f"head. Its layers started as the target's {', '.join(map(str, self._chosen))} (counted from 0). "
                f"{weights / 1e6:.1f} million weights in bfloat16, {2 * weights / 1e6:.0f} MB, of which "
                f"{2 * embedding.numel() / 1e6:.0f} MB are the embedding: vLLM does not share it with a draft "
                "model, so it is in the file. Licence: the target's, whose weights these are in part."
            ),
            method="draft_model",
            limits=(
                "Drafts decide how fast answers come, never what they say: each one is verified by the target. The "
                "training prompts are English; elsewhere fewer drafts are accepted. On its own the model writes worse "
                "text than its target."
            ),
            facts={"target_layers": list(self._chosen), "weights": weights},
        )

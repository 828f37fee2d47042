"""Drafting the next token on the first stage, from the hidden states after the adapter's exit layer.

Relies on (vLLM 0.32, model runner V1): a step's forward context holds the attention metadata of every registered
layer, the draft layer's among them; ``input_batch`` lists the step's requests in the order of their tokens.
"""

from pathlib import Path
from typing import Any

import torch
from forerun.stage.v1 import service_pb2 as pb
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.forward_context import override_forward_context
from vllm.v1.core.sched.output import SchedulerOutput

from services.common.target_weights import TargetWeights
from services.workers.context_lookup import look_up
from services.workers.draft_adapter.files import load_adapter
from services.workers.kept_drafts import KeptDrafts
from services.workers.vllm_draft_layers import DraftLayers
from services.workers.vllm_shared_noise import TokenSeeds
from services.workers.vllm_stream_tap import StreamTap, rows_of


class Drafter:
    """Drafts the next token of each request from the first stage's hidden states."""

    def __init__(self, config: VllmConfig, runner: Any, folder: Path, generation: int, tap: StreamTap) -> None:
        """Builds the layers. Raises ``ConfigError`` when the adapter does not fit the model.

        Args:
            config: vLLM's.
            runner: vLLM's.
            folder: the adapter's.
            generation: of the scheduler.
            tap: with the stream after the adapter's exit.
        """
        adapter, tensors = load_adapter(folder)
        adapter.check_target(config.model_config.hf_config)
        self._runner = runner
        self._tap = tap
        self._exit_layer = adapter.exit_layer
        self._seeds = TokenSeeds(runner, generation)
        target = TargetWeights(config.model_config.model)
        with set_current_vllm_config(config), runner.device:
            self._layers = DraftLayers(adapter, config).to(config.model_config.dtype).eval()
            self._layers.load(tensors, target.final_norm(), target.head_rows(tensors["d2t"]))
        self._kept = KeptDrafts()
        self._lookup_agreement = adapter.lookup_agreement

    def enter(self, plan: SchedulerOutput, drafted: set[str]) -> dict[str, int]:
        """The drafts that become inputs of a step, by request; see ``KeptDrafts``."""
        return self._kept.enter(plan, drafted)

    def draft(self, plan: SchedulerOutput, speculation: pb.Speculation) -> list[pb.Draft]:
        """Runs the adapter over the step that the model has just run.

        Args:
            plan: the step.
            speculation: the requests to draft for, each with all of its tokens so far in this step or before, and
                the fraction of the drafts that is dropped.

        Returns:
            One draft for each wanted request of the step.
        """
        with torch.inference_mode(), override_forward_context(self._tap.context):
            stream = self._layers(self._tap.positions, self._tap.streams[self._exit_layer])
            ids, rows, ends = rows_of(self._runner.input_batch, plan, set(speculation.draft_request_ids))
            if not ids:
                return []
            logits = self._layers.logits(stream[ends])
            tokens = self._choose(plan, logits, rows)
            confidence = torch.softmax(logits, dim=-1).amax(dim=-1)
        drafts = [
            pb.Draft(request_id=id_, token_id=token, confidence=probability)
            for id_, token, probability in zip(ids, tokens.tolist(), confidence.tolist(), strict=True)
        ]
        if speculation.context_lookup and self._lookup_agreement:
            self._look_up(plan, drafts, rows)
        self._kept.keep(drafts, speculation.drop_fraction)
        return drafts

    def _look_up(self, plan: SchedulerOutput, drafts: list[pb.Draft], rows: list[int]) -> None:
        """Replaces drafts of greedy requests by what their own texts say, where that is likelier to be right."""
        batch = self._runner.input_batch
        for draft, row in zip(drafts, rows, strict=True):
            if batch.temperature_cpu[row] > 0:
                continue
            length = batch.num_computed_tokens_cpu[row] + plan.num_scheduled_tokens[draft.request_id]
            found = look_up(batch.token_ids_cpu[row, :length])
            if found is not None and (agreement := found.agreement(self._lookup_agreement)) > draft.confidence:
                draft.token_id, draft.confidence = found.token_id, agreement

    def _choose(self, plan: SchedulerOutput, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """The drafted token ids, [rows]: the likeliest, or drawn with the noise that the sampler will use."""
        batch = self._runner.input_batch
        chosen = self._layers.d2t[logits.argmax(dim=-1)]
        drawn = [index for index, row in enumerate(rows) if batch.temperature_cpu[row] > 0]
        if not drawn:
            return chosen
        temperature = torch.tensor([float(batch.temperature_cpu[rows[index]]) for index in drawn]).unsqueeze(-1)
        scores = logits.new_full((len(drawn), batch.vocab_size), float("-inf"))
        scores[:, self._layers.d2t] = logits[drawn] / temperature.to(logits.device)
        seeds = [self._seeds.of(plan, batch.req_ids[rows[index]]) for index in drawn]
        chosen[drawn] = draw(scores, seeds)
        return chosen


def draw(scores: torch.Tensor, seeds: list[int]) -> torch.Tensor:
    """What vLLM's sampler draws from the same scores with one freshly seeded generator a row.

    Args:
        scores: [rows, vocabulary], float32; minus infinity where a token cannot be drawn.
        seeds: one a row.

    Returns:
        Token ids, [rows].
    """
    generators = [torch.Generator(device=scores.device).manual_seed(seed) for seed in seeds]
    if scores.device.type == "cpu":
        drawn = torch.cat([torch.randint(0, 2**31, (1,), generator=generator) for generator in generators])
        chosen: torch.Tensor = torch.ops._C.fused_gumbel_argmax(scores, drawn)
        return chosen
    probabilities = torch.softmax(scores, dim=-1)
    noise = torch.empty_like(probabilities)
    for row, generator in zip(noise, generators, strict=True):
        row.exponential_(generator=generator)
    return probabilities.div_(noise).argmax(dim=-1)

"""vLLM's neural drafters (EAGLE-3, draft model), drafting when they are told to instead of after every step.

vLLM drafts as a step ends, before the scheduler has seen its tokens, for all requests and whether or not somebody wants
it. Here a step only hands the drafter what the target has computed; ``draft`` runs it when the scheduler has seen the
tokens and knows how deep. Steps after which nobody wants drafts cost a copy: their tokens stay unread, and are read in
one pass with the next ones, so that the drafter's keys and values are right again whenever it drafts.

A KV block that is full is read at once, but for the newest token, since other requests may find it through the prefix
cache, and the drafter's part of it must be there too. (Where a request ends with a block, that block lacks its last
token; whoever finds it gets slightly worse drafts, never other text.)

Relies on (vLLM 0.32): ``runner.drafter``, made before weights are loaded; ``propose`` with the target's tokens,
positions and hidden states by request, in the order of ``runner.input_batch``, which with no tokens asked for reads
them and stops.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.eagle import EagleProposer


@dataclass(frozen=True, slots=True)
class Unread:
    """Neighbouring tokens of one request that the drafter has not read yet."""

    first: int
    """Position of the first one."""
    tokens: Tensor
    """[tokens] int32."""
    hidden: Tensor | None
    """[tokens, hidden size or a multiple], the target's states; None for drafters that read none."""

    @property
    def end(self) -> int:
        """Position behind the last one."""
        return self.first + len(self.tokens)

    def followed_by(self, later: "Unread") -> "Unread":
        """Both. What lies at or behind the later one's beginning had been rolled back, and is dropped here."""
        kept = later.first - self.first
        if kept <= 0 or self.end < later.first:
            return later
        hidden = None
        if self.hidden is not None and later.hidden is not None:
            hidden = torch.cat([self.hidden[:kept], later.hidden])
        return Unread(self.first, torch.cat([self.tokens[:kept], later.tokens]), hidden)

    def without_newest(self) -> tuple["Unread", "Unread"]:
        """All but the newest token, and that one; there are at least two."""
        hidden = (None, None) if self.hidden is None else (self.hidden[:-1], self.hidden[-1:])
        older = Unread(self.first, self.tokens[:-1], hidden[0])
        return older, Unread(older.end, self.tokens[-1:], hidden[1])

    def ends_block(self, block_size: int) -> bool:
        """Whether one of the tokens is a block's last one."""
        return self.end // block_size > self.first // block_size


@dataclass(frozen=True, slots=True)
class _Step:
    """The step that drafts would follow."""

    request_ids: list[str]
    next_tokens: Tensor
    """[requests], sampled."""
    block_table: Tensor
    """[requests, blocks]."""
    sampling: Any


class _Lazy:
    """Goes before one of vLLM's proposers."""

    # Of the proposer:
    device: torch.device
    block_size: int
    max_num_tokens: int
    pass_hidden_states_to_model: bool

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner: Any) -> None:
        super().__init__(vllm_config, device, runner)  # type: ignore[call-arg]
        self._runner = runner
        self._unread: dict[str, Unread] = {}
        self._step: _Step | None = None

    def propose(  # noqa: PLR0913  (vLLM's signature)
        self,
        num_speculative_tokens: int,  # noqa: ARG002  (how deep is said later)
        target_token_ids: Tensor,
        target_positions: Tensor,  # noqa: ARG002  (the books have them without asking the device)
        target_hidden_states: Tensor,
        next_token_ids: Tensor,
        token_indices_to_sample: Tensor | None,  # noqa: ARG002
        common_attn_metadata: CommonAttentionMetadata,
        sampling_metadata: Any,
        mm_embed_inputs: Any = None,  # noqa: ARG002
        num_rejected_tokens_gpu: Tensor | None = None,
        slot_mappings: Any = None,  # noqa: ARG002
    ) -> Tensor:
        """Takes what the step computed, and drafts nothing: [requests, 0]."""
        batch = self._runner.input_batch
        ids = list(batch.req_ids)
        self._step = step = _Step(ids, next_token_ids, common_attn_metadata.block_table_tensor, sampling_metadata)
        starts = common_attn_metadata.query_start_loc_cpu.tolist()
        self._make_room(step, target_token_ids, starts)
        rejected = [0] * len(ids) if num_rejected_tokens_gpu is None else num_rejected_tokens_gpu.tolist()
        for row, request_id in enumerate(ids):
            computed = slice(starts[row], starts[row + 1] - rejected[row])
            hidden = target_hidden_states[computed].clone() if self.pass_hidden_states_to_model else None
            new = Unread(int(batch.num_computed_tokens_cpu[row]), target_token_ids[computed].clone(), hidden)
            old = self._unread.get(request_id)
            self._unread[request_id] = new if old is None else old.followed_by(new)
        self._read_full_blocks(step)
        return next_token_ids.new_empty((len(ids), 0), dtype=torch.int64)

    def draft(self, depth: int) -> list[tuple[str, list[int]]]:
        """``depth`` tokens for each request of the step that has just ended, by request; empty where there is none.

        None is there, too, once vLLM has left the drafter out of it, since a request nears the context's end.
        """
        step, self._step = self._step, None
        if step is None:
            return []
        drafts = self._read(step, range(len(step.request_ids)), step.next_tokens, depth)
        return list(zip(step.request_ids, drafts.tolist(), strict=True))

    def begin_step(self, ended: Iterable[str]) -> None:
        """A step begins, after which drafts of the one before are of no use; and who has ended since."""
        self._step = None
        for request_id in ended:
            self._unread.pop(request_id, None)

    def _make_room(self, step: _Step, tokens: Tensor, starts: Sequence[int]) -> None:
        """Reads what older steps left, where it does not fit beside the new ``tokens``."""
        # A request whose tokens were rolled back (it was preempted) begins anew.
        positions = self._runner.input_batch.num_computed_tokens_cpu
        unread = {row: self._unread[each] for row, each in enumerate(step.request_ids) if each in self._unread}
        rows = [row for row, each in unread.items() if each.end == positions[row]]
        held = sum(len(each.tokens) for each in unread.values())
        if rows and held + len(tokens) + len(starts) > self.max_num_tokens:
            # What follows them is what this step began with.
            self._read(step, rows, tokens[[starts[row] for row in rows]], 0)

    def _read_full_blocks(self, step: _Step) -> None:
        rows, newest = [], []
        for row, request_id in enumerate(step.request_ids):
            unread = self._unread[request_id]
            if len(unread.tokens) > 1 and unread.ends_block(self.block_size):
                self._unread[request_id], last = unread.without_newest()
                rows.append(row)
                newest.append(last)
        if not rows:
            return
        self._read(step, rows, torch.cat([each.tokens for each in newest]), 0)
        self._unread.update(zip((step.request_ids[row] for row in rows), newest, strict=True))

    def _read(self, step: _Step, rows: Sequence[int], next_tokens: Tensor, depth: int) -> Tensor:
        """Runs vLLM's drafter over all unread tokens of some rows of ``step``: [rows, depth] draft tokens."""
        unread = [self._unread.pop(step.request_ids[row]) for row in rows]
        positions = torch.cat([torch.arange(each.first, each.end) for each in unread])
        hidden = [each.hidden for each in unread if each.hidden is not None]
        drafts: Tensor = super().propose(  # type: ignore[misc]
            num_speculative_tokens=depth,
            target_token_ids=torch.cat([each.tokens for each in unread]),
            target_positions=positions.to(self.device),
            target_hidden_states=torch.cat(hidden) if hidden else next_tokens.new_empty(0),
            next_token_ids=next_tokens,
            token_indices_to_sample=None,
            common_attn_metadata=self._attention(unread, positions, step.block_table[list(rows)]),
            sampling_metadata=step.sampling,
        )
        return drafts

    def _attention(self, unread: Sequence[Unread], positions: Tensor, blocks: Tensor) -> CommonAttentionMetadata:
        """vLLM's description of a batch in which each request has its unread tokens."""
        lengths = torch.tensor([len(each.tokens) for each in unread])
        starts = torch.zeros(len(unread) + 1, dtype=torch.int32)
        starts[1:] = lengths.cumsum(0)
        ends = torch.tensor([each.end for each in unread], dtype=torch.int32)
        row_of = torch.arange(len(unread)).repeat_interleave(lengths)
        of_token = blocks[row_of.to(blocks.device), (positions // self.block_size).to(blocks.device)]
        slots = of_token.long() * self.block_size + (positions % self.block_size).to(blocks.device)
        return CommonAttentionMetadata(
            query_start_loc=starts.to(self.device),
            query_start_loc_cpu=starts,
            seq_lens=ends.to(self.device),
            seq_lens_cpu_upper_bound=ends.clone(),
            num_reqs=len(unread),
            num_actual_tokens=len(positions),
            max_query_len=int(lengths.max()),
            max_seq_len=int(ends.max()),
            block_table_tensor=blocks,
            slot_mapping=slots,
            causal=True,
        )


class LazyEagle(_Lazy, EagleProposer):
    """EAGLE-3."""


class LazyDraftModel(_Lazy, DraftModelProposer):
    """A draft model."""


class NoDrafter:
    """In the neural drafter's place where a replica has none (vLLM's ``custom_class``): drafts come with the plans."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        """vLLM calls it so."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to load."""

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *args: Any, **kwargs: Any) -> list[list[int]]:  # noqa: ARG002
        """Nothing, for each request."""
        return [[] for _ in sampled_token_ids]


def make_lazy(runner: Any, config: VllmConfig) -> LazyEagle | LazyDraftModel | None:
    """Puts the lazy one in the place of the runner's drafter, before weights are loaded; None where there is none.

    Raises ``TypeError`` for a drafter that Forerun does not know.
    """
    found = type(runner.drafter)
    if found is NoDrafter:
        return None
    lazy = {EagleProposer: LazyEagle, DraftModelProposer: LazyDraftModel}.get(found)
    if lazy is None:
        raise TypeError(f"vLLM drafts with {found.__name__}, which Forerun does not know")
    runner.drafter = lazy(config, runner.device, runner)
    return runner.drafter  # type: ignore[no-any-return]

"""What the fake engine "samples": tokens, text and logprobs that follow from prompt, seed and choice alone."""

import math
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from services.common.outcome import Outcome
from services.common.types import ChoiceEnd, Delta, PositionLogprobs, Submission, TokenLogprob

END_OF_TEXT_ID = 0
"""The token that ends an answer; it has no text."""

_WORDS = ("ahead", "block", "café", "depth", "draft", "日本", "prefix", "queue", "river", "stage", "token", "🙂")


def token_text(token_id: int) -> str:
    """A word with a leading space; nothing for the end-of-text token."""
    return "" if token_id == END_OF_TEXT_ID else " " + _WORDS[token_id % len(_WORDS)]


def candidates(token_id: int, others: int, vocab_size: int) -> PositionLogprobs:
    """``token_id`` with half of the probability, then ``others`` neighbours that share most of the rest."""
    ids = [token_id, *((token_id + step) % vocab_size for step in range(1, others + 1))]
    return tuple(
        TokenLogprob(id_, math.log(0.5 ** (rank + 1)), rank + 1, token_text(id_).encode())
        for rank, id_ in enumerate(ids)
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One new token of one choice."""

    delta: Delta
    end: ChoiceEnd | None


class Answer:
    """One choice's answer, a token at a time."""

    def __init__(
        self, submission: Submission, index: int, *, vocab_size: int, max_model_len: int, mean_tokens: int
    ) -> None:
        sampling = submission.sampling
        self._sampling = sampling
        self._index = index
        self._vocab_size = vocab_size
        self._random = Random(_seed(submission, index))
        self._natural_end = self._random.randint(1, 2 * mean_tokens)
        room = max_model_len - len(submission.prompt_token_ids)
        self._max_tokens = min(room, sampling.max_tokens or room)
        self._text = ""
        self._sent_chars = 0
        # As real engines do: hold back what could be the beginning of a stop string.
        self._held_chars = max((len(stop) for stop in sampling.stop), default=1) - 1
        self.tokens = 0

    def next(self) -> Step:
        """The next token; not to be called after the end."""
        token_id = self._sample()
        self.tokens += 1
        self._text += token_text(token_id) if self._sampling.detokenize else ""
        end = self._end(token_id)
        return Step(Delta(self._index, self._new_text(end), (token_id,), self._logprobs(token_id)), end)

    def _sample(self) -> int:
        sampling = self._sampling
        may_end = not sampling.ignore_eos and self.tokens >= sampling.min_tokens
        if may_end and self.tokens + 1 >= self._natural_end:
            return END_OF_TEXT_ID
        if sampling.allowed_token_ids:
            return self._random.choice(sampling.allowed_token_ids)
        return self._random.randrange(1, self._vocab_size)

    def _end(self, token_id: int) -> ChoiceEnd | None:
        sampling = self._sampling
        if self.tokens > sampling.min_tokens:
            if token_id == END_OF_TEXT_ID and not sampling.ignore_eos:
                return ChoiceEnd(self._index, Outcome.STOP)
            if token_id in sampling.stop_token_ids:
                return ChoiceEnd(self._index, Outcome.STOP, token_id)
            if stop := self._matched_stop():
                return ChoiceEnd(self._index, Outcome.STOP, stop)
        return ChoiceEnd(self._index, Outcome.LENGTH) if self.tokens >= self._max_tokens else None

    def _matched_stop(self) -> str | None:
        found = [(self._text.find(stop), stop) for stop in self._sampling.stop]
        at, stop = min(((at, stop) for at, stop in found if at >= 0), default=(-1, None))
        if stop is not None:
            self._text = self._text[: at + (len(stop) if self._sampling.include_stop_str_in_output else 0)]
        return stop

    def _new_text(self, end: ChoiceEnd | None) -> str:
        upto = len(self._text) if end else max(self._sent_chars, len(self._text) - self._held_chars)
        text, self._sent_chars = self._text[self._sent_chars : upto], upto
        return text

    def _logprobs(self, token_id: int) -> tuple[PositionLogprobs, ...]:
        if self._sampling.logprobs is None:
            return ()
        return (candidates(token_id, max(self._sampling.logprobs, 0), self._vocab_size),)


def _seed(submission: Submission, index: int) -> int:
    sampling = submission.sampling
    key = blake2b(digest_size=8)
    key.update(",".join(map(str, submission.prompt_token_ids)).encode())
    if sampling.temperature > 0:
        key.update(f"|{submission.request_id if sampling.seed is None else sampling.seed}|{index}".encode())
    return int.from_bytes(key.digest(), "big")

"""Which token ids can be drafted: the ones that the target uses most.

The whole vocabulary's head would cost the first stage more than its layers; a small one covers nearly all that the
target writes. As EAGLE-3 does, drafts are indexes into this list, and ``d2t`` maps them to token ids.
"""

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from services.common.training.answer_shards import Answer


def choose_draft_vocabulary(answers: Iterable[Answer], size: int, vocab_size: int) -> Tensor:
    """The ``size`` token ids that are most frequent in answers, then in prompts, then lowest; ascending, int64.

    Args:
        answers: of the training part alone; held-out ones would make their own coverage look better.
        size: at most ``vocab_size``.
    """
    in_answers: Counter[int] = Counter()
    in_prompts: Counter[int] = Counter()
    for answer in answers:
        in_answers.update(answer.answer.tolist())
        in_prompts.update(answer.prompt.tolist())
    ranked = sorted(range(vocab_size), key=lambda token: (-in_answers[token], -in_prompts[token], token))
    return torch.tensor(sorted(ranked[:size]), dtype=torch.int64)


def inverse(d2t: Tensor, vocab_size: int) -> Tensor:
    """The draft index of each token id, -1 where it cannot be drafted: [vocabulary] int64."""
    t2d = torch.full((vocab_size,), -1, dtype=torch.int64)
    t2d[d2t] = torch.arange(len(d2t))
    return t2d


def coverage(answers: Iterable[Answer], d2t: Tensor) -> float:
    """Share of the answers' tokens that can be drafted; 0 without answers."""
    tokens = torch.cat([torch.empty(0, dtype=torch.int32), *(torch.from_numpy(each.answer) for each in answers)])
    return float(torch.isin(tokens.long(), d2t).float().mean()) if len(tokens) else 0.0

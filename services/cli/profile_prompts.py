"""Chat prompts of several kinds of work, on which ``forerun profile`` measures how often drafts are right."""

from itertools import product

from services.client import Chat, ChatMessage

_REQUESTS = (
    "Explain {topic} to a curious beginner, step by step, with an example.",
    "Write a short story in which {topic} changes somebody's day.",
    "Give me a detailed list of ten things to know about {topic}, with one sentence of explanation each.",
    "A class of {count} pupils studies {topic} for {hours} hours a week. How many pupil-hours is that in 12 weeks? "
    "Reason step by step, then write a Python function that computes it for any class, and explain the code.",
    "Summarize what an encyclopedia would say about {topic}, then compare it with {other}.",
    "Write a formal letter to a town council that asks for money for an exhibition about {topic}.",
)
_TOPICS = (
    "the water cycle", "sorting algorithms", "medieval castles", "the human heart", "renewable energy", "chess",
    "how bread is baked", "volcanoes", "the solar system", "public transport", "beekeeping", "classical music",
)  # fmt: skip


def _prompt(number: int, request: str, topic: str) -> str:
    other = _TOPICS[(number + 5) % len(_TOPICS)]
    return request.format(topic=topic, other=other, count=17 + number, hours=2 + number % 5)


PROMPTS: tuple[Chat, ...] = tuple(
    Chat([ChatMessage("user", _prompt(number, request, topic))])
    for number, (topic, request) in enumerate(product(_TOPICS, _REQUESTS))
)
"""Neighbours are of different kinds, so that a few in a row are already mixed."""

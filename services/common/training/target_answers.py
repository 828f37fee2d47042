"""The first two steps of every training: a choice of prompts, and the target's answers to them.

Both lie in the target's work folder, so whatever is trained next for the same target finds them there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.common.training.answer_shards import Answer, AnswerShards
from services.common.training.answers import AnswerOptions, Target, generate_answers
from services.common.training.progress import Count, Listener
from services.common.training.prompt import Prompt, read_prompts, write_prompts
from services.common.training.prompt_set import build_prompts
from services.common.training.wheels import Download, fetch_wheels

StartTarget = Callable[[Path, AnswerOptions], Target]


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """Which prompts."""

    count: int
    seed: int


class TargetAnswers:
    """The prompts of one choice, and the answers of one target."""

    def __init__(
        self, model: Path, choice: PromptChoice, answering: AnswerOptions, start_target: StartTarget, work: Path
    ) -> None:
        self.shards = AnswerShards(work / "answers")
        self._model = model
        self._choice = choice
        self._answering = answering
        self._start_target = start_target
        self._work = work
        # Of each choice of prompts its own; answers are found by the prompt's text, so they are shared.
        self._prompts_path = work / f"prompts-{choice.count}-{choice.seed}.jsonl"

    @property
    def prompts(self) -> list[Prompt]:
        """In the order in which they are answered; to be asked after ``prepare_prompts``."""
        return read_prompts(self._prompts_path)

    def prepare_prompts(self, wheels: Path, download: Download, listen: Listener) -> None:
        """Builds the prompt set, unless it is there."""
        if self._prompts_path.is_file():
            return
        listen.step("prompts")
        fetched = fetch_wheels(wheels, download)
        self._work.mkdir(parents=True, exist_ok=True)
        prompts = build_prompts(fetched, self._work / "scratch", self._choice.count, self._choice.seed)
        write_prompts(self._prompts_path, prompts)

    def generate(self, wanted_tokens: int, listen: Listener) -> None:
        """Lets the target answer until there are tokens enough, or no prompts."""
        prompts = self.prompts
        ids = {prompt.id for prompt in prompts}
        tokens = sum(len(answer.answer) for answer in self.shards if answer.prompt_id in ids)
        if tokens >= wanted_tokens:
            return
        listen.step("answers", wanted_tokens)

        count = Count(listen, "tokens", tokens)

        def on_answer(answer: Answer) -> bool:
            count.add(len(answer.answer))
            return count.done >= wanted_tokens

        self.answer(prompts, self.shards, on_answer)

    def answer(self, prompts: Sequence[Prompt], shards: AnswerShards, on_answer: Callable[[Answer], bool]) -> None:
        """Lets the target answer other prompts, into ``shards`` of their own; see ``generate_answers``."""
        start = self._start_target
        generate_answers(lambda: start(self._model, self._answering), prompts, shards, self._answering, on_answer)

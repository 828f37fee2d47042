"""Work folders for trainings of tiny drafters: prompts, answers and listeners that do nothing, or interrupt."""

from pathlib import Path

from services.common.training.answers import AnswerOptions
from services.common.training.prompt import Message, Prompt, Split, write_prompts

ANSWERING = AnswerOptions(max_answer_tokens=12, shard=4)


class SilentListener:
    """Hears and says nothing."""

    def step(self, name: str, total: int | None = None) -> None:
        pass

    def reach(self, done: int, note: str) -> None:
        pass


class StoppingListener(SilentListener):
    """Interrupts the training after some steps, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self._after = after
        self._training = False

    def step(self, name: str, total: int | None = None) -> None:
        self._training = name.startswith("train")

    def reach(self, done: int, note: str) -> None:
        if self._training and done == self._after:
            raise KeyboardInterrupt


class CountingListener(SilentListener):
    """Keeps how far each step of a training came."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.reached: list[int] = []

    def reach(self, done: int, note: str) -> None:
        self.reached.append(done)
        self.notes.append(note)


def make_prompts() -> list[Prompt]:
    """Sixteen, every fourth of them held out."""
    splits: list[Split] = ["train", "train", "train", "held_out"]
    return [
        Prompt.make(("chat", "code")[index % 2], "test", splits[index % 4], [Message("user", f"{index} is a number")])
        for index in range(16)
    ]


def write_tiny_prompts(work: Path) -> None:
    """As ``prepare_prompts`` leaves them in a work folder, for 16 prompts of seed 0."""
    work.mkdir(parents=True, exist_ok=True)
    write_prompts(work / "prompts-16-0.jsonl", make_prompts())

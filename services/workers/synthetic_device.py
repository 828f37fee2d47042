"""A device that takes the time of a step and does nothing else with it."""

import time

from services.workers.synthetic_config import SyntheticConfig


class SyntheticDevice:
    """What a stage does on the host while the device is busy (its books) costs nothing on top."""

    def __init__(self, config: SyntheticConfig, *, drafts: bool) -> None:
        """``drafts``: this stage's steps end with drafting."""
        self._step = config.step
        self._draft = config.draft if drafts else None

    def compute(self, rows: int, began_s: float) -> None:
        """Returns when a step of ``rows`` rows that began at ``began_s`` (``time.perf_counter``) has been computed."""
        _sleep_until(began_s + max(0.0, self._step.at(rows) - self._draft_ms(rows)) / 1000)

    def draft(self, rows: int, began_s: float) -> None:
        """The same for drafting."""
        _sleep_until(began_s + self._draft_ms(rows) / 1000)

    def _draft_ms(self, rows: int) -> float:
        return 0.0 if self._draft is None else self._draft.at(rows)


def _sleep_until(when_s: float) -> None:
    left_s = when_s - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)

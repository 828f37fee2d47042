"""Blocking work beside the loop: results, errors, and a loop that has gone."""

import asyncio
import threading

import pytest

from services.common.daemon_thread import Promise, in_thread
from services.scheduler.tasks import end_tasks


async def test_results_and_errors_come_back() -> None:
    assert await in_thread(lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_a_cancelled_wait_leaves_the_thread_alone() -> None:
    release = threading.Event()
    done = threading.Event()

    def work() -> None:
        release.wait(5)
        done.set()

    waiting = asyncio.create_task(in_thread(work))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not done.is_set()
    release.set()
    assert await asyncio.to_thread(done.wait, 5)


def test_a_promise_kept_after_its_loop_has_ended() -> None:
    async def make() -> Promise[int]:
        return Promise()

    asyncio.run(make()).keep(1)


async def test_end_tasks_ends_what_swallows_a_cancellation() -> None:
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue
        await asyncio.sleep(60)

    async def failing() -> None:
        raise RuntimeError("told by the log")

    tasks: list[asyncio.Task[object]] = [asyncio.create_task(stubborn()), asyncio.create_task(failing())]
    await asyncio.sleep(0)
    await asyncio.wait_for(end_tasks(tasks), 2)
    assert all(task.done() for task in tasks)

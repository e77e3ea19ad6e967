"""What only the asynchronous tests need."""

from __future__ import annotations

import asyncio
import threading
import unittest
from typing import Awaitable, Callable

from .support import PATIENCE


RUN = "import asyncio\nasyncio.run(main())"
"""Runs the function main of a program."""


class AsyncCase(unittest.IsolatedAsyncioTestCase):
    """A test in an event loop."""

    async def asyncSetUp(self) -> None:
        asyncio.get_running_loop().set_debug(False)  # it reports that the machine is busy


async def together(jobs: list[Callable[[], Awaitable[None]]]) -> None:
    """Does all jobs at the same time."""
    await asyncio.gather(*(job() for job in jobs))


async def interrupt(job: Callable[[], Awaitable[object]], when: threading.Event) -> None:
    """Cancels a job while it waits."""
    task = asyncio.ensure_future(job())
    task.add_done_callback(lambda _: when.set())  # nothing waits for a job that has ended
    await asyncio.to_thread(when.wait, PATIENCE)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), task

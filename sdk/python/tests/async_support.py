"""What only the asynchronous tests need."""

from __future__ import annotations

import asyncio
import unittest
from typing import Awaitable, Callable


class AsyncCase(unittest.IsolatedAsyncioTestCase):
    """A test in an event loop."""

    async def asyncSetUp(self) -> None:
        asyncio.get_running_loop().set_debug(False)  # it reports that the machine is busy


async def together(jobs: list[Callable[[], Awaitable[None]]]) -> None:
    """Does all jobs at the same time."""
    await asyncio.gather(*(job() for job in jobs))

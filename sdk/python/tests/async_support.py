"""What only the asynchronous tests need."""

from __future__ import annotations

import asyncio
import unittest
from typing import Awaitable, Callable

AsyncCase = unittest.IsolatedAsyncioTestCase


async def together(jobs: list[Callable[[], Awaitable[None]]]) -> None:
    """Does all jobs at the same time."""
    await asyncio.gather(*(job() for job in jobs))

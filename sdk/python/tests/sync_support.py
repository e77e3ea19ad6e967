"""What only the synchronous tests need."""

from __future__ import annotations

import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Callable

Case = unittest.TestCase


def together(jobs: list[Callable[[], None]]) -> None:
    """Does all jobs at the same time."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.result()

"""What only the synchronous tests need."""

from __future__ import annotations

import signal
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Callable

from .support import PATIENCE

RUN = "main()"
"""Runs the function main of a program."""

Case = unittest.TestCase


def together(jobs: list[Callable[[], None]]) -> None:
    """Does all jobs at the same time."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.result()


def interrupt(job: Callable[[], object], when: threading.Event) -> None:
    """Interrupts a job while it waits, as Ctrl-C does."""
    main, done = threading.get_ident(), threading.Event()

    def press() -> None:
        when.wait(PATIENCE)
        while not done.is_set():  # the job may have ended with an error
            signal.pthread_kill(main, signal.SIGINT)
            done.wait(5)  # a signal just before a wait does not end it

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored
    threading.Thread(target=press, daemon=True).start()
    try:
        job()
    except KeyboardInterrupt:
        return
    finally:
        done.set()
        signal.signal(signal.SIGINT, before)
    raise AssertionError("the job was not interrupted")

"""Prints the names of a project's tests, each of which `python3 -m unittest NAME` runs."""

import sys
import unittest
from collections.abc import Iterator


def names(suite: unittest.TestSuite) -> Iterator[str]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from names(test)
        else:
            yield test.id()


loader = unittest.TestLoader()
found = list(names(loader.discover(".")))
if loader.errors:
    sys.exit("\n".join(map(str, loader.errors)))
print("\n".join(found))

import unittest

from mean import mean


class MeanTest(unittest.TestCase):
    def test_one(self) -> None:
        self.assertEqual(mean([3.0]), 3.0)

    def test_many(self) -> None:
        self.assertEqual(mean([1.0, 2.0, 6.0]), 3.0)

import unittest

from roman import from_roman, to_roman

NUMERALS = {
    1: "I", 2: "II", 4: "IV", 5: "V", 9: "IX", 14: "XIV", 40: "XL", 44: "XLIV", 49: "XLIX", 90: "XC", 99: "XCIX",
    100: "C", 400: "CD", 444: "CDXLIV", 500: "D", 900: "CM", 999: "CMXCIX",
    1000: "M", 1987: "MCMLXXXVII", 2026: "MMXXVI", 3999: "MMMCMXCIX",
}


class Numerals(unittest.TestCase):
    """Has a test of each number."""


def check(number: int, numeral: str):
    def test(self: unittest.TestCase) -> None:
        self.assertEqual(to_roman(number), numeral)
        self.assertEqual(from_roman(numeral), number)

    return test


for number, numeral in NUMERALS.items():
    setattr(Numerals, f"test_{number}", check(number, numeral))


class Refused(unittest.TestCase):
    def test_zero(self) -> None:
        with self.assertRaises(ValueError):
            to_roman(0)

    def test_too_large(self) -> None:
        with self.assertRaises(ValueError):
            to_roman(4000)

    def test_other_text(self) -> None:
        for text in ("", "A", "IIII", "VX", "MMMM"):
            with self.assertRaises(ValueError):
                from_roman(text)

    def test_every_number_and_back(self) -> None:
        for number in range(1, 4000):
            self.assertEqual(from_roman(to_roman(number)), number)

"""Roman numerals."""

PARTS = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
         (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]


def to_roman(number: int) -> str:
    """The numeral of a number from 1 to 3999."""
    if not 1 <= number <= 3999:
        raise ValueError(f"no numeral for {number}")
    text = ""
    for value, part in PARTS:
        text += part * (number // value)
        number %= value
    return text


def from_roman(text: str) -> int:
    """The number of a numeral as to_roman writes it."""
    number, rest = 0, text
    for value, part in PARTS:
        while rest.startswith(part):
            number += value
            rest = rest.removeprefix(part)
    if rest or not 1 <= number <= 3999 or to_roman(number) != text:
        raise ValueError(f"{text!r} is no numeral")
    return number

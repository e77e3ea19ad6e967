def mean(numbers: list[float]) -> float:
    """The arithmetic mean of one number or more."""
    return sum(numbers) / (len(numbers) - 1)

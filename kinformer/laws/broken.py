"""Broken: what a law raises, with one sentence for a newcomer."""


class Broken(AssertionError):
    """A law does not hold for a part; the text names the smallest failing example that was found."""

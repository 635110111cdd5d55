"""LostBytes: the bytes of a text that are not restored if it is encoded and decoded."""

from typing import NamedTuple

from kinformer.core.warn import warn


class LostBytes(NamedTuple):
    """Number of bytes of a text that encoding and decoding do not restore, with the first such character.

    read: number of bytes of the text.
    missing: number of bytes that are not restored.
    letter: first character that is not restored.
    place: description of the place of that character, for the message.
    spaces: number of missing bytes that are spaces or line breaks.
    rewritten: number of missing bytes in letters that the tokenizer reads in another case, without accents, or in
        another form.
    """

    read: int = 0
    missing: int = 0
    letter: str = ""
    place: str = ""
    spaces: int = 0
    rewritten: int = 0

    @property
    def unread(self) -> int:
        """Number of bytes in characters for which the tokenizer has no token."""
        return self.missing - self.spaces - self.rewritten

    def plus(self, other: "LostBytes") -> "LostBytes":
        """Return the sums over two texts, with the first character of both that is not restored.

        other: lost bytes of the later text.
        """
        first = self if self.missing else other
        return LostBytes(
            self.read + other.read,
            self.missing + other.missing,
            first.letter,
            first.place,
            self.spaces + other.spaces,
            self.rewritten + other.rewritten,
        )

    def warn(
        self, name: str, so: str = "they are neither trained on nor scored; tokenizer=bpe:4096 loses none"
    ) -> None:
        """Warn, in one line, if bytes are not restored.

        name: name of the text.
        so: words on the consequence, at the end of the message.
        """
        if not self.missing:
            return
        in_place = f" in {self.place}" if self.place and self.place not in name else ""
        counts = {"in letters without their case or accents": self.rewritten, "of spaces": self.spaces}
        kinds = [f"{count:,} {title}" for title, count in {**counts, "without a token": self.unread}.items() if count]
        warn(
            f"the tokenizer does not restore {self.missing:,} of {self.read:,} bytes ({self.missing / self.read:.2%}) "
            f"of {name}, first {self.letter!r}{in_place}: {', '.join(kinds)}{f'; {so}' if so else ''}"
        )

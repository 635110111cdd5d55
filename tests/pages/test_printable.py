"""Text without control characters."""

from kinformer.pages.printable import printable


def test_control_characters_other_than_newline_and_tab_are_replaced() -> None:
    assert printable("".join(CONTROLS)) == "�" * 63
    text = "one\n\ttwo é 漢 🙂 �"
    assert printable(text) == text

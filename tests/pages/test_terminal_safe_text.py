"""Text without control characters."""

from kinformer.pages.terminal_safe_text import printable

CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]  # C0, DEL and C1


def test_control_characters_other_than_newline_and_tab_are_replaced() -> None:
    assert printable("".join(CONTROLS)) == "�" * 63
    text = "one\n\ttwo é 漢 🙂 �"
    assert printable(text) == text

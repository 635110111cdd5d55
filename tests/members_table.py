"""Writes the table of all members in README.md, from their files: `python -m tests.members_table`."""

import re
from pathlib import Path

from kinformer.cli.support.catalogue import list_entries, with_member_facts
from kinformer.core.discover import members
from kinformer.pages.site.member_pages import HEADINGS, member_row

README = Path(__file__).parents[1] / "README.md"
DOCS = README.parent / "docs" / "README.md"
BEGIN = "<!-- members: written by `python -m tests.members_table` -->"
END = "<!-- end of members -->"


def table() -> str:
    """The table as Markdown, a line for each member, between its two marks."""
    entries = with_member_facts(list_entries(["members"]))
    rows = [member_row(entry, f"kinformer/members/{entry['name']}.py") for entry in entries]
    lines = [HEADINGS, ("---",) * len(HEADINGS), *rows]
    return "\n".join([BEGIN, "", *("| " + " | ".join(cells) + " |" for cells in lines), "", END])


def with_table(text: str) -> str:
    """The text of README.md with the table and the number of members of today."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    assert len(pattern.findall(text)) == 1, f"README.md must have {BEGIN} and {END} once each"
    return with_count(pattern.sub(lambda _: table(), text))


def with_count(text: str) -> str:
    """The text of a page with the number of members in its first sentence."""
    changed, count = re.subn(r"\b\d+ models and the mechanisms", f"{len(members())} models and the mechanisms", text)
    assert count == 1, "the page must say 'N models and the mechanisms' once"
    return changed


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    DOCS.write_text(with_count(DOCS.read_text(encoding="utf-8")), encoding="utf-8")

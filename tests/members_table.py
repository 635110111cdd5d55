"""Writes the table of all members in README.md, from their files: `python -m tests.members_table`."""

import re
from pathlib import Path
from typing import Any

from kinformer.cli.support.catalogue import list_entries, with_member_facts

README = Path(__file__).parents[1] / "README.md"
BEGIN = "<!-- members: written by `python -m tests.members_table` -->"
END = "<!-- end of members -->"
HEADINGS = ("member", "paper", "year", "what it changes", "order of cost", "claim")
SIGNS = {"**2": "²", "**3": "³", "**": "^", " * ": " · "}


def table() -> str:
    """The table as Markdown, a line for each member, between its two marks."""
    rows = [_row(entry) for entry in with_member_facts(list_entries(["members"]))]
    lines = [HEADINGS, ("---",) * len(HEADINGS), *rows]
    return "\n".join([BEGIN, "", *("| " + " | ".join(cells) + " |" for cells in lines), "", END])


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    name = f"[`{entry['name']}`](kinformer/members/{entry['name']}.py)"
    paper = f"[{entry['paper']}]({entry['url']})" if entry["url"] else entry["paper"]
    claims = ", ".join(f"`{claim}`" for claim in entry["claims"])
    return name, paper, str(entry["year"]), entry["changes"], formula(entry["cost"]), claims


def formula(cost: str) -> str:
    """An order of cost as readers write it: "L² / blocks" for "L**2 / blocks"."""
    for code, sign in SIGNS.items():
        cost = cost.replace(code, sign)
    return cost


def with_table(text: str) -> str:
    """The text of README.md with the table of today."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    assert len(pattern.findall(text)) == 1, f"README.md must have {BEGIN} and {END} once each"
    return pattern.sub(lambda _: table(), text)


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")

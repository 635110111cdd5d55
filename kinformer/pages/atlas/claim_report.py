"""Reports of claims: the text files that `kinformer claim` writes, read again."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, get_args

from kinformer.lab.claims.support.verdict import Verdict

VERDICTS = get_args(Verdict)


class ClaimReport(NamedTuple):
    """Result of a claim.

    name: name of the claim.
    statement: the claim, as one sentence.
    verdict: "holds", "does not hold" or "not resolved".
    """

    name: str
    statement: str
    verdict: str


def read_reports(folder: Path, names: Iterable[str]) -> dict[str, ClaimReport]:
    """Return the reports of claims in a folder, by name; a file that is no report of a claim is left out.

    folder: the folder that `kinformer claim --out` wrote; it may be missing.
    names: names of the claims.
    """
    reports = {}
    for name in names:
        path = folder / f"{name}.txt"
        # a character that is no UTF-8 cannot stand in a verdict
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        verdict = next((line for line in reversed(lines) if line in VERDICTS), None)
        if verdict is not None and lines[0].strip():
            reports[name] = ClaimReport(name, lines[0], verdict)
    return reports

"""Reports of measured claims: a JSON file and a text for each claim, in one folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from kinformer.checkpoint.atomic_files import write
from kinformer.core.from_json import from_json
from kinformer.lab.claims.support.verdict import Claim, Verdict

VERDICTS = get_args(Verdict)
REPORTS = Path(__file__).parents[1] / "reports"  # of the measurements that the package ships


@dataclass(frozen=True)
class MeasureReport:
    """A number that decided a claim.

    quantity: description of the number, with its unit.
    values: one measured value per seed.
    summary: the mean with twice its standard error, and the threshold.
    verdict: "holds", "does not hold" or "not resolved".
    """

    quantity: str
    values: Sequence[float]
    summary: str
    verdict: str


@dataclass(frozen=True)
class ClaimReport:
    """Result of measuring a claim, as it stands in a file.

    name: name of the claim.
    statement: the claim, in one sentence.
    source: the paper and its section.
    verdict: "holds", "does not hold" or "not resolved".
    measures: the numbers that decided the verdict.
    facts: further measured numbers by name.
    seconds: duration of the measurement.
    minutes: the value of --minutes; None for the claim's own sizes.
    on: versions and processor.
    """

    name: str
    statement: str
    source: str
    verdict: str
    measures: Sequence[MeasureReport]
    facts: Mapping[str, str]
    seconds: float
    minutes: float | None
    on: str

    @property
    def lines(self) -> list[str]:
        """The report as lines of text: claim, measures with their verdicts, facts, and the verdict."""
        measures = [f"  {measure.verdict:<15}{measure.quantity}: {measure.summary}" for measure in self.measures]
        facts = ["", "further measurements, not judged", *(f"  {name}: {text}" for name, text in self.facts.items())]
        return [self.statement, self.source, "", *measures, *(facts if self.facts else []), "", self.verdict]


def make_report(name: str, claim: Claim, seconds: float, minutes: float | None, on: str) -> ClaimReport:
    """Return the report of a measured claim.

    name: name of the claim.
    claim: the result.
    seconds: duration of the measurement.
    minutes: the value of --minutes; None for the claim's own sizes.
    on: versions and processor.
    """
    measures = [
        MeasureReport(each.quantity, [float(value) for value in each.values], each.summary, each.verdict)
        for each in claim.measures
    ]
    facts = {key: str(text) for key, text in claim.facts.items()}
    return ClaimReport(
        name, claim.statement, claim.source, claim.verdict, measures, facts, round(seconds, 1), minutes, on
    )


def write_report(report: ClaimReport, folder: Path) -> None:
    """Write a report as NAME.json and NAME.txt.

    report: the report.
    folder: the folder.

    Errors: OSError if a file cannot be written.
    """
    text = "\n".join([*report.lines, "", f"measured in {report.seconds:g} s on {report.on}"])
    write(folder / f"{report.name}.txt", f"{text}\n".encode())
    write(folder / f"{report.name}.json", f"{json.dumps(asdict(report), indent=2)}\n".encode())


def read_reports(folder: Path, names: Iterable[str]) -> dict[str, ClaimReport]:
    """Return the reports of claims in a folder by name; files that are no reports are left out.

    folder: the folder that `kinformer claim --out` wrote; it may be missing.
    names: names of the claims.
    """
    reports = {}
    for name in names:
        try:
            fields = from_json((folder / f"{name}.json").read_bytes())
            report = ClaimReport(**{**fields, "measures": [MeasureReport(**each) for each in fields["measures"]]})
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if report.name == name and report.verdict in VERDICTS and report.statement:
            reports[name] = report
    return reports


def measured_report(name: str) -> ClaimReport | None:
    """Return the report of a claim that the package ships; None if the claim is not measured.

    name: name of the claim.
    """
    return read_reports(REPORTS, [name]).get(name)

"""Reports of measured claims: a JSON file and a text for each claim, in one folder."""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from kinformer.checkpoint.atomic_files import write
from kinformer.core.from_json import from_json
from kinformer.lab.claims.support.verdict import Claim, Verdict

VERDICTS = get_args(Verdict)
NOT_MEASURED = "not measured"  # in place of a verdict
NO_SETTINGS = ("SAYS", "SOURCE", "MINUTES", "SCALE", "PAPER_SIZES", "TYPE_CHECKING")  # they change no measurement
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
    on: versions, processor and threads.
    seeds: the seeds; empty in reports of earlier versions, which have none.
    settings: sizes and further settings by name, such as "steps"; empty in reports of earlier versions.
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
    seeds: Sequence[int] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """The report as lines of text: claim, measures with their verdicts, facts, and the verdict."""
        measures = [f"  {measure.verdict:<15}{measure.quantity}: {measure.summary}" for measure in self.measures]
        facts = ["", "further measurements, not judged", *(f"  {name}: {text}" for name, text in self.facts.items())]
        return [self.statement, self.source, "", *measures, *(facts if self.facts else []), "", self.verdict]

    @property
    def conditions(self) -> list[str]:
        """The conditions of the measurement as lines of text: duration, versions, machine, seeds and settings."""
        count = max((len(measure.values) for measure in self.measures), default=0)
        seeds = ", ".join(map(str, self.seeds)) or f"{count}, whose numbers are not recorded"
        settings = ", ".join(f"{name}={text}" for name, text in self.settings.items())
        return [
            f"measured in {self.seconds:g} s on {self.on}",
            *([] if self.minutes is None else [f"longer training: --minutes {self.minutes:g}"]),
            f"seeds: {seeds}",
            *([f"settings: {settings}"] if settings else []),
        ]


def claim_settings(module: ModuleType, changed: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a claim as text, by name.

    They are the constants of its file and the arguments of `claim`. Values that are neither numbers nor texts, nor
    collections of them, are left out.

    module: the file of the claim.
    changed: arguments that differ from their defaults.
    """
    constants = {
        name.lower(): value
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and name not in NO_SETTINGS
    }
    parameters = inspect.signature(module.claim).parameters
    arguments = {name: parameter.default for name, parameter in parameters.items() if name != "seeds"}
    values = constants | arguments | dict(changed)
    return {name: str(value) for name, value in values.items() if _is_plain(value)}


def make_report(
    name: str,
    claim: Claim,
    seconds: float,
    minutes: float | None,
    on: str,
    seeds: Sequence[int],
    settings: Mapping[str, str],
) -> ClaimReport:
    """Return the report of a measured claim.

    name: name of the claim.
    claim: the result.
    seconds: duration of the measurement.
    minutes: the value of --minutes; None for the claim's own sizes.
    on: versions, processor and threads.
    seeds: the seeds.
    settings: sizes and further settings by name.
    """
    measures = [
        MeasureReport(each.quantity, [float(value) for value in each.values], each.summary, each.verdict)
        for each in claim.measures
    ]
    facts = {key: str(text) for key, text in claim.facts.items()}
    return ClaimReport(
        *(name, claim.statement, claim.source, claim.verdict, measures, facts, round(seconds, 1), minutes, on),
        *(tuple(seeds), settings),
    )


def write_report(report: ClaimReport, folder: Path) -> None:
    """Write a report as NAME.json and NAME.txt.

    report: the report.
    folder: the folder.

    Errors: OSError if a file cannot be written.
    """
    text = "\n".join([*report.lines, "", *report.conditions])
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
            measures = [MeasureReport(**each) for each in fields["measures"]]
            report = ClaimReport(**{**fields, "measures": measures, "seeds": tuple(fields.get("seeds", ()))})
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


def measured_verdict(name: str) -> str:
    """Return the verdict on a claim in the report that the package ships; "not measured" without a report.

    name: name of the claim.
    """
    report = measured_report(name)
    return NOT_MEASURED if report is None else report.verdict


def _is_plain(value: Any) -> bool:
    """True for numbers and texts, and for collections of them."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, [*value, *value.values()]))
    return all(map(_is_plain, value)) if isinstance(value, tuple | list) else isinstance(value, int | float | str)

"""The reports of claims in the package: each is readable and about a claim of the library."""

from importlib import import_module

from kinformer.core.discover import part_files
from kinformer.lab.claims.support.claim_report import REPORTS, VERDICTS, measured_report


def test_every_file_in_the_folder_is_the_report_of_a_claim() -> None:
    files = sorted(REPORTS.iterdir())
    assert files
    for file in files:
        assert file.suffix == ".json" and file.stem in part_files("claims"), file.name
        report = measured_report(file.stem)
        assert report is not None and report.verdict in VERDICTS and report.measures, file.name


def test_a_report_has_the_statement_of_its_claim_and_the_worst_verdict_of_its_measures() -> None:
    for file in REPORTS.iterdir():
        report, module = measured_report(file.stem), import_module(f"kinformer.lab.claims.{file.stem}")
        assert report is not None and (report.source, report.statement) == (module.SOURCE, module.SAYS), file.name
        verdicts = {measure.verdict for measure in report.measures}
        worst = next(verdict for verdict in ("does not hold", "not resolved", "holds") if verdict in verdicts)
        assert report.verdict == worst, file.name


def test_a_claim_without_a_report_has_none() -> None:
    assert measured_report("no_such_claim") is None

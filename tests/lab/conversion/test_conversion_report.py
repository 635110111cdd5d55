"""The report of a conversion: large losses, and options after a load."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.lab.conversion.conversion_report import ConversionReport
from kinformer.pages.conversion_report import save_conversion_report


@pytest.fixture
def report() -> ConversionReport:
    torch.manual_seed(0)
    model = kf.llama(d=16, depth=3, heads=4, key_heads=2, vocab=19)
    result: ConversionReport = kf.convert(model, "window", window=4, sinks=1, keep=(1, 3)).report
    return result


def measured(report: ConversionReport, before: float, after: float) -> list[list[str]]:
    report.metric, report.data, report.bytes_per_token = "bits per byte", "a text", 4.0
    report.before, report.after = before, after
    return report.quality_cells()


def test_perplexities_and_ratios(report: ConversionReport) -> None:
    _, source, converted = measured(report, 1.0, 1.25)
    assert source == ["source", "1.0000", "16.00", "1.000"] and converted == ["converted", "1.2500", "32.00", "2.000"]


@pytest.mark.parametrize("after", [300.0, 1e300, math.inf])
def test_a_perplexity_beyond_all_numbers_is_infinite(report: ConversionReport, after: float, tmp_path: Path) -> None:
    _, source, converted = measured(report, 1.0, after)
    assert source[2:] == ["16.00", "1.000"] and converted[2:] == ["inf", "inf"]
    save_conversion_report(report, tmp_path)
    assert "<td>inf</td>" in (tmp_path / "report.html").read_text()


def test_the_ratio_of_two_infinite_perplexities(report: ConversionReport) -> None:
    _, source, converted = measured(report, 300.0, 300.25)
    assert source[2:] == ["inf", "1.000"] and converted[2:] == ["inf", "2.000"]


def test_a_loaded_report_is_equal(report: ConversionReport, tmp_path: Path) -> None:
    report.save(tmp_path)
    loaded = ConversionReport.load(tmp_path)
    assert loaded == report and loaded.plan.options["keep"] == (1, 3)
    assert loaded.plan.title == report.plan.title == "window(window=4, sinks=1, keep=(1, 3))"


def test_options_of_pairs_are_tuples_again(report: ConversionReport, tmp_path: Path) -> None:
    options: dict[str, Any] = {"pairs": ((1, 2), (3,)), "names": {"a": (1,)}, "none": (), "number": 1.5, "word": "x"}
    report.plan = report.plan._replace(options=options)
    report.save(tmp_path)
    assert ConversionReport.load(tmp_path).plan.options == options

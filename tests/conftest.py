"""What every test stands on: annotations checked at run time, fixed seeds, and the tables at the end of the run."""

import gc
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy
import pytest
import torch
from jaxtyping import config

from tests import annotations, pairs, report, unhooked

if "kinformer" in sys.modules:
    raise pytest.UsageError("kinformer was imported before tests/conftest.py: its annotations would go unchecked")
# What is imported and collected stays to the end: a million objects that the collector would look through ever again.
gc.disable()
annotations.install("kinformer")

PROVE = os.environ.get("KINFORMER_PROVE") == "1"
SEED = 0
HERE = Path(__file__).parent
DEAREST = HERE / "test_plugins.py"  # its fixtures cost most: among the first it is one process that makes them
PLAIN = ("lab/claims", "cli", "decoding", "members", "lab/train")  # folders whose annotations the long run alone checks

# Nothing about time decides a test, and every run draws the same examples.
hypothesis.settings.register_profile(
    "kinformer",
    deadline=None,
    derandomize=True,
    max_examples=200 if PROVE else 30,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("kinformer")


def pytest_configure(config: pytest.Config) -> None:
    """Tokens are cached where the tests end, also by the process without checks, which collection may start."""
    cache = tempfile.TemporaryDirectory(prefix="kinformer-tests-")
    os.environ["KINFORMER_CACHE"] = cache.name
    config.add_cleanup(cache.cleanup)
    config.add_cleanup(unhooked.close)


@pytest.fixture(autouse=True)
def annotations_unchecked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Commands and trainings run as users run them, a quarter faster; the long run checks annotations there too.

    Whatever they call is called by the tests of the other folders, and by the law `runs`, with its annotations checked.
    """
    plain = not PROVE and HERE in request.path.parents and request.path.relative_to(HERE).as_posix().startswith(PLAIN)
    if plain:
        config.update("jaxtyping_disable", True)
    yield
    if plain:
        config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def prove() -> bool:
    """Whether this is the long run (make prove)."""
    return PROVE


@pytest.fixture
def float64() -> Iterator[None]:
    """Parts and tensors made in this test are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path != DEAREST)
    if PROVE:
        return
    slow = {item for item in items if item.get_closest_marker("prove")}
    slow.update(pairs.beyond_pairs([item for item in items if item not in slow]))
    if slow:
        config.hook.pytest_deselected(items=[item for item in items if item in slow])
        items[:] = [item for item in items if item not in slow]


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    random.seed(SEED)
    numpy.random.seed(SEED)
    seed_torch(SEED)
    for mark in item.iter_markers("golden"):
        note_golden(item, *mark.args)


def seed_torch(seed: int) -> None:
    """Seeds the CPU and NVIDIA GPUs. `torch.manual_seed` records a call stack each time where no GPU is in use."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def note_golden(item: pytest.Item, mechanism: str, name: str | None) -> None:
    """Records which golden a test checks. Where the folder is absent the test is not run; in CI that is a failure."""
    item.user_properties.append(("golden", f"{mechanism}/{name}" if name else mechanism))
    if name:
        return
    absent = f"no goldens of {mechanism}: set KINFORMER_GOLDENS to the folder that holds {mechanism}/*.json"
    if os.environ.get("CI") == "true":
        pytest.fail(absent, pytrace=False)
    pytest.skip(absent)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for group in terminalreporter.stats.values() for r in group if isinstance(r, report.Report)]
    write = terminalreporter.write_line
    laws = report.law_rows(reports)
    terminalreporter.section("laws")
    for line in report.table(("law", "parts", "checks", *report.ENDS), laws):
        write(line)
    write(report.law_line(laws))
    terminalreporter.section("breaks: laws that an example does not keep, by its paper's own definition")
    for line in report.table(("example", "law", "reason"), report.break_rows(reports)):
        write(line)
    terminalreporter.section("not judged")
    for line in report.unjudged_lines(reports):
        write(line)
    write(report.golden_line(reports))

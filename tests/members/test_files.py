"""Every part of some kinds has a test file of its own name: a change of NAME.py is tested by test_NAME.py."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = ("members", "nn/mechanisms")  # folders of parts, the same below `kinformer` and below `tests`


def untested(root: Path, kind: str) -> list[str]:
    """Files of a folder that hold EXAMPLES, but whose test file is missing or has no test."""
    parts = [path for path in (root / "kinformer" / kind).glob("*.py") if re.search(r"^EXAMPLES\b", text(path), re.M)]
    tests = {path.stem: text(path) for path in (root / "tests" / kind).glob("test_*.py")}
    return sorted(path.stem for path in parts if "def test_" not in tests.get(f"test_{path.stem}", ""))


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_has_a_test_file_of_its_name(kind: str) -> None:
    assert (ROOT / "kinformer" / kind).is_dir()
    missing = untested(ROOT, kind)
    assert not missing, f"no test of {missing} in tests/{kind}; write test_NAME.py for each"


def test_a_part_without_a_test_file_is_reported(tmp_path: Path) -> None:
    package, tests = tmp_path / "kinformer" / "kind", tmp_path / "tests" / "kind"
    package.mkdir(parents=True), tests.mkdir(parents=True)
    for name in ("tested", "empty", "absent"):
        (package / f"{name}.py").write_text("EXAMPLES = ()\n")
    (package / "helper.py").write_text("def help(): ...\n")
    (tests / "test_tested.py").write_text("def test_it(): ...\n")
    (tests / "test_empty.py").write_text('"""No test yet."""\n')
    assert untested(tmp_path, "kind") == ["absent", "empty"]

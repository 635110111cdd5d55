"""How OpenMP threads wait in each process of the command line: what `import torch` finds in the environment there."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from kinformer.cli.__main__ import SPIN_COUNT
from kinformer.cli.support.member_cost import measure_in_new_process
from kinformer.core.from_json import from_json
from kinformer.lab.member_choice import parse_member_text

ROOT = Path(__file__).parents[2]
# stands in for torch, so that no test waits for its import, and says what libgomp would read
TORCH = 'import json, os\nprint(json.dumps({"spins": os.environ.get("GOMP_SPINCOUNT")}), flush=True)\nos._exit(0)\n'
COST, TRAIN = ["cost", "gpt"], ["train", "gpt", "--data", "text=stdlib", "--out", "none", "--steps", "1"]
SCRIPT = "import sys; from {} import {}; sys.argv = ['kinformer', 'cost', 'gpt']; {}()"
RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A user's, who has said nothing of OpenMP, where `import torch` says what it finds."""
    (tmp_path / "torch.py").write_text(TORCH)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(ROOT))))
    monkeypatch.chdir(tmp_path)
    return dict(os.environ)


def spins(environment: dict[str, str], *words: str) -> str | None:
    """The spin count in the environment of `import torch`, in a process of these words."""
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True)
    reported: dict[str, str | None] = from_json(done.stdout)
    return reported["spins"]


def script() -> EntryPoint:
    """The console script `kinformer`."""
    (entry_point,) = entry_points(group="console_scripts", name="kinformer")
    return entry_point


ENTRIES = {
    "the package": ["-m", "kinformer", *COST],
    "the folder": ["-m", "kinformer.cli", *COST],
    "the file": ["-m", "kinformer.cli.__main__", *COST],
    "the console script": ["-c", SCRIPT.format(script().module, script().attr, script().attr)],
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_limits_spinning_before_torch_is_imported(entry: str, environment: dict[str, str]) -> None:
    assert spins(environment, *ENTRIES[entry]) == SPIN_COUNT


def test_so_does_a_process_that_torchrun_starts(environment: dict[str, str]) -> None:
    assert spins({**environment, **RANK}, "-m", "kinformer", *TRAIN) == SPIN_COUNT


def test_so_does_a_process_that_compare_starts(environment: dict[str, str]) -> None:
    """It is another process than the one that runs this test, where nothing is set."""
    assert measure_in_new_process(parse_member_text("gpt"), 1, 8) == {"spins": SPIN_COUNT}
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.parametrize("value", ["", "7"])
def test_what_the_user_has_set_stays(value: str, environment: dict[str, str]) -> None:
    assert spins({**environment, "GOMP_SPINCOUNT": value}, "-m", "kinformer", *COST) == value
    assert spins({**environment, "OMP_WAIT_POLICY": value}, "-m", "kinformer", *COST) is None


def test_the_library_sets_nothing(environment: dict[str, str]) -> None:
    assert spins(environment, "-c", "import kinformer; kinformer.Attention") is None
    assert spins(environment, "-c", "import kinformer.cli.__main__, torch") is None


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is what PyTorch's Linux builds wait with")
def test_libgomp_reads_it() -> None:
    """Its own report of what it took, which it writes when it is loaded."""
    env = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    words = [sys.executable, "-m", "kinformer.cli", "cost", "gpt", "d=8", "depth=1", "heads=2", "--length", "8"]
    done = subprocess.run(
        words, cwd=ROOT, env={**env, "OMP_DISPLAY_ENV": "verbose"}, capture_output=True, text=True, check=True
    )
    assert f"GOMP_SPINCOUNT = '{SPIN_COUNT}'" in done.stderr

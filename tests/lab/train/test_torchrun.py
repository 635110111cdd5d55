"""`torchrun -m kinformer train`: what it prints, keeps and goes on from, whatever ends one of its processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kinformer.lab.train.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.prove
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "kinformer"]
WORDS = [
    "train",
    "transformer_xl",
    "d=16",
    "depth=1",
    "heads=2",
    "segment=8",
    "memory=8",
    "--batch",
    "4",
    "--length",
    "16",
]


def corpus(folder: Path) -> list[str]:
    (folder / "text").write_bytes(bytes(range(97, 123)) * 2000)
    return [*WORDS, "--data", f"text={folder / 'text'}", "--out", str(folder / "run")]


def steps(folder: Path) -> list[int]:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines if '"step"' in line]


def own_lines(text: str) -> list[str]:
    """The lines that are kinformer's own."""
    return [line for line in text.splitlines() if line.startswith(("kinformer: ", "transformer_xl"))]


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    """A training that would go on for long, once it has made some steps."""
    words = [*TORCHRUN, *corpus(folder), "--steps", "1000000", *options]
    process = subprocess.Popen(words, cwd=folder, env=ENV, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    metrics = folder / "run" / "metrics.jsonl"
    while not metrics.is_file() or metrics.read_bytes().count(b"step") < 3:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.2)
    return process


def ranks(process: subprocess.Popen[str]) -> list[int]:
    """The processes that torchrun has started, the first rank first."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    by_rank = {}
    for child in map(int, children):
        env = dict(line.split("=", 1) for line in Path(f"/proc/{child}/environ").read_text().split("\0") if "=" in line)
        if "RANK" in env:
            by_rank[int(env["RANK"])] = child
    return [by_rank[n] for n in sorted(by_rank)]


@pytest.mark.parametrize("form", ["ddp", "shard"])
def test_a_signal_saves_and_one_process_goes_on(form: str, tmp_path: Path) -> None:
    process = started(tmp_path, "--parallel", form)
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=200)[0]
    stopped = RunFolder(tmp_path / "run").step
    assert stopped is not None and steps(tmp_path) == list(range(1, stopped + 1))
    assert [line for line in own_lines(text) if "stopped" in line] == [
        f"kinformer: stopped at step {stopped:,}; the weights are kept in {tmp_path / 'run'}"
    ]
    words = [sys.executable, "-m", "kinformer", *corpus(tmp_path), "--steps", str(stopped + 3), "--resume"]
    done = subprocess.run(words, cwd=tmp_path, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path) == list(range(1, stopped + 4)) and f"step {stopped + 3:,}" in done.stdout


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_the_other_with_one_line(rank: int, tmp_path: Path) -> None:
    process = started(tmp_path)
    os.kill(ranks(process)[rank], signal.SIGKILL)
    began = time.monotonic()
    text = process.communicate(timeout=200)[0]
    assert process.returncode != 0 and time.monotonic() - began < 60
    messages = [
        line
        for line in own_lines(text)
        if "another process of this training has ended, so this process stops too" in line
    ]
    assert len(messages) == 1 and "kinformer/" not in text, text


def test_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    few = ["train", "gpt", "--batch", "1"]
    for words in (["train", "gpt", "width=1"], ["generate", "nowhere"], ["train", "gpt", "--data", "text=none"], few):
        options = ["--out", str(tmp_path / "run"), "--steps", "1"] if words[0] == "train" else []
        options += ["--data", "text=stdlib"] if words[0] == "train" and "--data" not in words else []
        done = subprocess.run([*TORCHRUN, *words, *options], cwd=tmp_path, env=ENV, capture_output=True, text=True)
        assert done.returncode != 0 and len(own_lines(done.stderr)) == 1, done.stderr
        assert not (tmp_path / "run").exists()

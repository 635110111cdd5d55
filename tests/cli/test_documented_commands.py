"""Every command line in README.md and docs/ is run by the real command line, in this one process.

A line of a command in WHOLE runs to its end, with the smaller budgets and sizes of SOONER, on the files of `workshop`.
A line of a command in BEGUN runs until the first model computes, or a function in SEARCHES is called: all its words are
parsed, its members are built or loaded, and its data is read. A line that is neither of these commands, nor in OTHERS,
fails the test.
"""

import csv
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy
import pytest
from jaxtyping import config
from safetensors.torch import save_file
from torch import nn

from kinformer.bridge.family import native
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from kinformer.cli.__main__ import COMMANDS, run
from kinformer.members.gpt import gpt
from tests.bridge.test_tokenizers import CHATML, folder_with
from tests.cli.folders import folder

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WHOLE = {
    "list",
    "show",
    "cost",
    "advise",
    "train",
    "generate",
    "read",
    "evaluate",
    "fill",
    "forecast",
    "datastore",
    "convert",
    "play",
    "classify",
    "export",
    "score",
    "look",
}
BEGUN = {"compare", "claim", "check", "calibrate", "knn-lm", "tour", "atlas", "arena"}
SEARCHES = ("kinformer.lab.claims.bigbird_paths.paths", "kinformer.cli.support.comparison.match_parameters")
OTHERS = re.compile(
    r"pip install |make \w+ |torchrun --nproc-per-node 2 -m kinformer train "
)  # of a shell, not of kinformer
SOONER = {  # what a line says, and what is run in its place
    r"--minutes 9": "--batch 2 --length 16 --steps 3",  # it continues the training of the workshop
    r"--minutes \S+|--steps \d{3,}": "--steps 2",
    r"--flops \S+": "--flops 1e6",
    r"--length \d+": "--length 16",
    r"--batch \d+": "--batch 2",
    r"--tokens \d+": "--tokens 3",
    r"--pictures \d+": "--pictures 1",
    r"--search \d+": "--search 2",
    r"--episodes \d+": "--episodes 2",
    r"(--return \d+ )+": "--return 9 --episodes 1 ",
    r"\bd=64, depth=4\b": "d=16, depth=1, heads=2",
    r"\bdepth=4\b": "depth=1 d=16 heads=2",
    r"\btrain (gpt|longformer_lm|decision_transformer|behaviour_cloning)\b(?! --from)": r"train \1 d=16 depth=2",
    r"\btrain image_transformer\b": "train image_transformer d=16 depth=1 heads=2",
    r"\btrain informer horizon=96\b": "train informer d=16 heads=2 context=8 label=4 horizon=3",
    r"rows=14400": "rows=300",
    r"(?<=text=)(PATH|stdlib|bleak-house.txt)": "book.txt",
    r"(?<=images=)FOLDER": "pictures.npz",
    r"(?<=offline=)PATH": "mixed/expert.npz",
    r"(?<=--prompts )FILE": "prompts.txt",
    r"(?<=\bscore )(\S+) --texts FILE": r"\1 --texts prompts.txt",
    r"hf:HuggingFaceTB/SmolLM2-135M-Instruct": "hf:CHAT_FOLDER",
    r"--delta 0.1 --epsilon 0.05": "--delta 0.5 --epsilon 0.2 --samples 9",
    r"--then steps=\d+": "--then steps=2",
    r"\bcompare gpt llama (?!--match)": "compare 'gpt(d=16, depth=1)' 'llama(d=16, depth=1)' ",
    r"\bconvert .*--out \S+": r"\g<0> --seconds 0.2",
    r"\bgenerate (?!.*--(tokens|pictures))": "generate --tokens 3 ",
    r"--(out|save) (?!.*--resume)(\S+)": r"--\1 new/\2",
}
OWN_MODEL = """
from torch import nn

class MyLM(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Embedding(11, 8), nn.Linear(8, 11))
"""


class Begun(BaseException):
    """A model computes for the first time."""


def lines() -> list[str]:
    """The command lines of all pages, once each, without their comments."""
    found = {}
    for page in PAGES:
        text = re.sub(r"\\\n\s*", "", page.read_text("utf-8"))
        for line in re.findall(r"^    (\S.*)", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE):
            if page.name == "README.md" or re.match("kinformer |torchrun |make |pip ", line):
                found[re.sub(r"\s+#.*", "", line).strip() + " "] = page.name
    return list(found)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with the files and runs that the lines name, all of them small."""
    root, here = tmp_path_factory.mktemp("workshop"), os.getcwd()
    os.chdir(root)
    config.update("jaxtyping_disable", True)  # as in the tests of this folder, which begin later
    Path("mixed").mkdir()
    Path("book.txt").write_bytes(b"the cat sat on the mat. " * 800)
    Path("long.txt").write_bytes(b"the cat sat on the mat. " * 4)
    Path("notes.txt").write_bytes(b"a cat and a hat. " * 20)
    Path("prompts.txt").write_text("the cat\nsat on\n")
    Path("notes.jsonl").write_text("".join(f'{{"body": "the cat number {n} sat on the mat"}}\n' for n in range(200)))
    Path("mine.py").write_text(next(block for block in python_blocks() if "@kf.member" in block))
    write_series(Path("ETTh1.csv"))
    pixels = numpy.random.default_rng(0).integers(256, size=(30, 4, 4), dtype=numpy.uint8)
    labels = numpy.arange(30) % 10
    numpy.savez("pictures.npz", x_train=pixels, y_train=labels, x_test=pixels[:4], y_test=labels[:4])
    assert run(["play", "--env", "Pendulum-v1", "--episodes", "4", "--save", "mixed/expert.npz"]) == 0
    words = "train llama d=16 depth=1 heads=2 --data text=book.txt --steps 2 --batch 2 --length 16 --out runs/llama"
    assert run(words.split()) == 0
    runs: dict[str, tuple[str, dict[str, Any]]] = {
        "xl": ("transformer_xl", {}),
        "calm": ("calm", {"depth": 2, "length": 64}),
        "depth_adaptive": ("depth_adaptive", {"depth": 2, "classifier": "geometric", "length": 64}),
        "pairs": ("transformer", {}),
        "bert": ("bert", {}),
        "labels": ("bert_classifier", {}),
        "pictures": ("image_transformer", {"shape": (1, 4, 4), "block": 4, "memory": 4}),
        "series": ("informer", {"context": 8, "label": 4, "horizon": 3}),
        "dt": ("decision_transformer", {"context": 3}),
        "pendulum": ("decision_transformer", {"context": 3, "states": 3, "actions": 1, "discrete": False}),
        "clone": ("behaviour_cloning", {"context": 3, "states": 3, "actions": 1, "discrete": False}),
        "mine/mine": ("mine.py:mine", {}),
    }
    write_hf_folder(Path("HF_FOLDER"))
    write_hf_folder(Path("models/gpt2"))
    folder_with(Path("CHAT_FOLDER"), CHATML)
    Path("model.py").write_text(OWN_MODEL)
    for name, (member, keywords) in runs.items():
        folder(root / "runs" / name, member, **keywords)
    for words in (
        "datastore build runs/llama --data text=notes.txt --length 16 --out runs/store",
        "datastore build runs/xl --data text=notes.txt --length 16 --out STORE",
        "knn-lm runs/xl --datastore STORE --data text=book.txt --bytes 40 --length 16 --k 2",
        "read runs/xl long.txt --save long.state",
        "convert HF_FOLDER --to window window=8 sinks=2 --seconds 0 --out runs/streaming",
        "read runs/streaming long.txt --save streaming.state",
        "train gtrxl d=16 depth=1 heads=2 --data env=t_maze,corridor=2 --batch 2 --length 4 --steps 1 --out runs/maze",
    ):
        assert run(words.split()) == 0
    shutil.copytree("STORE", "runs/xl_store")
    shutil.copytree("runs/streaming", "runs/window")
    yield root
    os.chdir(here)


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGES[0].read_text("utf-8"), re.DOTALL)


def write_hf_folder(path: Path) -> None:
    """A GPT-2 as transformers writes it."""
    tokenizer = train_tokenizer(["the cat sat on the mat. "], 280)
    model = gpt(d=16, depth=1, heads=2, length=64, vocab=tokenizer.size)
    family, config = native(model)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(tokenizer.text)
    save_file(family.split(model), path / "model.safetensors")


def write_series(path: Path) -> None:
    values = numpy.random.default_rng(0).normal(50, 9, size=(300, 7))
    rows = [[datetime(2016, 7, 1) + timedelta(hours=n), *row] for n, row in enumerate(values)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["date", "HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"], *rows])


@pytest.mark.parametrize("line", lines())
def test_a_command_line_of_the_pages_works(
    line: str, workshop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if OTHERS.match(line):
        target = re.match(r"make (\w+)", line)
        assert not target or f"\n{target[1]}:" in (ROOT / "Makefile").read_text("utf-8"), line
        return
    shutil.rmtree("new", ignore_errors=True)
    Path("new/mixed").mkdir(parents=True)
    for said, instead in SOONER.items():
        line = re.sub(said, instead, line)
    program, command, *_ = words = shlex.split(line)
    assert program == "kinformer" and command in WHOLE | BEGUN, f"add {command} to WHOLE or BEGUN: {line}"
    if command in WHOLE:
        code = run(words[1:])
        assert code == 0, capsys.readouterr().err
        return

    def begin(*_: object, **__: object) -> None:
        raise Begun

    monkeypatch.setattr(nn.Module, "__call__", begin)
    for search in SEARCHES:
        monkeypatch.setattr(search, begin)
    with pytest.raises(Begun):
        code = run(words[1:])
        pytest.fail(f"{line} ended with exit code {code}: {capsys.readouterr().err}")


def test_every_command_has_its_treatment_and_is_documented() -> None:
    commands = set(COMMANDS.commands)  # type: ignore[attr-defined]
    assert commands <= WHOLE | BEGUN
    assert commands == {shlex.split(line)[1] for line in lines() if line.startswith("kinformer ")} & commands

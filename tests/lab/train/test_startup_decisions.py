"""What a training decides of its model is decided once, at its own sizes, and read from its folder when it goes on."""

import copy
import hashlib
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.model_files import CheckpointError
from kinformer.cli.__main__ import run
from kinformer.core.discover import members, modules
from kinformer.core.example import Example
from kinformer.core.patterns.document import Document
from kinformer.core.token_positions import context_of_tokens
from kinformer.lab.data.data import Data
from kinformer.lab.data.text import TextData
from kinformer.lab.train import loop
from kinformer.lab.train import startup_decisions as decisions
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.distributed import SINGLE_PROCESS
from kinformer.lab.train.packs_documents import packs_documents
from kinformer.lab.train.probe_model import probe_of
from kinformer.lab.train.reads_ahead import reads_ahead
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.startup_decisions import Decisions, decide, saved_decisions
from kinformer.lab.train.train import train
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.longformer import longformer
from kinformer.members.reformer import reformer
from kinformer.members.routing_transformer import routing_transformer
from kinformer.members.sparse_transformer import sparse_transformer
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from tests.lab.train.runs import same, steps

pytestmark = pytest.mark.usefixtures("no_waiting")
SIZE = {"d": 16, "depth": 1, "heads": 2}
ROOT = Path(__file__).parents[3]


def notes(length: int = 60) -> TextData:
    """Documents of unequal sizes, so that a row of so many tokens holds several."""
    draw = torch.Generator().manual_seed(3)
    sizes = torch.randint(3, length, (40,), generator=draw)
    splits = {"train": sizes, "valid": sizes[:3], "test": sizes[:3]}
    tokens = {
        name: torch.randint(97, 110, (int(lengths.sum()),), generator=draw).byte() for name, lengths in splits.items()
    }
    begins = {
        name: torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]]) for name, lengths in splits.items()
    }
    return TextData("notes", **tokens, begins=begins)


def settings(length: int) -> Settings:
    return Settings(batch=2, length=length, lr=1e-2, measures=2, valid_bytes=40)


def trained(make: Callable[[], Any], folder: Path, length: int, *stops: float) -> Any:
    """A model after eight steps, stopped at parts of them and gone on with by fresh models."""
    for n, until in enumerate((*stops, 1.0)):
        torch.manual_seed(n and 7)  # whatever a fresh model starts as, its weights are those that were kept
        model = make()
        train(model, notes(), StepBudget(8), settings(length), folder=folder, resume=n > 0, until=until)
    return model


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda: sparse_transformer(**SIZE, stride=8, summary=2, length=64), 60),
        (lambda: longformer(d=32, depth=1, heads=2, window=64), 100),
    ],
)
def test_documents_are_gone_on_with_bit_for_bit(make: Callable[[], Any], length: int, tmp_path: Path) -> None:
    """These read positions of the row: heads of zeros, or a window of most of the row, hide it."""
    assert same(trained(make, tmp_path / "parts", length, 0.5, 0.75), trained(make, tmp_path / "whole", length))
    for folder in ("parts", "whole"):
        assert RunFolder(tmp_path / folder).state()["decisions"] == {"reads_ahead": "", "packs_documents": False}


@pytest.mark.prove
@pytest.mark.parametrize("name", sorted(members()))
def test_every_member_that_reads_text_goes_on_with_documents_bit_for_bit(name: str, tmp_path: Path) -> None:
    sizes = SIZE | {"dropout": 0.1, "segment": 4, "memory": 6}
    function = members()[name]
    keywords = {key: value for key, value in sizes.items() if key in inspect.signature(function).parameters}
    if isinstance(function.rebuild(**keywords), LM | MLM):  # whether all of them have an effect or not
        first, other = (
            trained(lambda: function.rebuild(**keywords), tmp_path / str(len(stops)), 60, *stops)
            for stops in ((0.5,), ())
        )
        assert same(first, other)


@pytest.mark.prove
def test_a_process_that_is_killed_goes_on_with_documents_bit_for_bit(tmp_path: Path) -> None:
    life = (
        "import math, sys, os, signal, torch\n"
        "from pathlib import Path\n"
        "from tests.lab.train.runs import KilledAt\n"
        "from tests.lab.train.test_startup_decisions import *\n"
        "loop.EVERY, loop.SHARE, at = 0.0, math.inf, int(sys.argv[2])\n"
        "class Kill(KilledAt):\n"
        "    def status(self, status):\n"
        "        if status.step == at: os.kill(os.getpid(), signal.SIGKILL)\n"
        "make = lambda: sparse_transformer(**SIZE, stride=8, summary=2, length=64)\n"
        "torch.manual_seed(0)\n"
        "train(make(), notes(), StepBudget(8), settings(60), folder=Path(sys.argv[1]), show=Kill(at), resume=True)\n"
    )
    for at, code in ((3, -signal.SIGKILL), (6, -signal.SIGKILL), (99, 0)):
        words = [sys.executable, "-W", "ignore", "-c", life, str(tmp_path / "parts"), str(at)]
        assert subprocess.run(words, cwd=ROOT, env=os.environ, check=False).returncode == code
    whole = trained(lambda: sparse_transformer(**SIZE, stride=8, summary=2, length=64), tmp_path / "whole", 60)
    restored = sparse_transformer(**SIZE, stride=8, summary=2, length=64)
    RunFolder(tmp_path / "parts").restore(restored)
    assert same(restored, whole) and steps(tmp_path / "parts") == list(range(1, 9))


def test_a_run_reads_its_decisions_and_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> Decisions:
        raise AssertionError("it is decided already")

    whole, model = trained(lambda: gpt(**SIZE, length=60), tmp_path / "whole", 60), gpt(**SIZE, length=60)
    torch.manual_seed(0)
    train(gpt(**SIZE, length=60), notes(), StepBudget(8), settings(60), folder=tmp_path / "parts", until=0.5)
    assert RunFolder(tmp_path / "parts").state()["decisions"] == {"reads_ahead": "", "packs_documents": True}
    monkeypatch.setattr(loop, "decide", never)
    train(model, notes(), StepBudget(8), settings(60), folder=tmp_path / "parts", resume=True)
    assert same(model, whole)


def written_before(folder: Path, **changes: Any) -> None:
    """Make the run in a folder one of a version that wrote no decisions down, or that decided otherwise."""
    path = folder / "trainer" / str(RunFolder(folder).step) / "trainer.json"
    state = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("sum", "decisions")}
    state |= changes
    path.write_text(
        json.dumps({**state, "sum": hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()})
    )


def test_what_a_run_has_decided_decides_its_batches(tmp_path: Path) -> None:
    """A run that packed goes on packing, although its model would not be found to pack."""

    def make() -> Any:
        torch.manual_seed(0)
        return sparse_transformer(**SIZE, stride=8, summary=2, length=64)

    models = {}
    for packed in (False, True):
        train(make(), notes(), StepBudget(8), settings(60), folder=tmp_path / str(packed), until=0.5)
        written_before(tmp_path / str(packed), decisions={"reads_ahead": "", "packs_documents": packed})
        models[packed] = make()
        train(models[packed], notes(), StepBudget(8), settings(60), folder=tmp_path / str(packed), resume=True)
    assert not same(models[True], models[False])


def test_a_run_that_wrote_no_decisions_down_goes_on(tmp_path: Path) -> None:
    make = lambda: sparse_transformer(**SIZE, stride=8, summary=2, length=64)  # noqa: E731
    whole = trained(make, tmp_path / "whole", 60)
    torch.manual_seed(0)
    train(make(), notes(), StepBudget(8), settings(60), folder=tmp_path / "parts", until=0.5)
    written_before(tmp_path / "parts")
    model = make()
    train(model, notes(), StepBudget(8), settings(60), folder=tmp_path / "parts", resume=True)
    assert same(model, whole) and "decisions" in RunFolder(tmp_path / "parts").state()


def test_a_run_that_reads_ahead_says_so_when_it_goes_on(tmp_path: Path) -> None:
    def make() -> Any:
        return reformer(**SIZE | {"depth": 2}, chunk=16)

    for resume, until in ((False, 0.5), (True, 1.0)):
        with pytest.warns(UserWarning, match="this reformer reads ahead, as its part declares: ") as warned:
            train(make(), notes(), StepBudget(2), settings(64), folder=tmp_path, resume=resume, until=until)
        assert len(warned) == 1


# What packs ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def read_alike(model: LM | MLM, sizes: list[int]) -> bool:
    """Brute force, with noise on the weights: is each document read in a row as it is read alone, and not refused?"""
    model = probe_of(model).train(model.training)
    tokens = model.sample(1, sum(sizes), 11)
    ids = torch.tensor([[n for n, size in enumerate(sizes) for _ in range(size)]])
    try:
        packed = model.logits(tokens, ctx=context_of_tokens(tokens).replace(only=Document(ids))).y
    except (ValueError, NotImplementedError):
        return False
    alone = torch.cat([model.logits(document).y for document in tokens.split(sizes, 1)], 1)
    return torch.allclose(packed, alone, rtol=0, atol=1e-9 * float(alone.abs().max()))


NOT = {
    "the row's first token": lambda: longformer(d=32, window=64),
    "blocks and heads of zeros": lambda: sparse_transformer(**SIZE, stride=32, summary=4, length=128),
    "clusters of one size": lambda: routing_transformer(**SIZE, window=32),
    "a faint look at the first": lambda: gpt(**SIZE, position="rotary", pattern="Causal() & (Band(90) | Tokens(1))"),
    "a border far behind": lambda: gpt(**SIZE, position="rotary", pattern="Causal() & Block(96)"),
}


@pytest.mark.parametrize("name", NOT)
def test_what_reads_positions_of_the_row_does_not_pack(name: str) -> None:
    torch.manual_seed(0)
    model = NOT[name]()
    assert not packs_documents(model, 100) and not read_alike(model.eval(), [3, 97])


def test_what_names_no_position_within_the_row_packs() -> None:
    for pattern in ("Causal() & Block(128)", "Causal() & Strided(7)", "Causal() & Band(3)"):
        model = gpt(**SIZE, position="rotary", pattern=pattern)
        assert packs_documents(model, 100) and read_alike(model.eval(), [3, 97])


@pytest.mark.prove
def test_all_members_that_pack_read_documents_in_a_row_as_each_alone() -> None:
    by_answer: dict[bool, set[str]] = {True: set(), False: set()}
    for name, module in modules("members").items():
        for n, example in enumerate(module.EXAMPLES):
            torch.manual_seed(0)
            model = Example.from_entry(example).make()
            if isinstance(model, LM | MLM):
                length = min(60, model.longest or 60)
                does = packs_documents(model, length)
                by_answer[does].add(f"{name} {n}")
                cuts = [[length - 1, 1], [length // 2, length - length // 2], [5, 1, 12, length - 18]]
                modes = [all(read_alike(model.train(mode), sizes) for sizes in cuts) for mode in (False, True)]
                assert any(modes) == does, name  # one alone where train mode draws, or where tokens leave in eval mode
    assert {"gpt 0", "llama 0", "bert 0", "bloom 0", "sparse_transformer 1", "longformer 1"} <= by_answer[True]
    assert {"longformer 0", "sparse_transformer 0", "bigbird 0", "reformer 0", "synthesizer 0"} <= by_answer[False]
    assert len(by_answer[True]) > 40


def test_no_row_is_tried_that_is_longer_than_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    for name in ("reads_ahead", "packs_documents"):
        monkeypatch.setattr(
            f"kinformer.lab.train.startup_decisions.{name}", lambda model, length: lengths.append(length) or ""
        )
    decide(gpt(**SIZE, length=10**5), notes(), settings(10**5), SINGLE_PROCESS)
    assert lengths == [len(notes().train)] * 2


def test_a_model_of_lanes_or_of_one_text_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinformer.lab.train.startup_decisions.packs_documents", lambda model, length: 1 / 0)
    joined: Data = TextData("joined", *(getattr(notes(), name) for name in ("train", "valid", "test")))
    assert decide(gpt(**SIZE, length=60), joined, settings(60), SINGLE_PROCESS) == Decisions()


def test_decisions_of_another_version_are_one_line() -> None:
    with pytest.raises(CheckpointError, match="another version of kinformer saved this run") as error:
        saved_decisions({"decisions": {"reads_ahead": None, "moods": 3}})
    assert "\n" not in str(error.value) and saved_decisions({}) is None


def no_memory(model: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory.")


def no_copy(model: Any) -> Any:
    raise TypeError("cannot pickle a file")


@pytest.mark.parametrize("failing", [no_memory, no_copy])
def test_a_model_that_cannot_be_copied_reads_rows_of_one_document_each(
    failing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "deepcopy", failing)
    assert decide(bert(**SIZE), notes(), settings(60), SINGLE_PROCESS) == Decisions()


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models of which it was decided whether they read ahead, and whether they pack."""
    models = list[Any]()
    for name, function in (("reads_ahead", reads_ahead), ("packs_documents", packs_documents)):
        monkeypatch.setattr(
            decisions, name, lambda model, length, call=function: models.append(model) or call(model, length)
        )
    return models


@pytest.mark.parametrize(
    ("words", "models"),
    [
        (["train", "gpt", "d=16", "depth=1", "heads=2"], 1),
        (["train", "gpt", "d=16", "depth=1", "heads=2", "--then", "steps=1", "--then", "steps=1"], 3),
        (["compare", "gpt(d=16,depth=1,heads=2)", "--seeds", "2"], 1),
    ],
)
def test_a_command_decides_once_of_each_model(
    words: list[str], models: int, decided: list[Any], tmp_path: Path
) -> None:
    """The trainings of a member read the decisions that its refusal before the first step was made of."""
    (tmp_path / "text").write_bytes(b"".join(b"the cat sat on mat %d\n" % n for n in range(200)))
    spec = f"text={tmp_path}/text,documents=lines"
    options = ["--data", spec, "--steps", "1", "--batch", "2", "--length", "16", "--out", f"{tmp_path}/run"]
    assert run([*words, *options]) == 0
    assert len(decided) == 2 * models and len({id(model) for model in decided}) == models
    runs = [RunFolder(path.parent).state() for path in (tmp_path / "run").rglob("metrics.jsonl")]
    assert {json.dumps(state["decisions"]) for state in runs} == {'{"reads_ahead": "", "packs_documents": true}'}

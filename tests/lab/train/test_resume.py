"""A run goes on where it was stopped: to the same weights, and to the same lines, as if it had never been."""

import hashlib
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.core.discover import member, members
from kinformer.core.model import Model
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.text import TextData
from kinformer.lab.train import loop
from kinformer.lab.train.budget import Budget, MinuteBudget, StepBudget
from kinformer.lab.train.distributed import SingleProcess
from kinformer.lab.train.fit import fit
from kinformer.lab.train.history import History
from kinformer.lab.train.progress import ProgressDisplay
from kinformer.lab.train.run_folder import STATE, RunFolder
from kinformer.lab.train.start_record import ResumeError, start_record
from kinformer.lab.train.train import train
from kinformer.lab.train.training_stages import is_finished
from kinformer.members.adaptive_span import adaptive_span
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.performer import performer
from kinformer.members.routing_transformer import routing_transformer
from kinformer.members.transformer_xl import transformer_xl
from tests.lab.train import tiny
from tests.lab.train.runs import SMALL, Killed, KilledAt, lines, noise, same, steps

pytestmark = pytest.mark.usefixtures("no_waiting")
SIZE = {"d": 16, "depth": 1, "heads": 2}


MODELS: dict[str, Callable[[], Any]] = {
    "lanes": tiny.lane,
    "dropout": lambda: gpt(**SIZE, length=12, dropout=0.3),
    "memory": lambda: transformer_xl(**SIZE, segment=4, memory=6, dropout=0.2),
    "masked tokens": lambda: bert(**SIZE, length=12),
    "centroids": lambda: routing_transformer(**SIZE),
    "spans": lambda: adaptive_span(**SIZE),
    "drawn features": lambda: performer(**SIZE, redraw=2),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_goes_on_to_the_same_weights_and_lines(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, whole = noise(), MODELS[name]()
    begin = {key: value.clone() for key, value in whole.state_dict().items()}
    history = train(whole, text, StepBudget(8), SMALL, folder=tmp_path / "whole")
    every = iter(range(100))
    monkeypatch.setattr(loop, "EVERY", 0.0)
    monkeypatch.setattr(loop.Training, "save", _now_and_then(every))
    for step in (4, 7):
        model = MODELS[name]()
        model.load_state_dict(begin) if step == 4 else None
        with pytest.raises(Killed):
            train(model, text, StepBudget(8), SMALL, folder=tmp_path / "parts", show=KilledAt(step), resume=step > 4)
    model = MODELS[name]()
    resumed = train(model, text, StepBudget(8), SMALL, folder=tmp_path / "parts", resume=True)
    assert same(model, whole) and same(load(tmp_path / "parts", _own(whole)), load(tmp_path / "whole", _own(whole)))
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole") and steps(tmp_path / "parts") == list(range(1, 9))
    assert [(p.step, p.train, p.valid) for p in resumed.points] == [(p.step, p.train, p.valid) for p in history.points]


@pytest.mark.prove
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", sorted(members()))
def test_every_member_goes_on_to_the_same_weights(
    name: str, precision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = members()[name]
    sizes = SIZE | {"dropout": 0.2, "segment": 4, "memory": 6}
    keywords = {key: value for key, value in sizes.items() if key in inspect.signature(function).parameters}
    settings = replace(SMALL, precision=precision)

    def trained(folder: Path, *stops: int) -> Model:
        for stop in (*stops, None):
            torch.manual_seed(0)
            model = function.rebuild(**keywords)  # type: ignore[attr-defined]
            data = text if model.reads in ("text", "masked") else Batches([model.sample(3, 12, n) for n in range(4)])
            show = ProgressDisplay() if stop is None else KilledAt(stop)
            with nullcontext() if stop is None else pytest.raises(Killed):
                train(model, data, StepBudget(7), settings, folder=folder, show=show, resume=stop != (*stops, None)[0])
        return model

    text = noise()
    monkeypatch.setattr(loop, "EVERY", 0.0)
    assert same(trained(tmp_path / "parts", 3, 5), trained(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("budget", "changes"),
    [
        (StepBudget(8), {"schedule": "noam", "warmup": 3, "betas": (0.9, 0.98), "eps": 1e-9}),
        (StepBudget(8), {"schedule": "inverse_sqrt", "warmup": 0.5}),
        (MinuteBudget(8 / 60), {"schedule": "linear", "warmup": 3}),
    ],
)
def test_it_goes_on_at_the_rates_of_its_schedule(
    budget: Budget, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr(loop, "monotonic", lambda: float(next(ticks)))  # a step takes a second
    monkeypatch.setattr(loop, "EVERY", 0.0)
    text, settings = noise(), replace(SMALL, **changes)

    def trained(folder: str, *stops: int) -> Model:
        for stop in (*stops, None):
            torch.manual_seed(0)
            model = tiny.bigram()
            with nullcontext() if stop is None else pytest.raises(Killed):
                show = ProgressDisplay() if stop is None else KilledAt(stop)
                train(
                    model, text, budget, settings, folder=tmp_path / folder, show=show, resume=stop != (*stops, None)[0]
                )
        return model

    whole, parts = trained("whole"), trained("parts", 2, 5)
    assert same(parts, whole) and lines(tmp_path / "parts") == lines(tmp_path / "whole")
    rates = [line["lr"] for line in lines(tmp_path / "whole") if "step" in line]
    assert len(rates) == 8 and len(set(rates)) > 6


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what its files do not know, it had what is usual today: a keyword of its member, the numbers of Adam."""
    text, model = noise(), newer()
    monkeypatch.setattr(loop, "start_record", _without_news)
    model.member = replace(model.member, keywords={"d": 8})
    train(model, text, StepBudget(2), SMALL, folder=tmp_path)
    monkeypatch.undo()
    state = (tmp_path / "trainer" / "2" / STATE).read_text()
    assert "betas" not in state and "extra" not in state + (tmp_path / "config.json").read_text()
    for other, settings, message in (
        (newer(extra=4), SMALL, "got extra=4, expected extra=3. Pass extra=3"),
        (newer(), replace(SMALL, eps=1e-9), "got eps=1e-09, expected eps=1e-08"),
    ):
        with pytest.raises(ResumeError, match=message):
            train(other, text, StepBudget(4), settings, folder=tmp_path, resume=True)
    assert train(newer(), text, StepBudget(4), SMALL, folder=tmp_path, resume=True).step == 4


def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    text = noise_of(1_800_000)
    train(tiny.bigram(), text, StepBudget(2), SMALL, folder=tmp_path)
    for place in torch.randint(len(text.train), (5,), generator=torch.Generator().manual_seed(0)).tolist():
        changed = text.train.clone()
        changed[place] ^= 1
        with pytest.raises(ResumeError, match="the contents of cycle have changed since the run started"):
            train(tiny.bigram(), replace(text, train=changed), StepBudget(3), SMALL, folder=tmp_path, resume=True)
    assert train(tiny.bigram(), noise_of(1_800_000), StepBudget(3), SMALL, folder=tmp_path, resume=True).step == 3


def noise_of(count: int) -> TextData:
    tokens = torch.randint(256, (count,), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return replace(tiny.text(), train=tokens)


def test_a_run_with_a_sampled_fingerprint_goes_on_and_gets_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = noise_of(600_000)
    monkeypatch.setattr(loop, "start_record", lambda *arguments: start_record(*arguments) | {"bytes": sampled(text)})
    train(tiny.bigram(), text, StepBudget(2), SMALL, folder=tmp_path)
    monkeypatch.undo()
    with pytest.raises(ResumeError, match="the contents of cycle have changed"):
        train(tiny.bigram(), noise_of(600_001), StepBudget(3), SMALL, folder=tmp_path, resume=True)
    assert train(tiny.bigram(), text, StepBudget(3), SMALL, folder=tmp_path, resume=True).step == 3
    assert RunFolder(tmp_path).state()["begun"]["bytes"] == text.fingerprint != sampled(text)


def sampled(text: TextData) -> str:
    """The fingerprint as version 0.1 had it: the shape and 64 blocks of 4,096 bytes of train and valid."""
    sha = hashlib.sha256()
    for tokens in (text.train, text.valid):
        data = bytes(tokens.tolist())
        sha.update(f"{(len(data),)} torch.uint8".encode())
        for first in sorted({max(len(data) - 4096, 0) * n // 63 for n in range(64)}):
            sha.update(data[first : first + 4096])
    return sha.hexdigest()


@member
def newer(d: int = 8, extra: int = 3) -> tiny.Bigram:
    return tiny.Bigram(d)


def _without_news(*arguments: Any) -> dict[str, Any]:
    record = start_record(*arguments)
    for section, name in (("keywords", "extra"), ("settings", "betas"), ("settings", "eps")):
        record[section].pop(name, None)
    return record


def _own(model: Any) -> Any:
    return tiny.lane if isinstance(model, tiny.Lane) else None


def _now_and_then(every: Any) -> Callable[[Any], None]:
    """Every other save is left out, so that there are steps to make again."""
    save = loop.Training.save
    return lambda training: save(training) if next(every) % 2 == 0 else None


def test_a_larger_budget_goes_on_with_what_has_ended(tmp_path: Path) -> None:
    text, model = noise(), tiny.bigram()
    first = train(model, text, StepBudget(6), SMALL, folder=tmp_path)
    assert is_finished(tmp_path, StepBudget(6)) and not is_finished(tmp_path, StepBudget(9))
    repeated = train(tiny.bigram(), text, StepBudget(6), SMALL, folder=tmp_path, resume=True)
    assert repeated == first and steps(tmp_path) == list(range(1, 7))
    longer = train(tiny.bigram(), text, StepBudget(9), SMALL, folder=tmp_path, resume=True)
    assert steps(tmp_path) == list(range(1, 10)) and longer.points[:3] == first.points and longer.points[-1].step == 9
    rates = [line["lr"] for line in lines(tmp_path) if "step" in line]
    expected = [1e-2 * SMALL.recipe(model).rate(step, step / 9) for step in range(6, 9)]
    assert rates[6:] == expected and rates[6] > rates[5]  # those of the new length


def test_only_lines_of_steps_have_a_step_and_history_reads_them(tmp_path: Path) -> None:
    history = train(tiny.bigram(), noise(), StepBudget(5), SMALL, folder=tmp_path)
    entries = lines(tmp_path)
    assert [set(line) for line in entries if "step" not in line] == [{"metric", "data"}] + 3 * [
        {"valid", "train", "after"}
    ]
    assert steps(tmp_path) == [1, 2, 3, 4, 5] and entries[0]["metric"]["name"] == "bits per byte"
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "to')  # torn off by a kill
    assert History.read(tmp_path) == history
    (tmp_path / "metrics.jsonl").write_text("x\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl is not a record of a training"):
        History.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": replace(SMALL, batch=4)}, "got batch=4, expected batch=3. Pass batch=3, or start another run"),
        ({"settings": replace(SMALL, lr=0.5)}, "got lr=0.5, expected lr=0.01"),
        ({"settings": replace(SMALL, accumulate=2)}, "got accumulate=2, expected accumulate=1"),
        ({"settings": replace(SMALL, precision="bf16")}, "got precision=bf16, expected precision=float32"),
        ({"model": lambda: tiny.bigram(d=4)}, "got d=4, expected d=8"),
        ({"model": tiny.lane}, "got member=lane, expected member=bigram"),
        ({"text": lambda: tiny.text(300)}, "the contents of cycle have changed since the run started"),
    ],
)
def test_what_was_begun_otherwise_is_refused_naming_what_differs(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    arguments = {"model": tiny.bigram, "text": tiny.text, "settings": SMALL} | change
    with pytest.raises(ResumeError) as error:
        train(
            arguments["model"](),
            arguments["text"](),
            StepBudget(9),
            arguments["settings"],
            folder=tmp_path,
            resume=True,
        )
    assert message in str(error.value) and "\n" not in str(error.value)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_batch_that_cannot_be_shared_is_refused_before_a_file_is_touched(tmp_path: Path) -> None:
    class Many(SingleProcess):
        def share(self, batch: Any, pieces: int = 1) -> Any:
            raise ValueError("9 processes cannot share a batch of 3 rows; give at least 9")

    train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path)
    (tmp_path / "trainer/1").mkdir()  # what a kill leaves: of another step, and a line that was torn off
    (tmp_path / "trainer/1/trainer.json").write_text("{")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for resume in (False, True):
        with pytest.raises(ValueError, match="9 processes cannot share a batch of 3 rows"):
            train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path, group=Many(), resume=resume)
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_fit_resumes_and_a_new_run_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the training starts from the beginning"):
        first = fit(tiny.bigram(), tiny.text(), steps=4, batch=2, length=8, out=tmp_path, resume=True)
    resumed = fit(tiny.bigram(), tiny.text(), steps=6, batch=2, length=8, out=tmp_path, resume=True)
    assert resumed.points[: len(first.points)] == first.points and resumed.step == 6
    with pytest.raises(ValueError, match="holds a model of 'bigram' that was trained before.*; give another out="):
        fit(tiny.bigram(), tiny.text(), steps=3, batch=2, length=8, out=tmp_path)
    assert RunFolder(tmp_path).step == 6
    fit(tiny.bigram(), tiny.text(), steps=3, batch=2, length=8, out=tmp_path, overwrite=True)
    assert steps(tmp_path) == [1, 2, 3] and [path.name for path in (tmp_path / "trainer").iterdir()] == ["3"]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "has no checkpoint yet"),
        ([".kinformer.lock"], "has no checkpoint yet"),
        ([".kinformer.lock", ".kinformer.within.lock"], "has no checkpoint yet"),
        ([".kinformer.within.lock", "metrics.jsonl"], "has no complete checkpoint to resume from"),
    ],
)
def test_locks_that_a_kill_left_are_nothing_to_go_on_from(names: list[str], says: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.warns(UserWarning, match=f"{says}: the training starts from the beginning"):
        fit(tiny.bigram(), tiny.text(), steps=1, batch=2, length=8, out=tmp_path, resume=True)


def test_batches_in_turn_go_on_with_the_one_that_comes_next(tmp_path: Path) -> None:
    model = tiny.classifier()
    data = Batches([model.sample(4, 5, seed) for seed in range(5)])
    fit(model, data, steps=4, out=tmp_path / "a")
    fit(model, data, steps=7, out=tmp_path / "a", resume=True)
    assert steps(tmp_path / "a") == list(range(1, 8))
    losses = [line["loss"] for line in lines(tmp_path / "a") if "step" in line]
    assert len(set(losses)) == 7

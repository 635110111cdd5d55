"""compare: one budget for all, in turns that change nothing; seeds, rates, and what is not resolved."""

import json
import math
import re
import signal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.cli.support.trials import TrialBudget
from kinformer.lab.compare.lengths import against_length
from kinformer.lab.compare.parameters import count_parameters, match_parameters
from kinformer.lab.cost.cost import cost
from kinformer.lab.member_choice import parse_member_text
from kinformer.lab.train.loop import Training
from tests.cli.test_commands import BIGRAM, QUICK, fails
from tests.lab.train.tiny import bigram, lane

SMALL = "gpt(d=8, depth=1, heads=1, length=8, dropout=0.1)"
LANE = f"{BIGRAM.partition(':')[0]}:lane"


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 200)
    return f"text={tmp_path}/text"


def weights(folder: Path, member: Any = None) -> dict[str, torch.Tensor]:
    return load(folder, member=member).state_dict()


def results(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


def steps_of(folder: Path) -> int:
    return (folder / "metrics.jsonl").read_text().count('"step"')


# turns --------------------------------------------------------------------------------------------------------------


@pytest.mark.prove
def test_turns_are_a_training_in_one_go(tmp_path: Path, text: str) -> None:
    """Also with dropout, which draws, and with a state that is carried from step to step."""
    out, options = tmp_path / "all", ["--data", text, "--steps", "40", *QUICK]
    assert run(["compare", SMALL, LANE, *options, "--out", str(out)]) == 0
    alone = ["d=8", "depth=1", "heads=1", "length=8", "dropout=0.1"]
    assert run(["train", "gpt", *alone, *options, "--out", f"{tmp_path}/gpt"]) == 0
    assert run(["train", LANE, *options, "--out", f"{tmp_path}/lane"]) == 0
    for row, member, name in zip(results(out)["members"], (None, lane), ("gpt", "lane"), strict=True):
        for left, other in ((row["folder"], f"{name}/best"), (str(Path(row["folder"]).parent), name)):
            a, b = weights(out / left, member), weights(tmp_path / other, member)
            assert all(torch.equal(a[key], b[key]) for key in a)
        assert row["steps"] == 40 == steps_of(out / row["folder"] / "..")


def test_everyone_has_a_turn_before_anyone_has_the_next(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    step = Training.step

    def note(training: Training, spent: float) -> None:
        sizes.append(sum(p.numel() for p in training.model.parameters()))
        step(training, spent)

    monkeypatch.setattr(Training, "step", note)
    words = ["--data", text, "--steps", "40", *QUICK, "--out", f"{tmp_path}/o"]
    assert run(["compare", BIGRAM, f"{BIGRAM}(d=3)", *words]) == 0
    first, other = sizes[0], sizes[20]
    assert first != other and sizes == [first] * 20 + [other] * 40 + [first] * 20


@pytest.mark.prove
def test_a_killed_comparison_goes_on_to_the_same_weights(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def words(name: str, *options: str) -> list[str]:
        few = ["--data", text, "--steps", "40", "--seeds", "2", *QUICK]
        return ["compare", SMALL, BIGRAM, *few, "--out", f"{tmp_path}/{name}", *options]

    assert run(words("whole")) == 0
    step, count = Training.step, 0

    def stop(training: Training, spent: float) -> None:
        nonlocal count
        step(training, spent)
        count += 1
        if count == 107:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", stop)
        assert run(words("killed")) == 128 + signal.SIGTERM
    assert not (tmp_path / "killed/results.json").exists()
    fails(capsys, words("killed"), "holds a comparison, which would be overwritten. Give another --out, --overwrite to")
    fails(capsys, words("killed", "--resume", "--lr", "0.5"), "got --lr 0.5, expected no --lr. Leave out --lr, or")
    fails(capsys, words("killed", "--resume", "--seed", "4"), "got --seed 4, expected --seed 0. Pass --seed 0, or")
    less = words("killed", "--resume")
    less.remove(SMALL)
    fails(capsys, less, f"got bigram, expected {SMALL}, bigram. Pass the same members, or")
    plan = tmp_path / "killed/comparison.json"
    whole = plan.read_bytes()
    for spoiled in (b"[]", b"5", b"{"):
        plan.write_bytes(spoiled)
        fails(capsys, words("killed", "--resume"), "cannot resume the comparison in")
    plan.write_bytes(whole)
    weights = min(tmp_path.glob("killed/*/*/model.safetensors"))
    original = weights.read_bytes()
    weights.write_bytes(original[:-9])
    fails(capsys, words("killed", "--resume"), f"{weights} is truncated")
    assert weights.read_bytes() == original[:-9], "what is left is not trained over"
    weights.write_bytes(original)
    assert run(words("killed", "--resume")) == 0
    assert "continues from step" in capsys.readouterr().err
    for a, b in zip(results(tmp_path / "whole")["members"], results(tmp_path / "killed")["members"], strict=True):
        assert a["bits_per_byte"] == b["bits_per_byte"] and a["interval"] == b["interval"]
        assert [trial["points"][-1]["valid"] for trial in a["runs"]] == [
            trial["points"][-1]["valid"] for trial in b["runs"]
        ]


# budgets, seeds, rates ----------------------------------------------------------------------------------------------


def test_flops_are_steps_of_each(tmp_path: Path, text: str) -> None:
    each = {d: cost(bigram(d), 2, 8).step_flops for d in (4, 8)}
    words = ["--data", text, "--flops", f"{10 * each[8]}", *QUICK, "--out", str(tmp_path / "o")]
    assert run(["compare", f"{BIGRAM}(d=4)", f"{BIGRAM}(d=8)", *words]) == 0
    report = results(tmp_path / "o")
    assert [row["steps"] for row in report["members"]] == [10 * each[8] // each[4], 10]
    assert report["settings"]["flops"] == 10 * each[8]


def test_seeds_have_an_interval_and_overlap_is_said(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", text, "--steps", "30", "--seeds", "3", "--lr", "0.03", *QUICK, "--out", str(tmp_path / "o")]
    assert run(["compare", BIGRAM, BIGRAM, f"{BIGRAM}(d=1)", *words]) == 0
    captured, report = capsys.readouterr(), results(tmp_path / "o")
    assert f"bigram#2 is the same member as {BIGRAM}: a second training of it" in captured.err
    out = " ".join(captured.out.split())
    first, second, _ = report["members"]
    assert [trial["seed"] for trial in first["runs"]] == [0, 1, 2]
    assert [trial["bits_per_byte"] for trial in first["runs"]] == [trial["bits_per_byte"] for trial in second["runs"]]
    assert first["bits_per_byte"] == pytest.approx(sum(trial["bits_per_byte"] for trial in first["runs"]) / 3)
    low, high = first["interval"]
    assert low < first["bits_per_byte"] < high and f"{(high - low) / 2:.3f}" in out and " ±" in out
    assert ["bigram", "bigram#2"] in report["not_resolved"]
    assert "These pairs cannot be ranked, because their intervals overlap: bigram and bigram#2" in out
    for trial in first["runs"]:
        assert (tmp_path / "o" / trial["folder"] / "model.safetensors").is_file()


def test_each_member_has_its_own_best_rate_and_is_measured_on_test(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "text").open("ab") as file:
        file.write(b"a dog sat on me. " * 20)  # test is not as valid is
    words = ["--data", text, "--steps", "30", "--lrs", "1e-5,3e-2,1e38", *QUICK, "--out", str(tmp_path / "o")]
    assert run(["compare", BIGRAM, *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    report = results(tmp_path / "o")
    (row,) = report["members"]
    assert report["settings"]["lr"] is None and report["settings"]["grid"] == {"lr": [1e-5, 3e-2, 1e38]}
    means = {entry["point"]["lr"]: entry["mean"] for entry in row["grid"]}
    assert row["point"] == {"lr": 0.03} and row["lr"] == 0.03 and means[1e38] is None and means[0.03] < means[1e-5]
    assert "lr=0.03 is best on validation data. " in out and "not finite" in out and "bytes of test of text=" in out
    assert means[0.03] == min(point["valid"] for point in row["points"]) != row["bits_per_byte"]
    capsys.readouterr()
    limit = str(results(tmp_path / "o")["settings"]["valid_bytes"])
    folder = str(tmp_path / "o" / row["folder"])
    words = ["evaluate", folder, "--data", text, "--member", BIGRAM, "--bytes", limit, "--length", "8", "--json"]
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["value"] == pytest.approx(row["bits_per_byte"])


def test_a_rate_at_which_nothing_learns_is_a_failure(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", text, "--steps", "9", "--lrs", "1e37,1e38", *QUICK, "--out", str(tmp_path / "o")]
    fails(capsys, ["compare", BIGRAM, *words], "the weights before this step are saved in", code=1)


def test_members_that_fill_in_are_compared(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    members = [f"bert(d=8, depth=1, heads={heads}, length=8)" for heads in (1, 2)]
    assert run(["compare", *members, "--data", text, "--steps", "3", *QUICK, "--out", str(tmp_path / "o")]) == 0
    out, report = capsys.readouterr().out, results(tmp_path / "o")
    (unigram,) = report["levels"].items()  # bits per masked byte are no bits per byte
    assert unigram[0] == "unigram entropy" and 1 < unigram[1] < 5 and f"{unigram[1]:.3f}" in out
    for row in report["members"]:
        assert math.isfinite(row["bits_per_masked_byte"]) and row["ms_per_token"] is None
        assert row["prompt"] == "the c_t " and len(row["sample"]) == 8 and "fills in each _" in out


@pytest.mark.prove
def test_members_that_read_pairs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pairs").write_text("".join(f"ask {n}\tsay {n}\n" for n in range(40)))
    small = [f"transformer(d=8, depth=1, heads={heads}, hidden=8)" for heads in (1, 2)]
    words = ["--data", f"pairs={tmp_path}/pairs", "--steps", "3", *QUICK, "--out", str(tmp_path / "o")]
    assert run(["compare", *small, *words]) == 0
    assert all(row["answer"].startswith("say ") for row in results(tmp_path / "o")["members"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected exactly one of --minutes M, --steps N and --flops F"),
        (["--minutes", "1", "--steps", "3"], "expected exactly one of --minutes M, --steps N and --flops F"),
        (["--steps", "0"], "wrong number of steps: got 0, expected at least 1"),
        (["--flops", "10"], "--flops 10 is too small: one step of bigram"),
        (["--flops", "nan"], "wrong --flops: got nan, expected a finite number above 0"),
        (["--steps", "3", "--seeds", "0"], "Invalid value for '--seeds'"),
        (
            ["--steps", "3", "--lrs", "1e-3,fast"],
            "wrong --lrs: got 'fast' for lr, expected numbers above 0 separated by commas, such as lr=1e-3,3e-3",
        ),
        (["--steps", "3", "--lrs", "1e-3,-1"], "wrong --lrs: got '-1'"),
        (["--steps", "3", "--lrs", "1e-3,0.001"], "--lrs has the value 0.001 of lr twice"),
        (["--steps", "3", "--precision", "half"], "wrong --precision: got 'half', expected float32, bf16 or fp16"),
        (["--steps", "3", "--device", "cuda:99"], "there is no device 'cuda:99' on this machine"),
        (["--steps", "3", "--lrs", "1e-3", "--lr", "1"], "got both --lr and --lrs, expected only one of them"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    command = ["compare", BIGRAM, f"{BIGRAM}(d=3)", "--data", text, "--out", str(tmp_path / "o"), *QUICK, *words]
    fails(capsys, command, message.replace("bigram", BIGRAM))
    assert not (tmp_path / "o").exists()


def test_rates_need_something_to_be_reported_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pairs").write_text("a\tb\nc\td\n")
    words = ["--data", f"pairs={tmp_path}/pairs", "--steps", "3", "--lrs", "1,2", *QUICK, "--out", f"{tmp_path}/o"]
    fails(
        capsys,
        ["compare", "transformer(d=8, depth=1, heads=1)", *words],
        "--grid and --lrs need test data, but the test split of pairs=",
    )
    assert not (tmp_path / "o").exists()


# size, memory, the page ---------------------------------------------------------------------------------------------


@pytest.mark.prove
def test_members_are_brought_to_the_parameters_of_the_first() -> None:
    small = parse_member_text("gpt(d=32, depth=2, heads=2)")
    expected = count_parameters(small)
    assert expected == sum(p.numel() for p in small.build(0).parameters())
    members = ("llama(heads=2, depth=3)", "gpt(d=16, heads=2, length=64)", "gpt(d=32, depth=2, heads=2)")
    fitted, notes = match_parameters([small, *map(parse_member_text, members)])
    assert fitted[0] is small and fitted[3].text == small.text and "without a change" in notes[2]
    for member, name in zip(fitted[1:3], ("d", "depth"), strict=True):
        assert abs(sum(p.numel() for p in member.build(0).parameters()) - expected) <= 0.1 * expected
        assert (
            f"{name}={member.keywords[name]}" in member.text
            and parse_member_text(member.text).keywords == member.keywords
        )
    assert "gets d=" in notes[0] and "instead of 128: " in notes[0] and "gets depth=" in notes[1]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("llama(d=16, depth=1, heads=2)", "gives d and depth; leave out one of them"),
        ("llama(d=512)", "cannot have 66,432 parameters within 10%: the nearest are "),
    ],
)
def test_what_cannot_be_matched_is_said(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], other: str, message: str
) -> None:
    words = ["--match", "parameters", "--data", text, "--steps", "3", "--out", f"{tmp_path}/o"]
    fails(capsys, ["compare", "gpt(d=32, depth=2, heads=2)", other, *words], message)
    assert not (tmp_path / "o").exists()


def test_rows_grow_until_the_member_takes_no_longer_ones() -> None:
    measured = against_length(parse_member_text("gpt(d=8, depth=1, heads=1, length=16)"), 8, 60.0)
    assert [at["length"] for at in measured] == [2, 4, 8, 16]
    states = [at["state_bytes"] for at in measured]
    assert all(at["milliseconds"] > 0 for at in measured) and measured[0]["peak_bytes"] < measured[-1]["peak_bytes"]
    assert states == sorted(states) and states[-1] >= 4 * states[0]
    assert len(against_length(parse_member_text("gpt(d=8, depth=1, heads=1)"), 8, 0.0)) == 1


class Page(HTMLParser):
    """What a page holds: its tags, their attributes, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.given: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.given += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"<script>alert('the cat & mat')</script>\r\n" * 200)
    words = ["--data", f"text={tmp_path}/text", "--steps", "12", "--seeds", "2", "--batch", "2", "--length", "64"]
    assert run(["compare", SMALL.replace("length=8", "length=64"), BIGRAM, *words, "--out", f"{tmp_path}/o"]) == 0
    text, report = (tmp_path / "o/report.html").read_text(), results(tmp_path / "o")
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "img"} & set(page.tags)
    links = [value for name, value in page.given if name.rpartition(":")[2] in ("href", "src", "data", "action")]
    assert links and all(value.startswith("#") for value in links) and "@import" not in text
    assert not re.search(r"url\((?!#)", text) and "#010203" not in text
    visible = "".join(page.words)
    for row in report["members"]:
        assert row["name"] in visible and f"{row['parameters']:,}" in visible
        assert row["prompt"].replace("\r", "") in visible, "a line's end is shown as a sign"
        assert row["peak_bytes"] > 1e8 and row["lengths"] and (row["state_bytes"] or 0) >= 0
    assert page.tags.count("svg") == page.tags.count("figure") >= 5 and "<b>" + "gpt" in text
    assert "prefers-color-scheme: dark" in text and ("name", "viewport") in page.given
    assert not [letter for letter in text if ord(letter) < 32 and letter != "\n"]
    ids = [value for name, value in page.given if name == "id"]
    assert len(ids) == len(set(ids)), "one id twice"


def test_a_budget_says_what_it_is() -> None:
    assert str(TrialBudget(minutes=2.0)) == "2 minutes" and str(TrialBudget(steps=1000)) == "1,000 steps"
    assert TrialBudget(flops=1e12).as_record == {"flops": 1e12}

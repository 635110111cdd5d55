"""`kinformer advise`: what fits is ranked by what is counted, what is not known is said, commands run as printed."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.cli.__main__ import run
from kinformer.core.discover import members
from kinformer.lab.advise.estimates import ROWS, at_length, estimate_training, fixed_bytes, model_of, table
from kinformer.lab.advise.ranking import READS, memory_bytes
from kinformer.lab.cost.cost import cost
from kinformer.lab.cost.resident_memory import peak_resident, resident, restart_peak
from kinformer.lab.member_choice import parse_member
from tests.cli.test_commands import fails

FEW = ("gpt", "llama", "linear_transformer", "transformer_xl", "bert", "bigbird", "bert_classifier")
QUICK = {"gpt"}  # of every run; the others take long


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Some members, since all of them take seconds to ask."""
    few_members = {name: member for name, member in members().items() if name in FEW}
    monkeypatch.setattr("kinformer.lab.advise.ranking.members", lambda: few_members)
    return few_members


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my text").write_bytes(b"the cat sat on the mat. " * 800)
    monkeypatch.chdir(tmp_path)
    return "text=my text"


def advice(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["advise", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("task", "baseline"), [("lm", "gpt"), ("mask", "bert")])
def test_what_can_do_it_is_there_by_its_work_and_the_commands_run(
    task: str, baseline: str, text: str, few: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--task", task, "--data", text, "--length", "16", "--memory", "64GB", "--batch", "2"]
    advised = advice(capsys, *words)
    able = {name for name in few if model_of(parse_member(name, ())).reads == READS[task]}
    names = [entry["member"] for entry in advised["members"]]
    assert not advised["too_large"] and set(names) | set(advised["refused"]) == able and baseline in names
    work = [entry["step_flops_of_a_row"] for entry in advised["members"]]
    assert work == sorted(work)
    compare, train, evaluate = (shlex.split(line) for line in advised["commands"])
    assert compare[:3] == ["kinformer", "compare", baseline] and train[:3] == ["kinformer", "train", names[0]]
    assert run(evaluate[1:]) == 0 and briefly(train) == 0
    commands = advice(capsys, *words)["commands"]
    assert commands[1] != advised["commands"][1] and f"runs/{names[0]}-2" in commands[1]  # a folder that is not there
    assert run(["advise", *words]) == 0
    out = capsys.readouterr().out
    assert all(line in out for line in commands) and "Not known:" in out and "Quality: not measured for" in out


def briefly(line: list[str]) -> int:
    """Run a printed command with few minutes."""
    at = line.index("--minutes") + 1
    return run([*line[1:at], "0.001", *line[at + 1 :]])


@pytest.mark.prove
def test_the_comparison_runs(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "lm", "--data", text, "--length", "16", "--memory", "64GB", "--batch", "2"]
    assert briefly(shlex.split(advice(capsys, *words)["commands"][0])) == 0


def test_labels_have_their_own_and_what_nobody_reads_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled = tmp_path / "labelled.tsv"
    labelled.write_bytes(b"".join(b"%d\ttext no. %d\n" % (n % 3, n) for n in range(120)))
    words = ["--task", "classify", "--data", f"labelled={labelled}", "--length", "16", "--memory", "64GB"]
    advised = advice(capsys, *words)
    assert {entry["member"] for entry in advised["members"]} == {"bert_classifier"} and "classes=3" in advised[
        "commands"
    ][0]
    monkeypatch.setattr("kinformer.lab.advise.ranking.members", dict)
    fails(capsys, ["advise", *words], "no member for --task classify: none reads labelled data yet")


def test_what_is_too_large_is_told_and_a_smaller_batch_is_taken(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinformer.lab.advise.ranking.before_training", lambda: 0)
    words = ["--task", "lm", "--data", text, "--length", "256"]
    whole = advice(capsys, *words, "--memory", "64GB", "--batch", "4")
    sizes = {entry["member"]: entry["process_bytes"] for entry in whole["members"]}
    middle = sorted(sizes.values())[len(sizes) // 2]
    advised = advice(capsys, *words, "--memory", str(middle), "--batch", "4")
    assert {entry["member"] for entry in advised["members"]} == {name for name, size in sizes.items() if size <= middle}
    assert {entry["member"] for entry in advised["too_large"]} == {
        name for name, size in sizes.items() if size > middle
    }
    least = min(sizes.values())
    advised = advice(capsys, *words, "--memory", str(least - 1), "--batch", "4")
    assert advised["batch"] == 2 and all(" --batch 2 " in line for line in advised["commands"])
    for entry in advised["members"]:
        assert entry["process_bytes"] <= least - 1 and entry["largest_batch"] >= 2
    fails(
        capsys,
        ["advise", *words, "--memory", "1MB"],
        "no member fits: training on a row of 256 tokens needs more than 1 MB",
    )


def test_long_rows_have_positions_and_are_drawn_out(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "lm", "--data", text, "--batch", "1", "--memory", "900GB"]
    advised = advice(capsys, *words, "--length", "900")
    assert not any("extrapolated" in entry for entry in advised["not_known"])
    with_table = estimate_training(at_length("gpt", 8192), 8192)
    assert with_table.choice.keywords == {"length": 8192} and not with_table.sure
    assert at_length("average_attention", 8192).keywords == {}  # its sinusoidal positions have no table
    fails(capsys, ["advise", *words, "--length", "100000"], "")  # there is too little text


def test_tables_of_all_pairs_take_no_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A synthesizer has 5 tables of 4 heads x 16,384^2 numbers, 21.5 GB, which the estimate must not allocate."""
    some_members = {name: members()[name] for name in ("gpt", "synthesizer")}
    monkeypatch.setattr("kinformer.lab.advise.ranking.members", lambda: some_members)
    (tmp_path / "long.txt").write_bytes(b"the cat sat on the mat. " * 10_000)
    words = ["--task", "lm", "--data", f"text={tmp_path / 'long.txt'}", "--length", "16384"]
    assert restart_peak() and (before := resident()) is not None
    advised = advice(capsys, *words, "--memory", "20GB", "--batch", "1")
    assert (peak := peak_resident()) is not None and peak - before < 500 * 2**20
    assert [entry["member"] for entry in advised["too_large"]] == ["synthesizer(length=16384)"]
    tables = 5 * 4 * 16_384**2
    assert advised["too_large"][0]["parameters"] == pytest.approx(tables, rel=0.01)
    assert advised["too_large"][0]["parameters"] > tables
    assert run(["advise", *words, "--memory", "20GB", "--batch", "1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Too large: synthesizer\(length=16384\) \d+ GB \(its weights alone take 21\.5 GB\)", printed)


def test_the_best_member_beside_a_better_baseline_is_not_the_best(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = advice(capsys, "--task", "lm", "--data", text, "--length", "32", "--memory", "64GB")["tried"]
    (record,) = [record for record in table()["quality"] if "gpt" in record["members"]]
    assert record["members"]["transformer_xl"]["mean"] > record["members"]["gpt"]["mean"]  # more bits are worse
    assert tried["transformer_xl"].startswith("the best measured member besides gpt, ")


def test_only_members_without_a_measured_length_are_extrapolated_between_the_lengths(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    low, high = sorted(ROWS)
    rows = table()["members"]
    refused = {**rows["llama"], str(high): {"refused": "no memory"}}
    monkeypatch.setattr(
        "kinformer.lab.advise.estimates.table", lambda: {**table(), "members": {**rows, "llama": refused}}
    )
    words = ["--task", "lm", "--data", text, "--memory", "64GB", "--length", str(2 * low)]
    (note,) = [note for note in advice(capsys, *words)["not_known"] if note.startswith("Cost of rows")]
    assert note == (
        f"Cost of rows of {2 * low} tokens: extrapolated for llama, because these members were measured at only one "
        f"of {low} and {high:,} tokens."
    )


def test_wrong_words_are_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"--task": "lm", "--data": text, "--memory": "8GB", "--length": "32"}
    wrong = {
        ("--task", "sing"): "'sing' is not one of",
        (
            "--memory",
            "8 apples",
        ): "wrong --memory: got '8 apples', expected a number of bytes above 0, such as 8GB or 512MB",
        ("--memory", "-1GB"): "wrong --memory: got '-1GB', expected a number of bytes above 0",
        ("--memory", "0"): "wrong --memory: got '0', expected a number of bytes above 0",
        ("--data", "text=/none"): "there is no file or folder /none",
        ("--data", "pairs=x.tsv"): "there is no file or folder x.tsv; write pairs=FILE.tsv",
        ("--length", "0"): "--length",
        ("--batch", "x"): "--batch",
    }
    for (name, value), message in wrong.items():
        words = [word for pair in {**good, name: value}.items() for word in pair]
        fails(capsys, ["advise", *words], message)


def test_bytes_are_written_as_usual() -> None:
    assert [memory_bytes(text) for text in ("8GB", "8gb", "1.5 GB", "512MiB", "5000000")] == [
        8 * 10**9,
        8 * 10**9,
        15 * 10**8,
        512 * 2**20,
        5 * 10**6,
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory", "8"], "wrong --memory: got '8', which is 8 bytes. Write 8GB"),
        (["--memory", "500000"], "which is 500,000 bytes. Give a unit, as in 8GB or 512MB"),
        (["--device", "cuda:99"], "there is no device 'cuda:99' on this machine"),
        (["--precision", "half"], "wrong --precision: got 'half', expected float32, bf16 or fp16"),
    ],
)
def test_a_wrong_option_is_one_line(
    words: list[str], message: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fails(capsys, ["advise", "--task", "lm", "--data", text, *words], message)


def test_the_commands_keep_the_precision_and_the_device(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "lm", "--data", text, "--length", "16", "--precision", "bf16", "--device", "cpu"]
    advised = advice(capsys, *words)
    assert all("--precision bf16 --device cpu" in line for line in advised["commands"])
    assert any("memory is estimated for float32" in line for line in advised["not_known"])


def test_a_member_that_is_in_no_table_is_named(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = {**table(), "members": {name: row for name, row in table()["members"].items() if name != "llama"}}
    for place in ("estimates", "ranking"):
        monkeypatch.setattr(f"kinformer.lab.advise.{place}.table", lambda: fewer)
    advised = advice(capsys, "--task", "lm", "--data", text, "--length", "32", "--memory", "64GB")
    assert advised["refused"]["llama"] == "llama was not measured for this table; `kinformer cost llama` measures it"


@pytest.mark.prove
def test_every_member_is_in_the_table() -> None:
    assert sorted(table()["members"]) == sorted(members())


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.prove) for name in sorted(table()["members"])],
)
def test_the_table_says_what_cost_says(name: str) -> None:
    length, row = min(ROWS), table()["members"][name]
    if "refused" in row[str(length)]:
        with pytest.raises(ValueError):
            cost(at_length(name, length).build(0), 1, length)
        return
    measured = cost(at_length(name, length).build(0), ROWS[length], length)
    assert row[str(length)]["row_flops"] == pytest.approx(measured.step_flops / ROWS[length], rel=0.05)
    assert row[str(length)]["row_bytes"] == pytest.approx(
        (measured.peak - fixed_bytes(measured.weights)) / ROWS[length], rel=0.15
    )
    assert row[str(length)]["state_bytes"] == measured.state and row["reads"] == model_of(parse_member(name, ())).reads


@pytest.mark.parametrize(
    "name", ["gpt", *(pytest.param(name, marks=pytest.mark.prove) for name in ("bert", "linear_transformer"))]
)
def test_between_the_lengths_of_the_table_it_is_nearly_what_is_counted(name: str) -> None:
    length, batch = 700, 3
    member = parse_member(name, ["vocab=600"])
    with torch.random.fork_rng(devices=[]):
        measured, estimate = cost(member.build(0), batch, length), estimate_training(member, length)
    assert estimate.parameters == measured.parameters and estimate.weights == measured.weights
    assert estimate.peak(batch) == pytest.approx(measured.peak, rel=0.15)
    assert batch * estimate.row_flops == pytest.approx(measured.step_flops, rel=0.05)
    assert estimate.state_bytes == (None if measured.state is None else pytest.approx(measured.state, rel=0.05))

"""`kinformer advise`: members are recommended by scores and counted costs, and the printed commands run."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch

from bench.arena_table import arena_table
from kinformer.cli.__main__ import COMMANDS, run
from kinformer.core.discover import members
from kinformer.lab.advise.arena_scores import arena_tasks, read_scores
from kinformer.lab.advise.estimates import ROWS, at_length, estimate_training, fixed_bytes, model_of, table
from kinformer.lab.advise.ranking import READS, memory_bytes
from kinformer.lab.arena.arena_results import write_results
from kinformer.lab.arena.arena_task import ArenaTask
from kinformer.lab.cost.cost import cost
from kinformer.lab.cost.resident_memory import peak_resident, resident, restart_peak
from kinformer.lab.member_choice import parse_member
from tests.cli.test_commands import fails
from tests.lab.arena.test_arena import results_of

FEW = ("gpt", "llama", "linear_transformer", "transformer_xl", "bert", "bigbird", "bert_classifier")
QUICK = {"gpt"}  # of every run; the others take long


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Some members, since all of them take seconds to ask."""
    few_members = {name: member for name, member in members().items() if name in FEW}
    monkeypatch.setattr("kinformer.lab.advise.ranking.members", lambda: few_members)
    return few_members


@pytest.fixture(autouse=True)
def no_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of the arena without results; some tests plant others."""
    monkeypatch.setattr("kinformer.lab.advise.ranking.arena_tasks", tuple)


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
def test_every_member_of_the_task_is_listed_and_the_commands_run(
    task: str, baseline: str, text: str, few: dict[str, Any], prove: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--task", task, "--data", text, "--length", "16", "--memory", "64GB", "--batch", "2"]
    advised = advice(capsys, *words)
    able = {name for name in few if model_of(parse_member(name, ())).reads == READS[task]}
    names = [entry["member"] for entry in advised["members"]]
    assert not advised["too_large"] and set(names) | set(advised["refused"]) == able
    chosen = [choice["member"] for choice in advised["choices"]]
    assert chosen == names[: len(chosen)] and chosen[0] == baseline  # without scores the baseline comes first
    work = [entry["step_flops_of_a_row"] for entry in advised["members"][len(chosen) :]]
    assert work == sorted(work)
    commands = [choice["command"] for choice in advised["choices"]]
    assert [shlex.split(line)[:3] for line in commands] == [["kinformer", "train", name] for name in chosen]
    for line in commands:
        COMMANDS.commands["train"].make_context("train", shlex.split(line)[2:])  # parses the words and checks them
        assert not prove or briefly(shlex.split(line)) == 0
    for name in chosen:
        Path(f"runs/{name}").mkdir(parents=True, exist_ok=True)
    again = [choice["command"] for choice in advice(capsys, *words)["choices"]]
    assert all(f"runs/{name}-2" in line for name, line in zip(chosen, again, strict=True))  # a new folder
    assert run(["advise", *words]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == again
    assert "Notes:" in printed.err and "no quality is known" in printed.err
    assert "kinformer compare" in printed.err and advised["comparison"].split()[2:4] == chosen[:2]


def briefly(line: list[str]) -> int:
    """Run a printed command with few minutes."""
    at = line.index("--minutes") + 1
    return run([*line[1:at], "0.001", *line[at + 1 :]])


@pytest.mark.prove
def test_the_comparison_runs(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "lm", "--data", text, "--length", "16", "--memory", "64GB", "--batch", "2"]
    assert briefly(shlex.split(advice(capsys, *words)["comparison"])) == 0


def test_labels_have_their_own_and_what_nobody_reads_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled = tmp_path / "labelled.tsv"
    labelled.write_bytes(b"".join(b"%d\ttext no. %d\n" % (n % 3, n) for n in range(120)))
    words = ["--task", "classify", "--data", f"labelled={labelled}", "--length", "16", "--memory", "64GB"]
    advised = advice(capsys, *words)
    (choice,) = advised["choices"]
    assert choice["member"] == advised["members"][0]["member"] == "bert_classifier" and "classes=3" in choice["command"]
    assert "1 of 3 members, because only 1 can do the task and fit" in advised["notes"][0]
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
    assert advised["batch"] == 2 and all(" --batch 2 " in choice["command"] for choice in advised["choices"])
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
    assert not any("extrapolated" in note for note in advised["notes"])
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
    printed = " ".join(capsys.readouterr().err.split())
    assert re.search(r"Too large: synthesizer\(length=16384\) \d+ GB \(its weights alone take 21\.5 GB\)", printed)


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
    (note,) = [note for note in advice(capsys, *words)["notes"] if note.startswith("Cost of rows")]
    assert note == (
        f"Cost of rows of {2 * low} tokens: extrapolated for llama, because these members were measured at only one "
        f"of {low} and {high:,} tokens."
    )


LONG = ["--task", "lm", "--length", "8192", "--memory", "64GB"]
CHEAP = ("act_rnn", "lstm", "average_attention", "longformer_lm")


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Members of which some cost much less than gpt, and training steps that are not timed."""
    names = [*FEW, *CHEAP]
    monkeypatch.setattr("kinformer.lab.advise.training_minutes.step_seconds", lambda *_: 0.01)
    monkeypatch.setattr(
        "kinformer.lab.advise.ranking.members", lambda: {name: members()[name] for name in names if name in members()}
    )
    return names


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """A function that puts results into the table of the arena: scores of the seeds by member, for each task."""

    def plant_scores(**scores: dict[str, tuple[float, ...]]) -> None:
        shutil.rmtree(tmp_path / "arena", ignore_errors=True)
        (tmp_path / "arena").mkdir()
        for name, by_member in scores.items():
            task = ArenaTask(name, "text=NOVEL" if name == "novel" else f"task={name}", 100, 4)
            write_results(results_of(by_member, task), tmp_path / f"arena/{name}.json")
        planted = read_scores(arena_table(tmp_path / "arena"))
        monkeypatch.setattr("kinformer.lab.advise.ranking.arena_tasks", lambda: planted)

    return plant_scores


@pytest.mark.parametrize("has_results", [False, True])
def test_long_rows_do_not_begin_with_the_cheapest_member(
    has_results: bool, more: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_results:  # those of the package
        monkeypatch.setattr("kinformer.lab.advise.ranking.arena_tasks", arena_tasks)
    assert run(["advise", *LONG]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 1 <= len(lines) <= 3 and all(line.startswith("kinformer train ") for line in lines)
    assert all("--data text=PATH" in line and "--length 8192" in line for line in lines)
    assert not lines[0].startswith("kinformer train act_rnn")
    costs = {entry["member"]: entry["step_flops_of_a_row"] for entry in advice(capsys, *LONG)["members"]}
    assert min(costs, key=lambda name: costs[name]) == "act_rnn"  # the order by cost alone would begin with it
    advised = advice(capsys, *LONG)
    reaches = {entry["member"]: entry["reach"] for entry in advised["members"]}
    assert reaches["longformer_lm"] == 287 and reaches["gpt(length=8192)"] is None
    for choice in advised["choices"]:
        is_short = (reaches[choice["member"]] or 8192) < 8192
        assert ("An output depends on at most the last" in choice["reason"]) == is_short
    assert run(["advise", *LONG]) == 0 and "reach" in capsys.readouterr().err


def chosen_names(advised: dict[str, Any]) -> list[str]:
    return [choice["member"].partition("(")[0] for choice in advised["choices"]]


def test_planted_scores_change_the_recommended_members(
    more: list[str], plant: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {
        "gpt": (2.70, 2.71, 2.72),
        "llama": (2.50, 2.51, 2.52),
        "transformer_xl": (2.60, 2.61, 2.62),
        "linear_transformer": (2.90, 2.91, 2.92),
        "longformer_lm": (3.20, 3.21, 3.22),  # over 10% worse than gpt
        "lstm": (2.40,),  # one seed
    }
    plant(novel=scores)
    advised = advice(capsys, *LONG)
    # best mean; fewest operations and smallest state within 10%; least memory within 10%
    assert chosen_names(advised) == ["llama", "linear_transformer", "gpt"]
    best, cheap, _ = (choice["reason"] for choice in advised["choices"])
    assert "best mean bits per byte" in best and "2.51 (2.49 to 2.53) bits per byte on novel, gpt 2.71" in best
    assert "better, their 95% intervals do not overlap" in best and "interval overlaps with" not in best
    assert (
        "fewest training operations" in cheap
        and "smallest decoding state" in cheap
        and "worse, their 95% intervals do not" in cheap
    )
    assert any("lstm (1 seed only)" in note for note in advised["notes"])
    assert any("act_rnn, average_attention (not measured)" in note for note in advised["notes"])

    plant(novel={**scores, "longformer_lm": (2.30, 2.31, 2.32)})
    assert chosen_names(advice(capsys, *LONG))[0] == "longformer_lm"  # it has the fewest operations, too
    plant(novel={**scores, "linear_transformer": (2.99, 3.00, 3.01)})  # now over 10% worse than gpt
    assert "linear_transformer" not in chosen_names(advice(capsys, *LONG))
    recall = {"gpt": (0.95, 0.96, 0.97), "linear_transformer": (0.30, 0.31, 0.32)}
    plant(novel=scores, recall=recall)
    cheap = advice(capsys, *LONG)["choices"][1]["reason"]
    assert "0.31 (0.26 to 0.36) accuracy on recall, gpt 0.96 (0.93 to 0.99): worse, their 95%" in cheap
    plant(novel={**scores, "gpt": (9.0, 9.0, 9.0)})  # above gzip, so gpt has not learned the task
    assert chosen_names(advice(capsys, *LONG))[0] == "gpt"


def test_no_recommended_member_is_dominated(
    more: list[str], plant: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Intervals are computed anew from the seeds, and domination by its definition."""
    scores = {
        "novel": {
            "gpt": (2.60, 2.70, 2.80),
            "llama": (2.50, 2.65, 2.80),
            "transformer_xl": (2.60, 2.72, 2.80),
            "linear_transformer": (2.65, 2.75, 2.85),
            "average_attention": (2.90, 2.95, 3.00),
            "lstm": (2.85, 2.90, 2.95),
            "act_rnn": (3.90,),
        },
        "recall": {"gpt": (0.95, 0.96, 0.97), "llama": (0.95, 0.96, 0.98), "lstm": (0.5, 0.6, 0.7)},
    }
    plant(**scores)
    advised = advice(capsys, *LONG)
    student = 4.302652729911275  # 97.5% quantile of Student's t with 2 degrees of freedom

    def ends_of(task: str, x: tuple[float, ...]) -> tuple[float, float]:
        square = (student * stdev(x) / 3**0.5) ** 2
        if task == "recall":  # the accuracy of 512 test rows
            p = (mean(x) * 512 + 2) / 516
            square += 1.96**2 * p * (1 - p) / 516
        return mean(x) - square**0.5, mean(x) + square**0.5

    ends = {
        (task, name): ends_of(task, x)
        for task, by_member in scores.items()
        for name, x in by_member.items()
        if len(x) == 3
    }
    fields = ("step_flops_of_a_row", "state_bytes", "process_bytes")
    costs = {entry["member"].partition("(")[0]: [entry[field] for field in fields] for entry in advised["members"]}

    def is_better(task: str, name: str, other: str) -> bool:
        if task == "novel":
            return ends[task, name][1] < ends[task, other][0]
        return ends[task, name][0] > ends[task, other][1]

    def is_dominated(name: str, other: str) -> bool:
        common = [task for task in scores if (task, name) in ends]
        if not common or not all((task, other) in ends for task in common):
            return False
        pairs = list(zip(costs[other], costs[name], strict=True))
        no_worse = all(x <= y for x, y in pairs) and not any(is_better(task, name, other) for task in common)
        return no_worse and (any(x < y for x, y in pairs) or any(is_better(task, other, name) for task in common))

    dominated = {name for name in costs if any(is_dominated(name, other) for other in costs if other != name)}
    chosen = chosen_names(advised)
    assert chosen and not dominated & {*chosen}
    assert "transformer_xl" in dominated  # linear_transformer costs less, and no seed tells them apart
    assert "act_rnn" not in chosen and costs["act_rnn"] < costs["lstm"]
    members_within = [name for name in costs if ("novel", name) in ends and name not in dominated]
    assert chosen[0] == min(members_within, key=lambda name: mean(scores["novel"][name]))


def test_without_data_no_file_is_read_and_the_command_runs_on_a_file(
    text: str, prove: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["advise", "--task", "lm", "--length", "16", "--memory", "64GB"]
    with monkeypatch.context() as patch:
        patch.setattr("kinformer.lab.data.resolve.DataSource.read", lambda *_, **__: pytest.fail("it reads data"))
        assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    Path("PATH").write_bytes(b"the cat sat on the mat. " * 40)
    COMMANDS.commands["train"].make_context("train", shlex.split(lines[-1])[2:])  # it checks that there is a file PATH
    assert not prove or briefly(shlex.split(lines[-1])) == 0
    assert "vocab=" not in "".join(lines)
    assert run(["advise", "--task", "classify", "--length", "16"]) == 0
    assert "--data labelled=FILE.tsv" in capsys.readouterr().out


def test_little_memory_takes_a_smaller_batch_before_a_member_of_unknown_quality(
    more: list[str], plant: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinformer.lab.advise.ranking.before_training", lambda: 0)
    plant(novel={"gpt": (2.6, 2.7, 2.8)})
    sizes = {entry["member"]: entry["process_bytes"] for entry in advice(capsys, *LONG)["members"]}
    room = str((sizes["gpt(length=8192)"] + sizes["act_rnn"]) // 2)
    words = ["--task", "lm", "--length", "8192", "--memory", room]
    advised = advice(capsys, *words)
    assert advised["batch"] < 4 and chosen_names(advised) == ["gpt"]
    assert any(
        note.startswith("Number: 1 of 3 members, because 1 members that fit have a ranked score")
        for note in advised["notes"]
    )
    plant(novel={"gpt": (9.0, 9.0, 9.0)})
    assert chosen_names(advice(capsys, *words))[0] == "gpt"  # nothing is known, and the baseline comes first


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
    assert all("--precision bf16 --device cpu" in choice["command"] for choice in advised["choices"])
    assert any("memory is estimated for float32" in line for line in advised["notes"])


def test_a_member_that_is_in_no_table_is_named(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = {**table(), "members": {name: row for name, row in table()["members"].items() if name != "llama"}}
    monkeypatch.setattr("kinformer.lab.advise.estimates.table", lambda: fewer)
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


def test_commands_for_a_task_have_no_length_and_the_advice_says_what_its_scores_are_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinformer.lab.advise.ranking.arena_tasks", arena_tasks)
    words = ["advise", "--task", "lm", "--data", "task=recall,pairs=4", "--batch", "4"]
    assert run([*words, "--length", "64"]) == 2
    assert "--length has no effect on a task" in capsys.readouterr().err
    assert run(words) == 0
    printed, said = capsys.readouterr()
    lines = printed.strip().splitlines()
    assert lines and all(line.startswith("kinformer train ") and "--length" not in line for line in lines)
    assert "members are compared by scores on a novel, not on task=recall" in " ".join(said.split())

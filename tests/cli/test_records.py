"""Records name their data by all that was read, refusals name what differs, and contradicting options are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from kinformer.cli.__main__ import run
from kinformer.lab.data.data import Data, named
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.text import read
from kinformer.lab.train.fit import fit
from kinformer.lab.train.run_folder import RunFolder
from tests.cli.test_commands import fails
from tests.lab.train import tiny


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, count in (("text", 150), ("valid", 30)):
        notes = "\n\n".join(f"the cat {n * n} sat on the mat.\nthe dog {count + n} did not." for n in range(count))
        (tmp_path / name).write_text(notes)
    return tmp_path


def spec(files: Path, options: str = ",documents=blank,tokenizer=bpe:300") -> str:
    return f"text={files}/text{options}"


def trained(files: Path, *options: str, data: str | None = None, member: str = "gpt d=16 length=8") -> list[str]:
    words = ["train", *member.split(), "depth=1", "heads=2", "--data", data or spec(files), "--out", f"{files}/run"]
    return [*words, "--length", "8", "--steps", "4", *options, *([] if "--batch" in options else ["--batch", "2"])]


def valid(files: Path, name: str = "valid") -> list[str]:
    return ["--valid", f"{files}/{name}"]


def read_json(file: Path) -> Any:
    return json.loads(file.read_text().splitlines()[0] if file.suffix == ".jsonl" else file.read_text())


def test_all_that_a_training_keeps_names_the_whole_data(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trained(files, *valid(files))) == 0
    whole, out = f"{spec(files)},valid={files}/valid", files / "run"
    assert read_json(out / "metrics.jsonl")["data"] == whole
    assert read_json(out / "config.json")["trained_on"] == read_json(out / "best/config.json")["trained_on"] == whole
    assert RunFolder(out).state()["begun"]["data"] == whole
    capsys.readouterr()
    assert run(["evaluate", str(out), "--data", spec(files, ",documents=blank"), "--split", "valid", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["data"] == f"{spec(files, ',documents=blank')},tokenizer={out}/tokenizer.json"


@pytest.mark.parametrize(("name", "tokenizer"), [("gpt", "bpe:300"), ("bert", "bytes")])
def test_bits_of_a_text_are_told_per_byte(
    name: str, tokenizer: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = trained(files, data=spec(files, f",tokenizer={tokenizer}"), member=f"{name} d=16 length=8")
    assert run(words) == 0
    capsys.readouterr()
    assert run(["evaluate", f"{files}/run", "--data", spec(files, ""), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["metric"]["per"] == read_json(files / "run/metrics.jsonl")["metric"]["per"] == "byte"
    # the perplexity is of a token, so what it is a power of tells how many bytes a value is for
    assert report["perplexity"] == pytest.approx(2 ** (report["value"] * report["bytes_per_token"]))
    assert (report["bytes_per_token"] > 1.5) == (tokenizer != "bytes")


READ = {
    "text": ("text", ",documents=lines,tokenizer=bpe:300"),
    "pairs": ("pairs.tsv", ",tokenizer=bpe:300,valid={folder}/more.tsv"),
    "labelled": ("labelled.tsv", ",tokenizer=bpe:300"),
    "multitask": ("tasks", ",sampling=uncertainty"),
    "series": ("series.csv", ",columns=a+b,target=b"),
    "sets": ("sets.npz", ",answer=count"),
    "task": ("recall", ",pairs=4"),
    "env": ("t_maze", ",corridor=9"),
}


@pytest.mark.parametrize("kind", READ)
def test_every_reader_names_its_options(kind: str, files: Path) -> None:
    import numpy

    (files / "pairs.tsv").write_text("".join(f"one {n}\ttwo {n}\n" for n in range(200)))
    (files / "more.tsv").write_text("".join(f"more {n}\tless {n}\n" for n in range(20)))
    (files / "labelled.tsv").write_text("".join(f"{'ab'[n % 2]}\ttext {n}\n" for n in range(200)))
    (files / "tasks").mkdir()
    for name in ("x", "y"):
        (files / "tasks" / f"{name}.tsv").write_text((files / "labelled.tsv").read_text())
    rows = (f"2020-01-{1 + n // 24:02} {n % 24:02}:00:00,{n % 7},{n % 5},{n % 3}\n" for n in range(600))
    (files / "series.csv").write_text("date,a,b,c\n" + "".join(rows))
    numpy.savez(files / "sets.npz", elements=numpy.arange(400.0).reshape(100, 2, 2), answers=numpy.arange(100) % 5)
    where, options = READ[kind]
    place = where if kind in ("task", "env") else f"{files}/{where}"
    whole = f"{kind}={place}{options.format(folder=files)}"
    assert read_spec(whole).name == whole


def test_a_reader_that_is_called_from_python_names_its_options_too(files: Path) -> None:
    assert read(f"{files}/text", documents="blank", valid=f"{files}/valid").name == (
        f"text={files}/text,documents=blank,valid={files}/valid"
    )
    assert read(f"{files}/text", tokenizer="bytes").name == f"text={files}/text"  # as it is unless given

    def mine(where: str, *, field: str = "a", **sizes: str) -> Data:
        return tiny.text()

    assert named(mine)("x", field="b", size="3").name == "test_records=x,field=b,size=3"


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_refusal_of_resume_names_what_differs_and_leaves_the_folder_as_it_was(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trained(files, *valid(files))) == 0
    (files / "run/trainer/0").mkdir()  # as a kill leaves it
    (files / "run/trainer/0/trainer.json").write_bytes(b"{")
    with (files / "run/metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "to')
    before = snapshot(files / "run")
    plain = spec(files, ",documents=blank")
    lines = spec(files, ",documents=lines,tokenizer=bpe:300")
    cases = {
        "got no tokenizer=, expected tokenizer=bpe:300 in --data": trained(files, *valid(files), data=plain),
        "got documents=lines, expected documents=blank in --data": trained(files, *valid(files), data=lines),
        f"got no valid=, expected valid={files}/valid in --data": trained(files),
        f"got valid={files}/text, expected valid={files}/valid in --data": trained(files, *valid(files, "text")),
        "got --batch 3, expected --batch 2": trained(files, *valid(files), "--batch", "3"),
        "got length=16, expected length=8": trained(files, *valid(files), member="gpt d=16 length=16"),
        "got d=32, expected d=16": trained(files, *valid(files), member="gpt d=32 length=8"),
        "got train llama, expected train gpt": trained(files, *valid(files), member="llama d=16"),
        "--resume continues the run in --out, but --overwrite starts it again": trained(files, "--overwrite"),
        "got --lr 0.5, expected --lr 0.002": trained(files, *valid(files), "--lr", "0.5"),
    }
    for message, words in cases.items():
        fails(capsys, [*words, "--tensorboard", "--resume"], message)
        assert snapshot(files / "run") == before, message
    (files / "valid").write_bytes((files / "valid").read_bytes().replace(b"dog", b"pig"))
    fails(
        capsys,
        [*trained(files, *valid(files)), "--resume"],
        f"the contents of {spec(files)},valid={files}/valid have changed since the run started",
    )
    assert snapshot(files / "run") == before


def test_a_run_of_an_earlier_version_goes_on_and_is_refused_as_it_was(files: Path) -> None:
    import hashlib

    def begun_before() -> None:
        path = files / "run/trainer" / str(RunFolder(files / "run").step) / "trainer.json"
        state = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("sum", "decisions")}
        now = state["begun"]
        state["begun"] = {"member": now["member"], **now["keywords"], **now["settings"]}
        state["begun"] |= {"data": f"text={files}/text", "bytes": now["bytes"], **now["drawing"]}
        state["sum"] = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps(state))

    settings: dict[str, Any] = {"steps": 2, "batch": 2, "length": 8, "out": files / "run"}
    fit(tiny.bigram(), spec(files, ",documents=lines"), **settings)
    begun_before()
    fit(tiny.bigram(), spec(files, ",documents=lines"), resume=True, **settings | {"steps": 4})
    begun_before()
    with pytest.raises(ValueError, match=f"got data={spec(files, '')}, expected .* data=text={files}/text had when"):
        fit(tiny.bigram(), spec(files, ""), resume=True, **settings | {"steps": 6})
    with pytest.raises(ValueError, match="got batch=3, expected batch=2"):
        fit(tiny.bigram(), spec(files, ",documents=lines"), resume=True, **settings | {"steps": 6, "batch": 3})


@pytest.mark.parametrize("command", ["train gpt", "compare gpt"])
def test_going_on_and_beginning_anew_contradict_each_other(
    command: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *command.split(),
        "--data",
        "text=stdlib",
        "--steps",
        "1",
        "--out",
        f"{files}/o",
        "--resume",
        "--overwrite",
    ]
    fails(capsys, words, "--resume continues the run in --out, but --overwrite starts it again; give one of the two")
    assert not (files / "o").exists()
    with pytest.raises(ValueError, match="give one of the two"):
        fit(tiny.bigram(), tiny.text(), steps=1, out=files / "o", resume=True, overwrite=True)


def test_choices_that_contradict_each_other_are_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trained(files)) == 0
    words = ["generate", f"{files}/run", "--prompt", "the", "--temperature", "0", "--top-k", "3"]
    fails(capsys, words, "--temperature 0 takes the likeliest token and does not sample; leave out --top-k")
    words = ["forecast", f"{files}/run", "--data", "series=none.csv", "--out", f"{files}/a.csv", "--windows", "2"]
    fails(capsys, [*words[:2], "--data", spec(files), *words[4:]], "--windows has no effect with --out FILE.csv, which")

"""`kinformer knn-lm`, and what `evaluate` and `generate` make of what it found."""

import errno
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.cli.support.knn_lm_tuning import refuse_measured_text
from kinformer.lab.data.spec import read_spec
from kinformer.lab.datastore.datastore import Datastore
from kinformer.lab.datastore.knn_lm_settings import FILE, KnnLMSettings
from kinformer.models.support.sweeps import WEIGHTS
from tests.cli.folders import folder
from tests.cli.test_commands import fails

WORDS = b"".join(b"a %d b %d. " % (n % 7, n % 5) for n in range(120))


class Made:
    """A folder with a model, a datastore of it, and the text that both are of."""

    def __init__(self, here: Path, name: str = "transformer_xl", bytes_: int = 300) -> None:
        self.out, self.store, self.text = folder(here / name, name), here / "store", here / "text"
        self.text.write_bytes(WORDS)
        tokens = torch.tensor(list(WORDS[:bytes_]), dtype=torch.uint8)
        Datastore.build(self.store, load(self.out), tokens, data="words")
        self.data = ["--data", f"text={self.text}", "--bytes", "60", "--length", "16"]

    def tune(self, *more: str) -> list[str]:
        return ["knn-lm", self.out, "--datastore", str(self.store), *self.data, "--k", "8", *more]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    found = Made(tmp_path_factory.mktemp("knn"))
    assert run(found.tune("--cache", "20")) == 0
    return found


def test_it_tunes_on_valid_and_evaluate_finds_the_same_again(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(made.tune("--json")) == 0
    said = json.loads(capsys.readouterr().out)
    test, valid = said["splits"]["test"], said["splits"]["valid"]
    assert valid["knn"]["bits per byte"] <= valid["alone"]["bits per byte"], "a share of 0 is among the choices"
    assert said["weight"] in WEIGHTS and said["k"] in (1, 4, 8) and said["entries"] == 299
    for words, one in (([], test["alone"]), (["--knn"], test["knn"]), (["--datastore", str(made.store)], test["knn"])):
        assert run(["evaluate", made.out, *made.data, *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["value"] == pytest.approx(one["bits per byte"], rel=1e-6)
    assert test["knn"]["perplexity"] == pytest.approx(2 ** test["knn"]["bits per byte"])
    assert not math.isclose(test["knn"]["bits per byte"], test["alone"]["bits per byte"])


def test_it_says_what_it_costs_and_looks_up_by_the_index_that_is_wanted(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("faiss")
    found = {}
    for words in ([], ["--index", "exact"], ["--index", "hnsw:links=4,effort=8"]):
        assert run(made.tune("--json", *words)) == 0
        said = capsys.readouterr()
        told = json.loads(said.out)
        assert "among 299 keys" in said.err and f"bytes) by {told['search']}" in said.err
        found[told["search"]] = told
    assert list(found) == ["exact", "hnsw:links=4,effort=8"]
    assert found["exact"]["recall"] == 1.0 and 0.2 < found["hnsw:links=4,effort=8"]["recall"] <= 1
    fails(capsys, made.tune("--index", "nosuch"), "there is no search 'nosuch'")


def test_what_is_measured_is_not_looked_up_in_itself(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = ["datastore", "build", made.out, "--data", f"text={made.text}"]
    for split in ("valid", "test"):
        assert run([*build, "--split", split, "--out", str(tmp_path / split)]) == 0
        fails(capsys, ["knn-lm", made.out, "--datastore", str(tmp_path / split), *made.data], f"is of {split} itself")
    capsys.readouterr()
    assert run(made.tune()) == 0
    assert "stretches of valid stand in the datastore" in capsys.readouterr().err, "the text repeats itself"
    data = read_spec(f"text={made.text}")
    refuse_measured_text(Datastore.open(made.store), replace(data, test=data.test[:0]))
    assert "of test stand" not in capsys.readouterr().err, "an empty split stands nowhere"
    (tmp_path / "other").write_bytes(bytes(range(32, 127)) * 8)
    assert run([*made.tune()[:4], "--data", f"text={tmp_path / 'other'}", *made.data[2:], "--k", "8"]) == 0
    assert "word for word" not in capsys.readouterr().err


def test_a_disk_that_is_full_at_the_end_loses_no_result(
    made: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (Path(made.out) / FILE).read_bytes()

    def full(*_: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("kinformer.pages.plots.save_plots", full)
    assert run(made.tune()) == 1
    said = capsys.readouterr()
    assert "test  knn" in said.out and "No space left" in said.err
    assert (Path(made.out) / FILE).read_bytes() == before


def test_where_nothing_helps_it_says_so(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = torch.randint(200, 256, (300,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Datastore.build(tmp_path / "ds", load(made.out), noise)
    before = (Path(made.out) / FILE).read_bytes()
    try:
        assert run(["knn-lm", made.out, "--datastore", str(tmp_path / "ds"), *made.data, "--k", "1"]) == 0
    finally:
        (Path(made.out) / FILE).write_bytes(before)
    assert "the datastore does not help" in capsys.readouterr().err


def test_it_writes_with_what_was_tuned(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = KnnLMSettings.load(Path(made.out))
    KnnLMSettings(**{**vars(tuned), "weight": 0.999, "k": 1, "temperature": 1.0}).save(Path(made.out))
    try:
        texts = {}
        for words in ([], ["--knn"], ["--knn", "--beam", "2"]):
            capsys.readouterr()
            assert run(["generate", made.out, "--prompt", "a 3 b 3. a 4", "--tokens", "4", *words, "--json"]) == 0
            texts[" ".join(words)] = json.loads(capsys.readouterr().out)["texts"][0]["text"]
        for words, text in texts.items():
            assert (set(text) <= set(WORDS.decode())) is bool(words), "only what stood in the text"
    finally:
        tuned.save(Path(made.out))
    assert (Path(made.out) / "knn-lm.png").stat().st_size > 1000


def test_what_is_wrong_is_said_in_one_line(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    never, other = folder(tmp_path / "never", "transformer_xl"), folder(tmp_path / "other", "transformer_xl", seed=1)
    masked, moved = folder(tmp_path / "bert", "bert"), tmp_path / "moved"
    measure = ["evaluate", made.out, *made.data]
    tune = ["--datastore", str(made.store), *made.data]
    fails(
        capsys,
        ["evaluate", never, *made.data, "--knn"],
        f"has no {FILE}, which is tuned first: kinformer knn-lm {never} --datastore DS",
    )
    fails(capsys, ["knn-lm", other, *tune], "the datastore is of another model")
    fails(capsys, ["knn-lm", masked, *tune], "predicts no next token")
    fails(capsys, ["evaluate", masked, *made.data, "--knn"], "predicts no next token")
    fails(capsys, ["knn-lm", made.out, "--datastore", str(tmp_path), *made.data], "there is no datastore in")
    fails(capsys, [*made.tune()[:4], "--data", "task=recall"], "a datastore is of a text; give text=PATH")
    calm = folder(tmp_path / "calm", "calm", length=16)
    fails(capsys, ["knn-lm", calm, *tune], "tokens leave this model early")
    fails(capsys, ["evaluate", calm, *made.data, "--knn"], "tokens leave this model early")
    layers = ["--layers", str(tmp_path / "layers.png")]
    fails(capsys, ["generate", calm, "--prompt", "a", *layers, "--knn"], "tokens leave this model early")
    fails(capsys, [*measure, "--datastore", str(tmp_path)], "there is no datastore in")
    shutil.move(made.store, moved)
    try:
        fails(capsys, [*measure, "--knn"], "is no longer there; give --datastore its place")
        capsys.readouterr()
        assert run([*measure, "--datastore", str(moved), "--json"]) == 0
    finally:
        shutil.move(moved, made.store)
    shutil.copytree(made.store, moved)
    Datastore.build(moved, load(made.out), torch.arange(40) % 256, data="more", append=True)
    fails(capsys, [*measure, "--datastore", str(moved)], "is not the datastore that")
    path = Path(made.out) / FILE
    whole = path.read_text()
    for text in ("", "{", "[1]", "{}", whole.replace('"edition": 1', '"edition": 9'), whole.replace('"k"', '"n"')):
        path.write_text(text)
        fails(capsys, [*measure, "--knn"], FILE)
    path.write_text(whole)
    monkeypatch.setattr("kinformer.lab.datastore.knn_lm_settings.write", full)
    fails(capsys, made.tune(), "cannot write to", code=1)
    assert path.read_text() == whole


def full(path: Path, data: bytes) -> None:
    raise OSError(f"cannot write {path}: No space left on device")

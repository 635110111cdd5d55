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
from kinformer.models.support.mixing_sweeps import WEIGHTS
from tests.cli.folders import folder
from tests.cli.test_commands import fails

WORDS = b"".join(b"a %d b %d. " % (n % 7, n % 5) for n in range(120))


class Made:
    """A folder with a model, a datastore of it, and the text that both are of."""

    def __init__(self, root: Path, name: str = "transformer_xl", bytes_: int = 300) -> None:
        self.out, self.store, self.text = folder(root / name, name), root / "store", root / "text"
        self.text.write_bytes(WORDS)
        tokens = torch.tensor(list(WORDS[:bytes_]), dtype=torch.uint8)
        Datastore.build(self.store, load(self.out), tokens, data="words")
        self.data = ["--data", f"text={self.text}", "--bytes", "60", "--length", "16"]

    def tune(self, *options: str) -> list[str]:
        return ["knn-lm", self.out, "--datastore", str(self.store), *self.data, "--k", "8", *options]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Made:
    built = Made(tmp_path_factory.mktemp("knn"))
    assert run(built.tune("--cache", "20")) == 0
    return built


def test_it_tunes_on_valid_and_evaluate_finds_the_same_again(setup: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(setup.tune("--json")) == 0
    report = json.loads(capsys.readouterr().out)
    test, valid = report["splits"]["test"], report["splits"]["valid"]
    assert valid["knn"]["bits per byte"] <= valid["alone"]["bits per byte"], "a share of 0 is among the choices"
    assert report["weight"] in WEIGHTS and report["k"] in (1, 4, 8) and report["entries"] == 299
    for words, expected in (
        ([], test["alone"]),
        (["--knn"], test["knn"]),
        (["--datastore", str(setup.store)], test["knn"]),
    ):
        assert run(["evaluate", setup.out, *setup.data, *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["value"] == pytest.approx(expected["bits per byte"], rel=1e-6)
    assert test["knn"]["perplexity"] == pytest.approx(2 ** test["knn"]["bits per byte"])
    assert not math.isclose(test["knn"]["bits per byte"], test["alone"]["bits per byte"])


def test_it_says_what_it_costs_and_looks_up_by_the_index_that_is_wanted(
    setup: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("faiss")
    reports = {}
    for words in ([], ["--index", "exact"], ["--index", "hnsw:links=4,effort=8"]):
        assert run(setup.tune("--json", *words)) == 0
        captured = capsys.readouterr()
        report = json.loads(captured.out)
        assert "among 299 keys" in captured.err and f"bytes) with the search {report['search']}" in captured.err
        reports[report["search"]] = report
    assert list(reports) == ["exact", "hnsw:links=4,effort=8"]
    assert reports["exact"]["recall"] == 1.0 and 0.2 < reports["hnsw:links=4,effort=8"]["recall"] <= 1
    fails(capsys, setup.tune("--index", "nosuch"), "there is no search 'nosuch'")


def test_what_is_measured_is_not_looked_up_in_itself(
    setup: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = ["datastore", "build", setup.out, "--data", f"text={setup.text}"]
    for split in ("valid", "test"):
        assert run([*build, "--split", split, "--out", str(tmp_path / split)]) == 0
        fails(
            capsys,
            ["knn-lm", setup.out, "--datastore", str(tmp_path / split), *setup.data],
            f"the datastore was built from the {split} split of this text",
        )
    capsys.readouterr()
    assert run(setup.tune()) == 0
    assert "sampled passages of valid are in the datastore" in capsys.readouterr().err, "the text repeats itself"
    data = read_spec(f"text={setup.text}")
    refuse_measured_text(Datastore.open(setup.store), replace(data, test=data.test[:0]))
    assert "of test are in the datastore" not in capsys.readouterr().err, "an empty split stands nowhere"
    (tmp_path / "other").write_bytes(bytes(range(32, 127)) * 8)
    assert run([*setup.tune()[:4], "--data", f"text={tmp_path / 'other'}", *setup.data[2:], "--k", "8"]) == 0
    assert "word for word" not in capsys.readouterr().err


def test_a_disk_that_is_full_at_the_end_loses_no_result(
    setup: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (Path(setup.out) / FILE).read_bytes()

    def full(*_: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("kinformer.pages.plots.save_plots", full)
    assert run(setup.tune()) == 1
    captured = capsys.readouterr()
    assert "test  knn" in captured.out and "No space left" in captured.err
    assert (Path(setup.out) / FILE).read_bytes() == before


def test_where_nothing_helps_it_says_so(setup: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = torch.randint(200, 256, (300,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Datastore.build(tmp_path / "ds", load(setup.out), noise)
    before = (Path(setup.out) / FILE).read_bytes()
    try:
        assert run(["knn-lm", setup.out, "--datastore", str(tmp_path / "ds"), *setup.data, "--k", "1"]) == 0
    finally:
        (Path(setup.out) / FILE).write_bytes(before)
    assert "the datastore does not help" in capsys.readouterr().err


def test_it_writes_with_what_was_tuned(setup: Made, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = KnnLMSettings.load(Path(setup.out))
    KnnLMSettings(**{**vars(tuned), "weight": 0.999, "k": 1, "temperature": 1.0}).save(Path(setup.out))
    try:
        texts = {}
        for words in ([], ["--knn"], ["--knn", "--beam", "2"]):
            capsys.readouterr()
            assert run(["generate", setup.out, "--prompt", "a 3 b 3. a 4", "--tokens", "4", *words, "--json"]) == 0
            texts[" ".join(words)] = json.loads(capsys.readouterr().out)["texts"][0]["text"]
        for words, text in texts.items():
            assert (set(text) <= set(WORDS.decode())) is bool(words), "only what stood in the text"
    finally:
        tuned.save(Path(setup.out))
    assert (Path(setup.out) / "knn-lm.png").stat().st_size > 1000


def test_what_is_wrong_is_said_in_one_line(
    setup: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    never, other = (
        folder(tmp_path / "never tuned", "transformer_xl"),
        folder(tmp_path / "other", "transformer_xl", seed=1),
    )
    masked, elsewhere = folder(tmp_path / "bert", "bert"), tmp_path / "moved"
    measure = ["evaluate", setup.out, *setup.data]
    tune = ["--datastore", str(setup.store), *setup.data]
    fails(
        capsys,
        ["evaluate", never, *setup.data, "--knn"],
        f"has no {FILE}; tune the kNN-LM first: `kinformer knn-lm '{never}' --datastore STORE",
    )
    fails(capsys, ["knn-lm", other, *tune], "the datastore was built with another model")
    fails(capsys, ["knn-lm", masked, *tune], "does not predict the next token")
    fails(capsys, ["evaluate", masked, *setup.data, "--knn"], "does not predict the next token")
    fails(capsys, ["knn-lm", setup.out, "--datastore", str(tmp_path), *setup.data], "there is no datastore in")
    fails(
        capsys,
        [*setup.tune()[:4], "--data", "task=recall"],
        "wrong --data for a datastore: got a task, expected a text. Give text=PATH",
    )
    calm = folder(tmp_path / "calm", "calm", length=16)
    fails(capsys, ["knn-lm", calm, *tune], "a datastore does not work with early exits")
    fails(capsys, ["evaluate", calm, *setup.data, "--knn"], "a datastore does not work with early exits")
    layers = ["--layers", str(tmp_path / "layers.png")]
    fails(capsys, ["generate", calm, "--prompt", "a", *layers, "--knn"], "a datastore does not work with early exits")
    fails(capsys, [*measure, "--datastore", str(tmp_path)], "there is no datastore in")
    shutil.move(setup.store, elsewhere)
    try:
        fails(capsys, [*measure, "--knn"], "is missing; give its folder with --datastore")
        capsys.readouterr()
        assert run([*measure, "--datastore", str(elsewhere), "--json"]) == 0
    finally:
        shutil.move(elsewhere, setup.store)
    shutil.copytree(setup.store, elsewhere)
    Datastore.build(elsewhere, load(setup.out), torch.arange(40) % 256, data="more", append=True)
    fails(capsys, [*measure, "--datastore", str(elsewhere)], "is not the datastore that")
    path = Path(setup.out) / FILE
    whole = path.read_text()
    for text in ("", "{", "[1]", "{}", whole.replace('"edition": 1', '"edition": 9'), whole.replace('"k"', '"n"')):
        path.write_text(text)
        fails(capsys, [*measure, "--knn"], FILE)
    path.write_text(whole)
    monkeypatch.setattr("kinformer.lab.datastore.knn_lm_settings.write", full)
    fails(capsys, setup.tune(), "cannot write to", code=1)
    assert path.read_text() == whole


def full(path: Path, data: bytes) -> None:
    raise OSError(f"cannot write {path}: No space left on device")

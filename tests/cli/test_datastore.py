"""`kinformer datastore`: build, info, search."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.lab.datastore.datastore import Datastore
from tests.cli.folders import folder
from tests.cli.test_commands import fails

TEXT = b"".join(b"The cat no. %d sat on the mat, and it slept.\n" % n for n in range(60))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a text and a datastore of it."""
    place = tmp_path_factory.mktemp("datastores")
    (place / "text").write_bytes(TEXT)
    folder(place / "gpt", "gpt")
    folder(place / "other", "gpt", seed=1)
    folder(place / "bert", "bert")
    words = ["datastore", "build", place / "gpt", "--data", f"text={place}/text", "--out", place / "ds"]
    assert run([*map(str, words), "--length", "32"]) == 0
    return place


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["datastore", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_says_what_it_holds(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, "info", workspace / "ds")
    (part,) = report["parts"]
    assert report["keys"] == part["keys"] == part["tokens"] - 1 and (part["length"], part["stride"]) == (32, 16)
    assert (
        report["width"] == 16 and report["bytes"] > 16 * 2 * report["keys"] and report["home"] == str(workspace / "gpt")
    )
    assert run(["datastore", "info", str(workspace / "ds")]) == 0
    assert f"{report['keys']:,} keys of width 16 in float16" in capsys.readouterr().out


def test_a_prompt_from_the_text_finds_its_own_place(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", workspace / "ds", "--prompt", TEXT[:20].decode(), "--k", 3]
    first = run_json(capsys, *words)["neighbours"][0]
    assert first["distance"] < 1e-3 and first["before"] == TEXT[:20].decode() and first["next"] == chr(TEXT[20])
    assert (first["place"], first["document"]) == (19, 0)
    assert run(["datastore", *map(str, words)]) == 0
    assert f"{TEXT[:20].decode()}[{chr(TEXT[20])}]" in capsys.readouterr().out.splitlines()[1]


def test_more_is_put_behind_it(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(workspace / "ds", tmp_path / "ds")
    words = ["build", workspace / "gpt", "--data", f"text={workspace}/text", "--out", tmp_path / "ds", "--length", 32]
    first, second = run_json(capsys, *words, "--split", "valid", "--append")["parts"]
    assert first["data"].endswith("(train)") and second["data"].endswith("(valid)")
    assert len(Datastore.open(tmp_path / "ds")) == first["keys"] + second["keys"]


def test_what_is_wrong_is_said_in_one_line(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, store, text = str(workspace / "gpt"), str(workspace / "ds"), f"text={workspace}/text"
    build = ["datastore", "build", model, "--data", text, "--out"]
    fails(capsys, [*build, store], "already holds a datastore; add to it with --append")
    fails(capsys, [*build, store, "--append", "--dtype", "float32"], "has keys in float16")
    fails(capsys, [*build, str(tmp_path / "a"), "--tap", "9"], "gpt has no hidden state '9'")
    fails(
        capsys,
        [*build, str(tmp_path / "a"), "--stride", "99", "--length", "9"],
        "wrong stride for windows of 9: got 99, expected 1 to 9",
    )
    fails(capsys, [*build, str(workspace / "text")], "cannot make the folder", 1)
    (tmp_path / "short").write_bytes(b"x")
    short = f"text={tmp_path}/short"
    fails(
        capsys,
        ["datastore", "build", model, "--data", short, "--out", str(tmp_path / "a")],
        "is too short for a datastore: no token has a next token",
    )
    task = ["datastore", "build", model, "--data", "task=copy", "--out", str(tmp_path / "a")]
    fails(capsys, task, "wrong --data for a datastore: got a task, expected a text. Give text=PATH")
    fails(
        capsys,
        ["datastore", "build", str(workspace / "bert"), *build[3:], str(tmp_path / "a")],
        "does not predict the next token",
    )
    assert not (tmp_path / "a").exists()
    search = ["datastore", "search", store, "--prompt"]
    fails(capsys, [*search, ""], "--prompt is empty")
    fails(
        capsys,
        [*search, "x", "--model", str(workspace / "other")],
        "was built with another model: its weights or keywords differ",
    )
    fails(capsys, ["datastore", "search", str(tmp_path), "--prompt", "x"], "there is no datastore in")
    fails(capsys, ["datastore", "info", str(tmp_path / "nothing")], "`kinformer datastore build` makes a datastore")
    shutil.copytree(workspace / "ds", tmp_path / "cut")
    path = tmp_path / "cut" / "000.00000.keys.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    fails(capsys, ["datastore", "info", str(tmp_path / "cut")], "is truncated: got")


def test_keys_that_are_no_numbers_are_near_nothing(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "ds"
    shutil.copytree(workspace / "ds", store)
    path = store / "000.00000.keys.safetensors"
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:begin] + b"\x00\x7c" * ((len(data) - begin) // 2))  # infinities
    fails(capsys, ["datastore", "search", str(store), "--prompt", "x"], "found no key: its keys are not finite")


def test_an_index_says_what_it_finds_and_goes_with_an_append(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "ds"
    shutil.copytree(workspace / "ds", store)
    assert run(["datastore", "index", str(store), "hnsw:links=8"]) == 0
    assert "index: hnsw:links=8,effort=64, which finds" in capsys.readouterr().out
    assert run_json(capsys, "info", store)["index"]["recall"] > 0.8
    words = ["search", store, "--prompt", TEXT[:20].decode(), "--k", 3]
    assert run_json(capsys, *words)["neighbours"][0] == run_json(capsys, *words, "--exact")["neighbours"][0]
    fails(capsys, ["datastore", "index", str(store), "exact"], "'exact' has no index file")
    fails(capsys, ["datastore", "index", str(store), "ivf:x=1"], "has no keyword 'x'")
    path = store / "index.faiss"
    path.write_bytes(path.read_bytes()[:-1])
    fails(capsys, ["datastore", "search", str(store), "--prompt", "x"], "index.faiss is truncated or damaged; build")
    words = ["build", workspace / "gpt", "--data", f"text={workspace}/text", "--out", store, "--length", 32, "--append"]
    for name, message in (("nosuch", "there is no search 'nosuch'"), ("exact", "'exact' has no index file")):
        never = [*words[: words.index("--out")], "--out", str(store / "never"), "--index", name]
        fails(capsys, ["datastore", *map(str, never)], message)
    assert not (store / "never").exists()
    assert run_json(capsys, *words, "--split", "valid")["index"] is None
    assert run_json(capsys, *words, "--split", "test", "--index", "flat")["index"]["recall"] == 1


def test_without_a_command_it_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["datastore"]) == 0
    output = capsys.readouterr().out
    assert all(f"  {name} " in output for name in ("build", "index", "info", "search"))


def test_a_model_that_moved_is_asked_for(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(workspace / "gpt", tmp_path / "gpt")
    Datastore.build(tmp_path / "ds", load(tmp_path / "gpt"), torch.tensor([1, 2, 3]), home=str(tmp_path / "gpt"))
    (tmp_path / "gpt").rename(tmp_path / "elsewhere")
    words = ["datastore", "search", str(tmp_path / "ds"), "--prompt", "x"]
    fails(capsys, words, "gpt. Give its folder with --model DIR")
    assert run([*words, "--model", str(tmp_path / "elsewhere")]) == 0
    Datastore.build(tmp_path / "of_no_folder", load(tmp_path / "elsewhere"), torch.tensor([1, 2, 3]))
    (tmp_path / "all").mkdir()
    for name, there_ in (("ds", "ds"), ("elsewhere", "gpt")):
        shutil.copytree(tmp_path / name, tmp_path / "all" / there_)
    assert run(["datastore", "search", str(tmp_path / "all" / "ds"), "--prompt", "x"]) == 0, "beside it, by its name"
    words = ["datastore", "search", str(tmp_path / "of_no_folder"), "--prompt", "x"]
    fails(capsys, words, "the datastore records no folder. Give its folder with --model DIR")

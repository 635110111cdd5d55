"""`kinformer look`."""

import json
import math
from pathlib import Path

import pytest
import torch

import kinformer as kf
from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from tests.cli.folders import folder
from tests.cli.test_commands import fails
from tests.pages.test_look_page import data_of

TEXT = "import re\nimport"
OWN = """
import torch
import kinformer as kf


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 16)
        self.attention = kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal()))

    def forward(self, ids):
        return self.attention(self.embedding(ids)).y


class Plain(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 2)


class Failing(Own):
    def forward(self, ids):
        return self.attention(self.embedding(ids), 3, 4, 5)


@kf.member
def tiny(d: int = 16, depth: int = 2, heads: int = 2) -> kf.LM:
    \"\"\"Tiny (A. Author, 2026, arXiv:2601.00001): a small decoder.

    d: width.
    depth: layers.
    heads: heads.
    \"\"\"
    return kf.gpt(d=d, depth=depth, heads=heads)


def broken():
    raise RuntimeError("no model")


number = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def test_the_page_of_a_run_has_its_losses_and_maps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = folder(tmp_path / "run", "gpt", depth=2), tmp_path / "page.html"
    assert run(["look", out, "--text", TEXT, "--out", str(page)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    model, ids = load(out), torch.tensor([list(TEXT.encode())])
    with torch.no_grad():
        log_p = model.logits(ids).y[0].log_softmax(-1)
    bits = [-float(log_p[t, byte]) / math.log(2) for t, byte in enumerate(ids[0, 1:].tolist())]
    mean = sum(bits) / len(bits)
    assert line == f"{page}: 16 tokens, {mean:.3f} bits per token; maps of 2 of 2 attention layers"
    data = data_of(page)
    assert data["tints"][0]["values"][1:] == pytest.approx(bits, abs=1e-3)
    assert [layer["heads"] for layer in data["layers"]] == [2, 2]
    assert f"<title>What {out} attends to</title>" in page.read_text("utf-8")


def test_a_file_in_blocks_and_the_numbers_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, file, page = folder(tmp_path / "run", "gpt"), tmp_path / "text.txt", tmp_path / "page.html"
    file.write_text(TEXT)
    words = ["look", out, "--text-file", str(file), "--out", str(page), "--cells", "4", "--json"]
    assert run(words) == 0
    record = json.loads(capsys.readouterr().out)
    seen = kf.look(load(out), TEXT)
    (layer,) = record["layers"]
    assert record["cell"] == 4 and record["unseen"] == {} and record["bits"][0] is None
    assert record["layers"][layer]["entropy"] == pytest.approx(seen.heads[layer].entropy.tolist(), rel=1e-4)
    assert data_of(page)["layers"][0]["c"] == 4
    fails(capsys, words, f"{page} already exists; give another --out, or --overwrite")
    assert run([*words, "--overwrite"]) == 0


def test_layers_without_a_map_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = folder(tmp_path / "run", "linear_transformer"), tmp_path / "page.html"
    assert run(["look", out, "--text", TEXT, "--out", str(page)]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("maps of 0 of 1 attention layers\n")
    assert "the page gives the reason for each layer without a map" in captured.err
    reason = "layer 0 has no map: LinearAttention computes its weights itself, so they cannot be computed again."
    assert reason in page.read_text("utf-8").replace("Layer", "layer")


def test_json_has_the_retrieved_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = folder(tmp_path / "run", "memorizing_transformer", segment=4, memory=8, k=3), tmp_path / "page.html"
    assert run(["look", out, "--text", TEXT + " é", "--out", str(page), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    seen = kf.look(load(out), TEXT + " é")
    ((name, keys),) = seen.retrieved.items()
    written = record["retrieved"][name]
    assert keys.weights is not None and bool((keys.places >= 0).any())
    assert written["places"] == keys.places.tolist() and written["distances"] is None and written["texts"] == {}
    assert torch.tensor(written["weights"]).allclose(keys.weights, atol=1e-5)
    assert keys.share is not None and torch.tensor(written["share"]).allclose(keys.share, atol=1e-5)
    assert record["tokens"][-3:] == [" ", r"\xc3", "é"]


def test_models_in_a_file_of_the_user(tmp_path: Path, own: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, line in {"tiny": "bits per token; maps of 2 of 2", "Own": "16 tokens; maps of 1 of 1"}.items():
        page = tmp_path / f"{name}.html"
        assert run(["look", f"{own}:{name}", "--text", TEXT, "--out", str(page)]) == 0
        captured = capsys.readouterr()
        assert line in captured.out and "the weights are untrained: the model was built with seed 0" in captured.err
        assert f"<title>What {name} attends to</title>" in page.read_text("utf-8")


def test_wrong_input_is_one_line(tmp_path: Path, own: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = folder(tmp_path / "run", "gpt"), str(tmp_path / "page.html")
    pairs = folder(tmp_path / "pairs", "transformer")

    def refused(message: str, *words: str, text: tuple[str, ...] = ("--text", TEXT)) -> None:
        fails(capsys, ["look", *words, *text, "--out", page], message)

    refused("give one of --text TEXT and --text-file FILE", out, text=())
    refused("give one of --text TEXT and --text-file FILE", out, "--text-file", own)
    refused("the text is empty; give --text at least two tokens", out, text=("--text", ""))
    refused("got a text of 1 token, expected 2 to 16,384", out, text=("--text", "a"))
    refused("there is no file or folder", out, text=("--text-file", str(tmp_path / "none")))
    refused("cannot read", out, text=("--text-file", str(tmp_path)))
    refused("there is no file or folder", str(tmp_path / "none"))
    refused("reads pairs, expected a model that reads one text", pairs)
    refused("is a file; add the name of a member or of a torch.nn.Module in it", own)
    refused("has no 'Owm'; the nearest is 'Own'", f"{own}:Owm")
    refused("cannot build", f"{own}:broken")
    refused("is 3, expected a torch.nn.Module or a function that builds a model", f"{own}:number")
    refused("expected a model of kinformer or of transformers, or a module with Attention layers", f"{own}:Plain")
    refused("cannot read token ids [1, 16]: TypeError", f"{own}:Failing")
    refused("leave out --member, --knn and --datastore", f"{own}:tiny", "--knn")
    assert not Path(page).exists()
    fails(capsys, ["look", out, "--text", TEXT, "--out", str(tmp_path)], "wrong --out: got")
    fails(capsys, ["look", out, "--text", TEXT, "--out", str(tmp_path / "no/a.html")], "there is no file or folder")
    fails(capsys, ["look", out, "--text", TEXT, "--out", "a.png"], "expected a file that ends in .html")

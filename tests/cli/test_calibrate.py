"""`kinformer calibrate`, and what `generate` makes of it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load, save
from kinformer.cli.__main__ import run
from kinformer.core.layer import Context, Decoding
from kinformer.decoding.calibrated_threshold import apply_calibration, save_calibration
from kinformer.decoding.generate import generate
from kinformer.lab.data.text import read
from kinformer.lab.train.evaluate import evaluate
from kinformer.members.calm import calm
from kinformer.nn.exits.decaying_threshold import DecayingThreshold
from tests.cli.folders import folder
from tests.cli.test_commands import fails

TASK = ["--data", "task=copy,length=3"]
LOOSE = ["--delta", "0.5", "--epsilon", "0.2", "--thresholds", "5"]


@pytest.fixture
def out(tmp_path: Path) -> str:
    return folder(tmp_path / "run", "calm", length=32, depth=3, threshold=1.0)


def calibrated(capsys: pytest.CaptureFixture[str], out: str, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["calibrate", out, *TASK, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_threshold_is_kept_beside_the_weights_and_generate_leaves_by_it(
    out: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = calibrated(capsys, out, *LOOSE, "--samples", "20", "--consistency", "risk")
    saved = json.loads((Path(out) / "exits.json").read_text())
    tested = report["tested"]
    assert report["threshold"] == saved["threshold"] in (0.0, 0.25, 0.5, 0.75) and saved["samples"] == 20
    assert saved["tokens"] == 3, "the promise is for outputs of so many tokens"
    assert [entry["threshold"] for entry in tested] == [1.0, 0.75, 0.5, 0.25, 0.0][: len(tested)]
    assert all(entry["p"] <= 0.2 for entry in tested[:-1])
    model = load(out)
    assert apply_calibration(Path(out), model) == saved
    expected = generate(model, torch.tensor([list(b"abc|")]), 6, temperature=0)
    at = torch.arange(9)[None]
    ctx = Context(at, run=True, decoding=Decoding(at - 3, 6))  # 6 tokens are written behind the 4 of the prompt
    exits = model.logits(expected[:, :-1], ctx=ctx).aux["exit"][0, 3:].long().tolist()
    picture = tmp_path / "layers.png"
    words = ["generate", out, "--prompt", "abc|", "--tokens", "6", "--temperature", "0"]
    assert run([*words, "--json", "--layers", str(picture)]) == 0
    captured = capsys.readouterr()
    (entry,) = json.loads(captured.out)["texts"]
    assert entry["tokens"] == expected[0, 4:].tolist() and entry["layers"] == exits
    at = saved["threshold"]  # which falls, as equation 5 says
    falls = f"from {0.9 * at + 0.1:.3g} to {0.9 * at + 0.1 * math.exp(-4):.3g}"
    assert f"tokens exit early at threshold {at:.3g} (falling {falls} over the output), as calibrated" in captured.err
    assert f"{sum(exits) / 6:.2f} of 3 layers per token" in captured.err and picture.stat().st_size
    (Path(out) / "exits.json").unlink()
    assert run([*words, "--json"]) == 0
    report = capsys.readouterr()
    assert json.loads(report.out)["texts"][0]["layers"] == [3] * 6, "the member's own threshold is 1"
    assert (
        f"not calibrated: tokens exit early at the threshold that the member sets; `kinformer calibrate {out} --data"
        in report.err
    )


def test_evaluate_leaves_as_calibrated_and_tells_of_all_layers(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 80)
    words = ["evaluate", out, "--data", f"text={tmp_path / 'text'}", "--length", "16"]

    def evaluated(*options: str) -> tuple[dict[str, Any], str]:
        capsys.readouterr()
        assert run([*words, *options, "--json"]) == 0
        captured = capsys.readouterr()
        return json.loads(captured.out), captured.err

    whole, error = evaluated()
    assert whole["others"]["layers"] == 3 and "calibrated" not in error and "threshold" not in whole
    model = load(out)
    save_calibration(Path(out), model, 0.02, {})
    early, error = evaluated()
    model.exits.rule.leave_at(0.02)
    judged = evaluate(model, read(str(tmp_path / "text")).part("test"), 16)
    assert "tokens exit early at threshold 0.02 (falling from 0.118 to 0.0198" in error and early["threshold"] == 0.02
    assert early["value"] == pytest.approx(judged.value) != whole["value"]
    assert early["others"]["layers"] == pytest.approx(judged.extras["layers"]) and judged.extras["layers"] < 3
    assert early["levels"] == whole["levels"] | {"all layers": whole["value"]}
    assert run(words) == 0
    assert ["all", "layers", f"{whole['value']:.4f}"] in [
        line.split()[:3] for line in capsys.readouterr().out.splitlines()
    ]
    other, error = evaluated("threshold=0.5")
    assert "calibrated" not in error and "all layers" not in other["levels"], "keywords say otherwise"
    save_calibration(Path(out), calm(d=16, depth=3, heads=2, length=32), 0.02, {})
    fails(capsys, words, "made for other weights")


def test_where_nothing_is_proven_it_is_the_full_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder(tmp_path / "run", "calm", length=32, depth=3, threshold=1.0, confidence="probe")
    monkeypatch.setattr("kinformer.cli.support.calibration.losses", lambda *_: [0.5] * 20)
    assert run(["calibrate", out, *TASK, *LOOSE, "--samples", "20"]) == 0
    assert "no threshold is proven to keep the mean loss at 0.5, so no token exits early" in capsys.readouterr().out
    assert json.loads((Path(out) / "exits.json").read_text())["threshold"] is None
    assert run(["generate", out, "--prompt", "abc|", "--tokens", "3", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["texts"][0]["layers"] == [3] * 3 and "no token exits early" in captured.err
    # what a state is of is asked of the model as it was trained, a rule that learns with it
    state = str(Path(out) / "state.safetensors")
    (tmp_path / "text").write_text("abc|")
    assert run(["read", out, str(tmp_path / "text"), "--save", state]) == 0
    assert run(["generate", out, "--state", state, "--tokens", "3"]) == 0


def test_a_model_of_pairs_is_calibrated_on_its_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder(tmp_path / "run", "calm", length=32, form="encoder_decoder", depth=2)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{n:03}\t{n:03}x\n" for n in range(200)))
    words = ["--data", f"pairs={pairs}", "--split", "train", "--samples", "6", "--delta", "0.7", "--epsilon", "0.2"]
    assert run(["calibrate", out, *words, "--thresholds", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 6
    assert run(["generate", out, "--source", "001", "--tokens", "3", "--json"]) == 0
    (text,) = json.loads(capsys.readouterr().out)["texts"]
    assert len(text["layers"]) == len(text["tokens"])
    fails(
        capsys,
        ["calibrate", out, *words[:3], "valid", "--samples", "160"],
        "160 pairs of valid were requested, but there are",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "truncated or not JSON"),
        ("[1]", "was not written by kinformer"),
        ('{"model": "x", "threshold": 0.5}', "has edition None"),
        ('{"model": "x", "threshold": 0.5, "edition": 1}', "made for other weights"),
    ],
)
def test_a_file_that_is_not_this_model_s_is_refused(
    text: str, says: str, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(out) / "exits.json").write_text(text)
    fails(capsys, ["generate", out, "--prompt", "a"], says)


def test_other_weights_and_other_thresholds_are_refused(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    calibrated(capsys, out, *LOOSE, "--samples", "8")
    file = Path(out) / "exits.json"
    saved = json.loads(file.read_text())
    for threshold, says in (
        (1.5, "threshold=1.5"),
        ([0.5], "got 1 thresholds for 3 layers"),
        ("/dev/zero", "threshold='/dev/zero'"),
        ([0.5, "a"], "threshold=[0.5, 'a']"),
        (True, "threshold=True"),
    ):
        file.write_text(json.dumps(saved | {"threshold": threshold}))
        fails(capsys, ["generate", out, "--prompt", "a"], says)
    file.write_text(json.dumps(saved | {"threshold": [0.5, 0.75]}))
    model = load(out)
    assert apply_calibration(Path(out), model)
    assert model.exits.rule.threshold == DecayingThreshold((0.5, 0.75), 32), "thresholds by layer fall as one does"
    model = load(out)
    with torch.no_grad():
        model.embedding.weight.add_(0.1)
    save(model, out)
    fails(capsys, ["generate", out, "--prompt", "a"], "made for other weights")


def test_a_file_of_an_earlier_version_leaves_as_it_did(out: str) -> None:
    """Without a clock: thresholds by layer stay as they are, and of one that falls nothing is proven any more."""
    file, model = Path(out) / "exits.json", load(out)
    for threshold in ([0.5, 0.75], 0.5):
        save_calibration(Path(out), model, threshold, {})
        saved = json.loads(file.read_text())
        file.write_text(json.dumps({name: value for name, value in saved.items() if name != "clock"}))
        if isinstance(threshold, list):
            assert apply_calibration(Path(out), model) and model.exits.rule.threshold == (0.5, 0.75)
        else:
            with pytest.warns(UserWarning, match=r"has no guarantee any more\. .*; run `kinformer calibrate` again"):
                apply_calibration(Path(out), model := load(out))
            assert model.exits.rule.threshold == DecayingThreshold(0.5, 32)


def test_what_cannot_be_calibrated_is_said_in_one_line(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = folder(tmp_path / "gpt", "gpt")
    says = "cannot calibrate this gpt: it has no early exits. Calibrate one of calm, depth_adaptive"
    fails(capsys, ["calibrate", other, *TASK], says)
    multinomial = folder(tmp_path / "multinomial", "depth_adaptive", length=32, classifier="multinomial")
    fails(
        capsys,
        ["calibrate", multinomial, *TASK],
        "cannot calibrate this depth_adaptive: its exit rule has no threshold",
    )
    fails(
        capsys,
        ["generate", other, "--prompt", "a", "--layers", "x.png"],
        "--layers has no effect on this gpt: it has no early exits. Leave it out",
    )
    fails(capsys, ["generate", out, "--prompt", "a", "--layers", "x.txt"], "FILE.png")
    fails(
        capsys,
        ["generate", out, "--prompt", "a", "--layers", str(tmp_path / "no" / "x.png")],
        "there is no file or folder",
    )
    ask = ["calibrate", out, *TASK]
    fails(
        capsys,
        [*ask, "--samples", "149"],
        "149 texts are too few to prove delta 0.1 with epsilon 0.05; give --samples 150",
    )
    for words, message in (
        (["--delta", "0"], "delta=0.0"),
        (["--delta", "1"], "delta=1.0"),
        (["--epsilon", "-1"], "epsilon=-1.0"),
        (["--epsilon", "nan"], "epsilon=nan"),
        (["--consistency", "exact"], "--consistency"),
        (["--thresholds", "1"], "--thresholds"),
        (["--within", "0.1"], "--within has no effect without --search"),
        (["--overwrite"], "--overwrite has no effect without --search"),
    ):
        fails(capsys, [*ask, *words], message)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "short").write_bytes(b"a few words of a text " * 20)
    fails(capsys, ["calibrate", out, "--data", f"text={tmp_path / 'empty'}"], "holds no byte")
    fails(
        capsys,
        ["calibrate", out, "--data", f"text={tmp_path / 'short'}"],
        "windows of 96 bytes of valid, side by side, were requested",
    )
    fails(capsys, ["calibrate", out, "--data", "sets=maximum"], "reads a text")
    fails(capsys, ["calibrate", str(tmp_path / "none"), *TASK], "there is no file or folder")

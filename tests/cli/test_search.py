"""`kinformer calibrate --search`: thresholds by layer, measured where tokens leave by them, chosen, drawn and kept."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.core.token_positions import context_of_tokens
from kinformer.decoding.calibrated_threshold import apply_calibration, save_calibration
from kinformer.lab.calibrate.search_methods import MeasuredThresholds
from kinformer.lab.calibrate.threshold_search import LEAST, ROWS, rows_of, search_thresholds
from kinformer.lab.data.spec import read_spec
from kinformer.members.calm import calm
from kinformer.members.depth_adaptive import depth_adaptive
from kinformer.nn.exits.decaying_threshold import DecayingThreshold
from tests.cli.folders import folder
from tests.cli.test_commands import fails

TASK = ["--data", "task=copy,length=3"]
TINY = {"d": 16, "depth": 3, "heads": 2, "length": 32}


@pytest.fixture
def out(tmp_path: Path) -> str:
    return folder(tmp_path / "run", "depth_adaptive", length=32, depth=3, classifier="geometric")


def judged(model: Any, threshold: tuple[float, ...], batches: list[Any]) -> tuple[float, float]:
    model.exits.rule.leave_at(threshold)
    totals = [model.judge(batch).totals for batch in batches]
    first = next(iter(totals[0]))
    return tuple(
        sum(float(total[name][0]) for total in totals) / sum(int(total[name][1]) for total in totals)
        for name in (first, "layers")
    )


def test_the_cheapest_that_is_as_good_is_kept_and_generate_leaves_by_it(
    out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", out, *TASK, "--search", "60", "--samples", "40", "--within", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    saved = json.loads((Path(out) / "exits.json").read_text())
    assert report["threshold"] == saved["threshold"] and saved["by"] == "random search" and saved["draws"] == 60
    assert (Path(out) / "exits.png").stat().st_size > 10_000
    model = load(out).eval()
    batches = rows_of(model, read_spec(TASK[1]), "valid", 40, 64)
    assert len(batches) == -(-40 // ROWS) and LEAST % ROWS == 0
    with torch.no_grad():
        for entry in saved["kept"]:
            value, layers = judged(model, tuple(entry["threshold"]), batches)
            assert (entry["value"], entry["layers"]) == pytest.approx((value, layers))
        full = judged(model, (1.0, 1.0), batches)
    assert saved["full"] == pytest.approx(full[0]) and full[1] == 3
    cheapest = min(saved["kept"], key=lambda entry: entry["layers"])  # within 1 of an accuracy are all
    assert saved["threshold"] == cheapest["threshold"] and saved["layers"] == cheapest["layers"]
    assert apply_calibration(Path(out), model) and model.exits.rule.threshold == tuple(saved["threshold"])
    assert run(["generate", out, "--prompt", "abc|", "--tokens", "3", "--temperature", "0"]) == 0
    assert "as calibrated" in capsys.readouterr().err


@pytest.mark.parametrize(("by", "name"), [("grid", "grid search"), ("coordinates", "coordinate search")])
def test_thresholds_on_a_grid_are_judged_and_kept_as_drawn_ones(
    by: str, name: str, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["calibrate", out, *TASK, "--search", by, "--thresholds", "3", "--samples", "20", "--within", "1"]
    assert run([*words, "--json"]) == 0
    report, saved = json.loads(capsys.readouterr().out), json.loads((Path(out) / "exits.json").read_text())
    assert report["threshold"] == saved["threshold"] and saved["by"] == name
    assert saved["draws"] == 9 if by == "grid" else 6 <= saved["draws"] <= 30
    assert {value for entry in saved["kept"] for value in entry["threshold"]} <= {1.0, 0.5, 0.0}
    model = load(out).eval()
    batches = rows_of(model, read_spec(TASK[1]), "valid", 20, 64)
    with torch.no_grad():
        for entry in saved["kept"]:
            assert (entry["value"], entry["layers"]) == pytest.approx(judged(model, tuple(entry["threshold"]), batches))
    assert saved["layers"] == min(entry["layers"] for entry in saved["kept"]), "within 1 of an accuracy are all"
    assert (Path(out) / "exits.png").stat().st_size > 10_000


@pytest.mark.parametrize("within", [0.0, 0.05, 10.0])
def test_the_choice_is_that_of_a_loop(within: float, monkeypatch: pytest.MonkeyPatch, float64: None) -> None:
    """The fewest layers of those near the full model, each judged anew; bits are better if less."""
    torch.manual_seed(0)
    model = depth_adaptive(**TINY, classifier="geometric", vocab=7).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    batches = [torch.randint(0, 7, (4, 9)) for _ in range(2)]
    thresholds = [(1.0, 1.0), (0.0, 0.0), (0.5, 0.6), (1.0, 0.0)]
    monkeypatch.setattr(
        "kinformer.lab.calibrate.threshold_search.random_search",
        lambda measure, depth, draws: (
            measure(torch.tensor(thresholds)),
            [MeasuredThresholds(threshold, 0.0, 0.0) for threshold in thresholds],
        )[1],
    )
    progress: list[int] = []
    result = search_thresholds(model, batches, 4, within, progress.append)
    assert progress == [1, 2, 3, 4] and result.metric.name == "bits per byte"
    with torch.no_grad():
        by_hand = [judged(model, entry, batches) for entry in thresholds]
    assert [(result.value(entry), entry.layers) for entry in result.candidates] == [
        pytest.approx(entry) for entry in by_hand
    ]
    assert result.value(result.full) == pytest.approx(by_hand[0][0]), "nobody leaves above 1"
    good = [n for n, (bits, _) in enumerate(by_hand) if bits <= by_hand[0][0] + within + 1e-12]
    assert result.chosen is not None
    assert result.chosen.threshold == thresholds[min(good, key=lambda n: by_hand[n][1])]


def test_a_threshold_that_falls_goes_on_falling(float64: None) -> None:
    """Of two layers the first is the same whoever leaves, so who leaves follows from its states and equation 5."""
    torch.manual_seed(0)
    model = calm(**TINY | {"depth": 2}, threshold=0.9, vocab=7).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=1.0)
    model.trained_length, batches = 12, [torch.randint(0, 7, (4, 9)) for _ in range(2)]
    result = search_thresholds(model, batches, 30, 100.0, lambda done: None)
    leaves = []
    with torch.no_grad():
        for batch in batches:
            ctx = context_of_tokens(batch[:, :-1]).replace(taps=("0",))
            state = model.logits(batch[:, :-1], None, ctx).taps["0"]
            best = model.head(model.body.heads[0](state)).softmax(-1).topk(2).values
            leaves.append(best[..., 0] - best[..., 1])
    sure, fall = torch.cat(leaves), 0.1 * torch.exp(-4 * torch.arange(8) / 12)
    for entry in result.candidates:
        (scale,) = entry.threshold
        assert entry.layers == pytest.approx(2 - float((sure >= 0.9 * scale + fall).double().mean()), abs=1e-12)
    thresholds = torch.rand(30, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    by_hand = 2 - (sure >= 0.9 * thresholds[..., None] + fall).double().mean((1, 2))
    assert torch.allclose(result.tried[1].double(), by_hand, atol=1e-6)
    assert not torch.allclose(by_hand, 2 - (sure >= thresholds[..., None]).double().mean((1, 2)), atol=1e-2)
    assert result.chosen and model.exits.rule.threshold == DecayingThreshold(result.candidates[-1].threshold, 32)


def test_where_none_is_as_good_it_is_the_full_model(
    out: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kinformer.lab.calibrate.threshold_search._candidate",
        lambda t, trial: MeasuredThresholds(t, -float(len(t)), 2.0),
    )
    assert run(["calibrate", out, *TASK, "--search", "20", "--samples", "16"]) == 0
    assert "no token exits early" in capsys.readouterr().out
    assert json.loads((Path(out) / "exits.json").read_text())["threshold"] is None


def test_what_was_proven_is_overwritten_where_it_may_be(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    search = ["calibrate", out, *TASK, "--search", "20", "--samples", "16"]
    proven = {"by": "learn then test", "delta": 0.1, "epsilon": 0.05}
    save_calibration(Path(out), load(out), 0.5, proven)
    fails(capsys, search, "holds a proven threshold, for delta 0.1 and epsilon 0.05, but a search proves nothing")
    assert json.loads((Path(out) / "exits.json").read_text())["threshold"] == 0.5
    assert run([*search, "--overwrite"]) == run(search) == 0, "what a search found gives way to another"
    previous = (Path(out) / "exits.json").read_text()
    assert json.loads(previous)["by"] == "random search"
    for past in (json.dumps(json.loads(previous) | proven | {"model": "another"}), "{"):  # of no use to anyone
        (Path(out) / "exits.json").write_text(past)
        assert run(search) == 0


def test_rows_of_pairs_and_of_a_text_are_searched_too(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(range(97, 123)) * 80)
    (tmp_path / "pairs.tsv").write_text("".join(f"{n}abc\tcba{n}\n" for n in range(60)))
    for spec, model in (
        (f"text={tmp_path / 'text'}", calm(**TINY, temperature=None)),
        (f"pairs={tmp_path / 'pairs.tsv'}", depth_adaptive(**TINY, classifier="probability", form="encoder_decoder")),
    ):
        result = search_thresholds(
            model.eval(), rows_of(model, read_spec(spec), "valid", 16, 20), 30, 100.0, lambda done: None
        )
        assert result.chosen == min(result.candidates, key=lambda entry: entry.layers) and result.metric.unit == "bits"


def test_what_cannot_be_written_or_measured_leaves_what_was_there(
    out: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = ["calibrate", out, *TASK, "--search", "20", "--samples", "16"]
    (Path(out) / "exits.png").write_bytes(b"a picture")
    with monkeypatch.context() as full:
        full.setattr("os.fsync", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert run(search) == 1
    assert "cannot write" in (error := capsys.readouterr().err) and len(error.strip().splitlines()) == 1
    assert (Path(out) / "exits.png").read_bytes() == b"a picture" and not (Path(out) / "exits.json").exists()
    model = load(out)
    with torch.no_grad():
        model.body.layers[0].layers[1].up.weight.fill_(math.nan)
    batches = [torch.randint(0, 7, (2, 5))]
    with pytest.raises(ValueError, match="^bits per byte of the full model is nan on these rows"):
        search_thresholds(model.eval(), batches, 5, 0.1, lambda done: None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--epsilon", "0.1"], "--epsilon has no effect with --search, which proves nothing"),
        (["--tokens", "3"], "--tokens has no effect with --search, which proves nothing"),
        (["--consistency", "risk"], "--consistency has no effect with --search"),
        (["--thresholds", "5"], "--thresholds has no effect with --search N, which draws thresholds"),
        (["--delta", "0.1"], "which proves nothing; leave it out, or set the allowed loss of the metric with --within"),
        (["--within", "-1"], "wrong --within: got -1, expected"),
        (["--within", "nan"], "wrong --within: got nan, expected"),
        (["--search", "0"], "--search 0: give a number of random combinations from 1"),
        (
            ["--search", "girds"],
            "--search girds: give a number of random combinations from 1 to 1,000,000,000,000, grid for",
        ),
        (
            ["--search", "grid", "--thresholds", "500"],
            "500 thresholds for each of 2 layers is too large: got 250,000 vectors",
        ),
        (["--data", "sets=maximum"], "reads a text"),
    ],
)
def test_what_cannot_be_searched_is_said_in_one_line(
    words: list[str], says: str, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    search = [] if words[0] == "--search" else ["--search", "10"]
    fails(capsys, ["calibrate", out, *([] if words[0] == "--data" else TASK), *search, *words], says)


def test_a_rule_without_thresholds_and_a_single_layer_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    single = folder(tmp_path / "one", "depth_adaptive", length=32, depth=1, classifier="probability")
    fails(capsys, ["calibrate", single, *TASK, "--search", "10"], "depth=1")
    other = folder(tmp_path / "drawn", "depth_adaptive", length=32, classifier="multinomial")
    fails(
        capsys,
        ["calibrate", other, *TASK, "--search", "10"],
        "its exit rule has no threshold. Train a member with a rule",
    )

"""fit: from Python, any model; what it refuses before the first step."""

import json
from inspect import unwrap
from pathlib import Path

import pytest
import torch

import kinformer
from kinformer.checkpoint.checkpoint import load
from kinformer.core.example import Example
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.lab.data.batches import Batches
from kinformer.lab.train.fit import fit
from kinformer.lab.train.history import History
from kinformer.lab.train.loop import TrainingStopped
from kinformer.lab.train.reads_ahead import leaks
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.transformer import transformer
from kinformer.models.lm import LM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from tests.lab.train import tiny

QUICK = {"steps": 2, "batch": 2, "length": 16}


def test_it_is_public_and_trains_into_a_folder(tmp_path: Path) -> None:
    assert kinformer.fit is fit
    model = tiny.bigram()
    history = fit(model, tiny.text(), steps=200, batch=4, length=16, lr=3e-2, out=tmp_path)
    assert history.points[-1].valid < 0.5 and history.metric.name == "bits per byte"
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["trained_length"] == 16 and config["metric"]["name"] == "bits per byte"
    assert History.read(tmp_path) == history and history.metric.unit == "bits"
    assert load(tmp_path, tiny.bigram).trained_length == 16


def test_text_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abcdefgh" * 200)
    assert fit(tiny.bigram(), f"text={tmp_path}/text", steps=3, batch=2, length=8).step == 3


def test_a_seed_fixes_the_draws_of_training_and_leaves_others_alone() -> None:
    def trained(seed: int) -> float:
        torch.manual_seed(0)
        model = gpt(d=8, depth=1, heads=2, length=16, dropout=0.5)
        torch.manual_seed(torch.randint(1000, ()).item() + trained.calls)
        trained.calls += 1
        before = torch.get_rng_state()
        value = fit(model, tiny.text(), seed=seed, **QUICK).points[-1].valid
        assert torch.equal(before, torch.get_rng_state())
        return value

    trained.calls = 0
    assert trained(1) == trained(1) != trained(2)


# Any model -----------------------------------------------------------------------------------------------------------


def test_a_classifier_learns_from_batches_and_is_measured_by_its_own_metric(tmp_path: Path) -> None:
    model = tiny.classifier()
    valid = [model.sample(50, 9, 10_000 + n) for n in range(3)]
    data = Batches(lambda step: model.sample(20, 9, step), valid)
    history = fit(model, data, steps=300, lr=0.005, out=tmp_path)
    assert history.points[0].valid < history.best.valid and history.best.valid > 0.9
    assert history.best.valid == max(point.valid for point in history.points)
    assert history.tokens == 300 * 20 * 8 and model.trained_length is None
    assert History.read(tmp_path).metric.better == "more"
    right = [(load(tmp_path / "best", tiny.classifier).answers(x).argmax(-1) == y).float().mean() for x, y in valid]
    assert float(torch.stack(right).mean()) == pytest.approx(history.best.valid)


def test_pairs_are_trained_from_batches_in_turn() -> None:
    model = transformer(d=16, depth=1, heads=2, hidden=16, vocab=5, dropout=0.0)
    rows = [model.sample(8, 4, n)[0] for n in range(2)]
    history = fit(model, [(row, row) for row in rows], steps=60, lr=0.01)
    assert history.metric.name == "bits per token" and history.best.valid < history.points[0].valid


def test_a_masked_model_needs_no_state() -> None:
    history = fit(bert(d=8, depth=1, heads=2, length=16), tiny.text(), **QUICK)
    assert history.metric.name == "bits per masked byte"


# Refused before the first step ---------------------------------------------------------------------------------------


def lm(pattern: object) -> LM:
    block = PostNorm(Attention(QKV(16, 2), Softmax(pattern)), MLP(16))  # type: ignore[arg-type]
    return LM(256, 16, block)


def test_what_reads_ahead_is_refused_and_nothing_is_trained() -> None:
    model = lm(Band(4))
    before = model.embedding.weight.clone()
    with pytest.raises(ValueError, match="this LM reads ahead") as caught:
        fit(model, tiny.text(), **QUICK)
    assert "\n" not in str(caught.value) and torch.equal(model.embedding.weight, before)
    fit(lm(Causal() & Band(4)), tiny.text(), **QUICK)


def test_a_decoder_that_reads_its_target_ahead_is_refused_and_its_encoder_may() -> None:
    def pair(pattern: object) -> Seq2Seq:
        encoder = PostNorm(Attention(QKV(16, 2), Softmax(Full())))
        across = Attention(QKV(16, 2), Softmax(Full()), cross=True)
        return Seq2Seq(5, 16, encoder, PostNorm(Attention(QKV(16, 2), Softmax(pattern)), across))  # type: ignore[arg-type]

    assert leaks(pair(Full()), 12) and not leaks(pair(Causal()), 12)
    with pytest.raises(ValueError, match="this Seq2Seq reads ahead"):
        fit(pair(Band(1)), [pair(Full()).sample(2, 4, 0)], steps=1)


class Ahead(tiny.Bigram):
    """Says of each byte the mean of the row: what the file's example declares."""

    def logits(self, tokens, state=None, ctx=None, *, last=False):  # type: ignore[no-untyped-def]
        out = super().logits(tokens, state)
        return out._replace(y=out.y + out.y.mean(1, keepdim=True))


def test_what_declares_that_it_reads_ahead_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="this Ahead reads ahead"):
        fit(Ahead(4), tiny.text(), **QUICK)
    declared = (Example(lambda: Ahead(4), {"peek": "it takes the mean of the row"}),)
    monkeypatch.setitem(globals(), "EXAMPLES", declared)
    with pytest.warns(UserWarning, match="this Ahead reads ahead, as its part declares: it takes the mean"):
        assert fit(Ahead(4), tiny.text(), **QUICK).step == 2


def test_what_cannot_go_on_is_refused() -> None:
    class Stuck(tiny.Bigram):
        def start(self, *shape, **where):  # type: ignore[no-untyped-def]
            raise NoState("it keeps none")

    with pytest.raises(ValueError, match="this Stuck predicts the next token but cannot decode .*: it keeps none"):
        fit(Stuck(4), tiny.text(), **QUICK)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either minutes= or steps="),
        ({"steps": 1, "minutes": 1.0}, "give either minutes= or steps="),
        (
            {"steps": 1, "out": "run", "resume": "other"},
            "resume='other': expected True or False. resume=True continues",
        ),
        ({"steps": 1, "resume": True}, "resume=True continues the run in a folder: got out=None. Give out=FOLDER"),
        ({"steps": 1, "precison": "bf16"}, "fit has no keyword 'precison'; the nearest is 'precision'"),
        (
            {"epochs": 2},
            "fit has no keyword 'epochs'; use 'steps' instead: steps = epochs .* tokens / .batch .* length",
        ),
        ({"steps": 1, "learning_rate": 0.1}, "fit has no keyword 'learning_rate'; use 'lr' instead"),
        ({"steps": 1, "accumulate": 17}, "wrong accumulate: got 17, expected at most 16, the rows of a batch"),
        ({"steps": 0}, "wrong number of steps: got 0, expected at least 1"),
        ({"steps": 1, "batch": 0}, "wrong batch: got 0, expected at least 1"),
        ({"steps": 1, "out": __file__}, "wrong out: got the file .*test_fit.py, expected a folder. Give another out="),
    ],
)
def test_arguments_without_a_meaning_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError if "no keyword" in message else ValueError, match=message):
        fit(tiny.bigram(), tiny.text(), **arguments)  # type: ignore[arg-type]


def test_metrics_of_another_program_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"loss": 3}\n')
    for options in ({}, {"resume": True}):
        with pytest.raises(ValueError, match=r"metrics.jsonl is not a record of a training.*; give another out="):
            fit(tiny.bigram(), tiny.text(), out=tmp_path, **QUICK, **options)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"loss": 3}\n'
    fit(tiny.bigram(), tiny.text(), out=tmp_path, overwrite=True, **QUICK)
    assert History.read(tmp_path).step == 2


def test_an_unknown_form_of_processes_is_refused_in_one_process_too() -> None:
    with pytest.raises(ValueError, match="parallel='fsdp' is not known; choose 'ddp' or 'shard'"):
        unwrap(fit)(tiny.bigram(), tiny.text(), steps=1, parallel="fsdp")


def test_data_that_a_model_does_not_read_is_refused() -> None:
    with pytest.raises(ValueError, match="this transformer reads pairs, but got a text; give pairs=FILE.tsv"):
        fit(transformer(d=16, depth=1, heads=2, hidden=16), tiny.text(), **QUICK)
    with pytest.raises(
        ValueError, match="a text has 256 kinds of bytes, but this gpt is made for 10; give it vocab=256"
    ):
        fit(gpt(d=8, depth=1, heads=2, vocab=10), tiny.text(), **QUICK)
    with pytest.raises(ValueError, match="a function of the step, which leaves no validation data"):
        fit(tiny.classifier(), lambda step: None, steps=1)
    with pytest.raises(ValueError, match="Batches is empty"):
        fit(tiny.classifier(), [], steps=1)


def test_float16_and_swapped_arguments_are_named() -> None:
    with pytest.raises(TrainingStopped, match="training overflows weights in float16: call model.float"):
        fit(gpt(d=8, depth=1, heads=2).half(), tiny.text(), **QUICK)
    with pytest.raises(ValueError, match=r"fit takes the model first: got TextData and then a model. Call fit\(model"):
        fit(tiny.text(), tiny.bigram(), **QUICK)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="save takes the model first"):
        kinformer.save("folder", tiny.bigram())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="fit has no keyword 'train_dataset'; use 'data' instead"):
        fit(tiny.bigram(), train_dataset=tiny.text())  # type: ignore[call-arg]


def test_a_measurement_counts_tokens_of_ids(capsys: pytest.CaptureFixture[str]) -> None:
    fit(gpt(d=8, depth=1, heads=2), torch.randint(256, (900,)), **QUICK, progress=True)
    assert "measuring on 45 tokens of validation data" in capsys.readouterr().err

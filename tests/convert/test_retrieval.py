"""The conversion `retrieval`: equal without a datastore, mixed with one, and saved with it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kinformer as kf
from kinformer.checkpoint.tokenizer import NO_SPECIAL
from kinformer.checkpoint.unknown_tokenizer import UnknownTokenizer
from kinformer.lab.data.text import TextData
from kinformer.lab.datastore.build_retrieval import build_retrieval
from kinformer.models.support.retrieval_lm import RetrievalLM

VOCAB = 13


def source(member: str = "llama", **keywords: Any) -> Any:
    """Return a small model with the facts of a training."""
    model = getattr(kf, member)(**{"d": 16, "depth": 2, "heads": 2, "vocab": VOCAB, **keywords})
    model.trained_length = 16
    return model.eval()


def text(count: int = 400) -> Tensor:
    """Return a text that repeats a few phrases, which an untrained model does not know."""
    generator = torch.Generator().manual_seed(3)
    phrases = torch.randint(VOCAB, (4, 9), generator=generator)
    return phrases[torch.randint(4, (count // 9 + 1,), generator=generator)].flatten()[:count]


def data(count: int = 400) -> TextData:
    """Return the text in two parts."""
    tokens = text(count)
    return TextData("phrases", tokens[: count * 3 // 4], tokens[count * 3 // 4 :], tokens[:0])


@pytest.mark.parametrize(("member", "keywords"), [("llama", {"tie": True}), ("gpt", {"length": 32}), ("bloom", {})])
def test_without_a_datastore_all_outputs_are_equal(member: str, keywords: dict[str, Any], float64: None) -> None:
    model = source(member, **keywords)
    converted = kf.convert(model, "retrieval")
    assert converted.report.plan.promise.length == torch.inf
    assert {fate.fate for fate in converted.report.plan.fates} == {"moved"}
    tokens = torch.randint(VOCAB, (2, 9))
    assert torch.equal(converted.logits(tokens).y, model.logits(tokens).y)
    assert not any(x.requires_grad for x in converted.parameters())


@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_predictions_are_mixed_with_the_nearest_entries(weight: float, tmp_path: Path, float64: None) -> None:
    model = source()
    tap = "1.1.input"
    kf.Datastore.build(tmp_path / "store", model, text(80), tap=tap, dtype="float32", length=16)
    options: dict[str, Any] = {"k": 5, "weight": weight, "temperature": 2.0, "tap": tap}
    converted = kf.convert(model, "knn_lm", datastore=str(tmp_path / "store"), **options)
    assert converted.report.plan.promise.length == (0 if weight else torch.inf)
    tokens = torch.randint(VOCAB, (1, 7))
    log_p = converted.logits(tokens).y
    if not weight:
        assert torch.equal(log_p, model.logits(tokens).y)
        return
    store = kf.Datastore.open(tmp_path / "store")
    keys, values = store.keys.at(torch.arange(len(store))).double(), store.values()
    ctx = kf.Context(torch.arange(7)[None]).replace(taps=(tap,))
    out = model.logits(tokens, None, ctx)
    for t in range(7):
        distances = (keys - out.taps[tap][0, t]).square().sum(-1)
        near = distances.argsort()[:5]
        shares = (-distances[near] / 2.0).softmax(0)
        p = 0.6 * out.y[0, t].softmax(-1)
        for share, token in zip(shares, values[near].tolist(), strict=True):
            p[token] += 0.4 * share
        assert torch.allclose(log_p[0, t].exp(), p, rtol=0, atol=1e-5)  # keys and distances are in float32


def test_a_built_folder_is_loaded_with_its_datastore_and_may_be_moved(tmp_path: Path) -> None:
    model = source()
    built = build_retrieval(model, data(), tmp_path / "run")
    assert built.weight > 0
    tokens = text(20)[None]
    expected = built.logits(tokens).y
    assert not torch.allclose(expected, model.logits(tokens).y.log_softmax(-1), atol=1e-2)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    loaded = kf.load(tmp_path / "moved")
    assert isinstance(loaded, RetrievalLM)
    assert torch.equal(loaded.logits(tokens).y, expected)
    kf.save(loaded, tmp_path / "copy")
    shutil.rmtree(tmp_path / "moved")
    again = kf.load(tmp_path / "copy")
    assert torch.equal(again.logits(tokens).y, expected)
    assert kf.generate(again, tokens[:, :4], 5, temperature=0).shape[-1] >= 5


def test_a_model_is_saved_twice_to_one_folder_and_refused_by_another_datastore(tmp_path: Path) -> None:
    model = source()
    built, other = (build_retrieval(model, data(count), tmp_path / str(count)) for count in (400, 300))
    for _ in range(2):
        kf.save(built, tmp_path / "copy")
    shutil.copytree(tmp_path / "400" / "datastore", tmp_path / "far" / "datastore")  # as from another disk
    kf.save(built, tmp_path / "far")
    tokens = text(20)[None]
    for name in ("copy", "far"):
        assert torch.equal(kf.load(tmp_path / name).logits(tokens).y, built.logits(tokens).y)
    with pytest.raises(FileExistsError, match="copy.datastore, which holds another datastore. Give") as error:
        kf.save(other, tmp_path / "copy")
    assert "\n" not in str(error.value)


def test_retrieval_knows_the_text_better(tmp_path: Path) -> None:
    model, both = source(), data(900)
    built = build_retrieval(model, both, tmp_path / "run")
    row = both.valid[None, :200].long()
    with torch.no_grad():
        log_p = [each.logits(row).y.log_softmax(-1)[0, :-1] for each in (model, built)]
    nll = [float(-each.gather(-1, row[0, 1:, None]).mean()) for each in log_p]
    assert nll[1] < 0.8 * nll[0]


def test_a_finished_datastore_is_used_again(tmp_path: Path) -> None:
    model = source()
    first = build_retrieval(model, data(), tmp_path / "run")
    keys = next((tmp_path / "run" / "datastore").glob("*keys*"))
    written = keys.stat().st_mtime_ns
    again = build_retrieval(model, data(), tmp_path / "run")
    assert keys.stat().st_mtime_ns == written
    assert again.member == first.member
    with pytest.raises(ValueError, match="already holds a datastore"):
        build_retrieval(model, data(300), tmp_path / "run")


def test_a_missing_and_a_foreign_datastore_are_refused(tmp_path: Path) -> None:
    model = source()
    build_retrieval(model, data(), tmp_path / "run")
    shutil.move(tmp_path / "run" / "datastore", tmp_path / "store")
    with pytest.raises(ValueError, match="there is no datastore in") as error:
        kf.load(tmp_path / "run")
    assert "\n" not in str(error.value)
    other = kf.convert(source(), "retrieval", datastore=str(tmp_path / "store"))
    with pytest.raises(ValueError, match="another model"):
        other.logits(torch.zeros(1, 3, dtype=torch.long))
    same = kf.convert(model, "retrieval", datastore=str(tmp_path / "store"), tap="0.1.input")
    with pytest.raises(ValueError, match="looks up by"):
        same.logits(torch.zeros(1, 3, dtype=torch.long))


def test_other_models_are_refused() -> None:
    for model in (kf.calm(d=16, depth=3, heads=2, vocab=VOCAB), kf.bert(d=16, depth=2, heads=2, vocab=VOCAB)):
        with pytest.raises(ValueError, match="cannot give a datastore to this"):
            kf.convert(model, "retrieval")


def test_the_facts_of_the_training_reach_the_loaded_model_inside(tmp_path: Path) -> None:
    """The datastore belongs to a tokenizer, which a folder names once."""
    model = source()
    model.tokenizer = UnknownTokenizer(NO_SPECIAL)
    model.trained_on = "phrases"
    built = build_retrieval(model, data(), tmp_path / "run")
    loaded = kf.load(tmp_path / "run")
    assert loaded.model.tokenizer.sha256 == model.tokenizer.sha256
    assert (loaded.model.trained_length, loaded.model.trained_on) == (16, "phrases")
    tokens = text(20)[None]
    assert torch.equal(loaded.logits(tokens).y, built.logits(tokens).y)

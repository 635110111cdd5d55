"""The conversion `exits`: equal without leaving, trained translators, saves, and decoding token by token."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.convert.exits import ExitsConversion
from kinformer.convert.support import exit_translators
from kinformer.decoding.consistency import use_rule
from kinformer.nn.exits.never_exit import NeverExit
from kinformer.nn.exits.tuned_lens import TunedLens

VOCAB = 13


@pytest.fixture(autouse=True)
def fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train for fewer steps, which suffice for small models."""
    monkeypatch.setattr(exit_translators, "STEPS", 60)


def skip(stage: str, fraction: float) -> None:
    """Ignore progress."""


def source(member: str = "llama", **keywords: Any) -> Any:
    """Return a model with noise on every weight, so that its layers do something."""
    model = getattr(kf, member)(**{"d": 16, "depth": 5, "heads": 2, "vocab": VOCAB, **keywords})
    with torch.no_grad():
        for x in model.parameters():
            x.add_(0.3 * torch.randn_like(x))
    return model.eval()


def text(rows: int, length: int = 12) -> Tensor:
    """Return random rows with padding at the end of the first one."""
    tokens = torch.randint(VOCAB, (rows, length))
    tokens[0, -3:] = -1
    return tokens


MEMBERS = [("llama", {"tie": True}), ("llama", {}), ("gpt", {"length": 16}), ("bloom", {}), ("transformer_xl", {})]


@pytest.mark.parametrize(("member", "keywords"), MEMBERS)
@pytest.mark.parametrize("confidence", ["softmax_response", "saturation"])
def test_without_leaving_all_outputs_are_equal(
    member: str, keywords: dict[str, Any], confidence: str, float64: None
) -> None:
    model = source(member, **keywords)
    converted = kf.convert(model, "exits", threshold=1.0, confidence=confidence, every=1)
    assert converted.report.plan.promise.length == torch.inf
    tokens = text(3)
    out = converted.logits(tokens)
    layers = len(model.body.layers)  # bloom has a norm below its five blocks
    assert torch.equal(out.aux["exit"], layers * (tokens >= 0).double())
    assert torch.allclose(out.y[tokens >= 0], model.logits(tokens).y[tokens >= 0], rtol=0, atol=1e-12)


def test_every_weight_of_the_source_is_kept(float64: None) -> None:
    model = source(tie=True)
    converted = kf.convert(model, "calm")
    fates = converted.report.plan.fates
    assert {fate.fate for fate in fates} == {"copied", "moved", "new"}
    kept = sum(fate.parameters for fate in fates if fate.fate != "new")
    assert kept == sum(x.numel() for x in model.parameters())
    assert converted.head.weight is converted.embedding.weight
    trainable = {name for name, x in converted.named_parameters() if x.requires_grad}
    assert trainable == {
        f"body.{part}.map.{x}"
        for part in ("heads.1.translator", "shortcuts.2", "shortcuts.3")
        for x in ("weight", "bias")
    }


def test_exits_stand_where_the_options_say() -> None:
    for options, numbers in (({}, {2}), ({"first": 1, "every": 1}, {1, 2, 3, 4}), ({"first": 2, "every": 2}, {2, 4})):
        converted = kf.convert(source(), "exits", **options)
        lenses = {n + 1 for n, head in enumerate(converted.body.heads) if isinstance(head, TunedLens)}
        assert lenses == numbers
        out = kf.convert(source(), "exits", threshold=0.0, **options).logits(text(2, 8))
        assert set(out.aux["exit"].unique().tolist()) <= {0.0, min(numbers)}


def test_untrained_exits_are_the_logit_lens(float64: None) -> None:
    model = source()
    converted = kf.convert(model, "exits", threshold=0.0, first=3)
    tokens = torch.randint(VOCAB, (2, 9))
    x = model.embedding(tokens)
    for layer in model.body.layers[:3]:
        x = layer(x, None, kf.Context(torch.arange(9).expand(2, 9))).y
    assert torch.allclose(converted.logits(tokens).y, model.head(model.body.norm(x)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rank", [None, 3])
def test_saving_keeps_the_exits(rank: int | None, tmp_path: Path) -> None:
    model = source(tie=True)
    converted = kf.convert(model, "exits", rank=rank, first=1, every=2, threshold=0.4)
    converted_fit(model, converted, first=1, every=2, rank=rank)
    tokens = text(3)
    kf.save(converted, tmp_path)
    loaded = kf.load(tmp_path)
    assert type(loaded) is type(converted)
    assert loaded.member == converted.member
    out, expected = loaded.logits(tokens), converted.logits(tokens)
    assert torch.equal(out.y, expected.y)
    assert torch.equal(out.aux["exit"], expected.aux["exit"])
    assert len(expected.aux["exit"][tokens >= 0].unique()) > 1


def converted_fit(model: Any, converted: Any, **options: Any) -> None:
    """Fit the translators on random rows."""
    ExitsConversion(**options).fit(model, converted, text(40, 16), skip)


def divergences(model: Any, converted: Any, tokens: Tensor) -> list[float]:
    """Return KL(source | exit) of each exit with a translator, by a loop over tokens."""
    with torch.no_grad(), use_rule(converted.exits, NeverExit()):
        states = converted.every_exit(F.pad(tokens, (0, 1), value=0)).states
        log_p = model.logits(tokens).y.log_softmax(-1)
        result = []
        for head, h in zip(converted.body.heads, states, strict=True):
            if not isinstance(head, TunedLens):
                continue
            log_q = converted.head(head(h)).log_softmax(-1)
            each = [
                sum(float(p.exp() * (p - q)) for p, q in zip(log_p[b, t], log_q[b, t], strict=True))
                for b in range(len(tokens))
                for t in range(tokens.shape[1])
                if tokens[b, t] >= 0
            ]
            result.append(sum(each) / len(each))
    return result


@pytest.mark.parametrize("rank", [None, 6])
@pytest.mark.parametrize("sampled", [False, True])
def test_fit_lowers_the_divergence_and_changes_only_translators(
    rank: int | None, sampled: bool, float64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sampled:
        monkeypatch.setattr(exit_translators, "LIKELY", 5)
        monkeypatch.setattr(exit_translators, "SAMPLED", 4)
    model = source()
    converted = kf.convert(model, "exits", first=1, every=2, rank=rank)
    other = text(6)
    before, weights = divergences(model, converted, other), {n: x.clone() for n, x in converted.state_dict().items()}
    old = {n: x.clone() for n, x in model.state_dict().items()}
    converted_fit(model, converted, first=1, every=2, rank=rank)
    after = divergences(model, converted, other)
    assert all(b < 0.8 * a for a, b in zip(before, after, strict=True))
    changed = {n for n, x in converted.state_dict().items() if not torch.equal(x, weights[n])}
    parts = ("map.weight", "map.bias", *(() if rank is None else ("low.weight",)))
    places = [*(f"heads.{n}.translator" for n in (0, 2)), *(f"shortcuts.{n}" for n in (1, 2, 3))]
    assert changed == {f"body.{place}.{part}" for place in places for part in parts}
    assert all(torch.equal(x, old[n]) for n, x in model.state_dict().items())


@pytest.mark.parametrize("rank", [None, 3])
def test_fit_draws_no_global_random_numbers_and_trains_without_an_outer_gradient(rank: int | None) -> None:
    results = []
    for mode in (torch.enable_grad, torch.no_grad):
        torch.manual_seed(1)
        model = source()
        converted, rows = kf.convert(model, "exits", rank=rank), text(6, 16)
        random_state = torch.get_rng_state()
        with mode():
            ExitsConversion(rank=rank).fit(model, converted, rows, skip)
        assert torch.equal(torch.get_rng_state(), random_state)
        results.append(converted.state_dict())
    assert all(torch.equal(tensor, results[1][name]) for name, tensor in results[0].items())


def test_translators_of_low_rank_start_with_the_smallest_error_of_the_logits(
    float64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is the singular values that are left out of the map to logits (Eckart and Young)."""
    monkeypatch.setattr(exit_translators, "_train", lambda *arguments: None)
    model, rank = source(), 3
    with torch.no_grad():
        model.head.weight *= torch.logspace(1, -1, 16)  # the logits depend on some directions far more than on others
    rows, maps = text(40, 16), []
    for each in (None, rank):
        converted = kf.convert(model, "exits", rank=each)
        ExitsConversion(rank=each).fit(model, converted, rows, skip)
        translator = converted.body.heads[1].translator
        maps.append(translator.map.weight if each is None else translator.map.weight @ translator.low.weight)
    head, full, low = model.head.weight, *maps
    least = torch.linalg.svdvals(head @ full)[rank:].square().sum()
    assert least > 1e-3 * (head @ full).square().sum()
    torch.testing.assert_close((head @ (full - low)).square().sum(), least, rtol=1e-3, atol=0)


def test_sampled_vocabulary_is_unbiased(float64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_translators, "LIKELY", 5)
    monkeypatch.setattr(exit_translators, "SAMPLED", 4)
    weight, bias, last = torch.randn(VOCAB, 3), torch.randn(VOCAB), torch.randn(50, 3)
    choices = exit_translators._vocabulary(last, weight, bias, torch.Generator().manual_seed(1))
    logits = torch.randn(VOCAB)
    sums = []
    for _ in range(4000):
        tokens, extra = next(choices)
        assert len(tokens.unique()) == 9
        sums.append(float((logits[tokens] + extra).exp().sum()))
    exact = float(logits.exp().sum())
    assert abs(sum(sums) / len(sums) - exact) < 0.02 * exact


@pytest.mark.parametrize("confidence", ["softmax_response", "saturation"])
def test_tokens_one_by_one_leave_as_in_the_whole_row(confidence: str, float64: None) -> None:
    model = source()
    threshold = {"softmax_response": 0.5, "saturation": 0.8}[confidence]
    converted = kf.convert(model, "exits", first=1, every=2, threshold=threshold, confidence=confidence)
    converted_fit(model, converted, first=1, every=2)
    tokens = torch.randint(VOCAB, (2, 10))
    whole, state = converted.logits(tokens), converted.start(2, 10)
    for t in range(10):
        out = converted.logits(tokens[:, t : t + 1], state)
        state = out.state
        assert torch.equal(out.aux["exit"][:, 0], whole.aux["exit"][:, t])
        assert torch.allclose(out.y[:, 0], whole.y[:, t], rtol=0, atol=1e-10)
    assert len(whole.aux["exit"].unique()) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first": 5}, "wrong first exit: got first=5, expected a layer from 1 to 4"),
        ({"every": 0}, "every"),
        ({"threshold": 1.5}, "threshold"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        kf.convert(source(), "exits", **options)
    assert "\n" not in str(error.value)


def test_other_models_are_refused() -> None:
    for model in (kf.calm(d=16, depth=3, heads=2, vocab=VOCAB), kf.bert(d=16, depth=2, heads=2, vocab=VOCAB)):
        with pytest.raises(ValueError, match="cannot give exits to this"):
            kf.convert(model, "exits")

"""Reading ahead is found at the sizes of the training, whatever the weights start as, and in train mode too."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.model import Predictor
from kinformer.core.patterns.causal import Causal
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.fit import fit
from kinformer.lab.train.probe_model import probe_of, seeded
from kinformer.lab.train.reads_ahead import SHORT, leaks, reads_ahead
from kinformer.members.reformer import reformer
from kinformer.members.routing_transformer import routing_transformer
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from tests.lab.train import tiny

QUICK = {"steps": 1, "batch": 2}
SMALL = {"d": 16, "depth": 2, "heads": 2}


def zero_head(pattern: Any) -> LM:
    model = LM(256, 16, PostNorm(Attention(QKV(16, 2), Softmax(pattern)), MLP(16)), tie=False)
    nn.init.zeros_(model.head.weight)
    return model


class Taps(Layer):
    """A convolution over the tokens before, at and after each, which starts as the identity."""

    def __init__(self, ahead: int) -> None:
        super().__init__()
        self.d, self.ahead = 16, ahead
        self.conv = nn.Conv1d(16, 16, 3, bias=False)
        nn.init.dirac_(self.conv.weight)  # the middle tap alone is not 0

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        padded = nn.functional.pad(x.transpose(1, 2), (2 - self.ahead, self.ahead))
        return Out(self.conv(padded).transpose(1, 2), state)


@pytest.mark.parametrize("make", [lambda: zero_head(Band(4)), lambda: LM(256, 16, Taps(1))])
def test_a_start_of_zeros_hides_no_reading_ahead(make: Callable[[], LM], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this LM reads ahead"):
        fit(make(), tiny.text(), length=16, **QUICK)


@pytest.mark.parametrize("make", [lambda: zero_head(Causal() & Band(4)), lambda: LM(256, 16, Taps(0))])
def test_a_start_of_zeros_that_reads_back_alone_is_trained(make: Callable[[], LM]) -> None:
    assert fit(make(), tiny.text(), length=16, **QUICK).step == 1


def redrawn(model: Predictor, length: int) -> bool:
    """Brute force on the weights as they are: are later tokens, drawn again after a position, heard before it?"""
    model.eval()
    row, other = (torch.randint(model.vocab, (1, length), generator=torch.manual_seed(n)) for n in (5, 6))
    with torch.no_grad():
        y = model.logits(row).y
        for t in range(1, length, 3):
            changed = model.logits(torch.cat([row[:, :t], other[:, t:]], 1)).y
            if not torch.allclose(changed[:, :t], y[:, :t], atol=1e-4):
                return True
    return False


@pytest.mark.parametrize(
    ("make", "clean", "first"),
    [
        (lambda: reformer(**SMALL, chunk=16), 24, 64),
        (lambda: reformer(**SMALL, chunk=32), 64, 128),
        (lambda: routing_transformer(**SMALL, window=32), 32, 64),
    ],
)
def test_what_reads_ahead_in_long_rows_alone_is_warned_of(make: Callable[[], Any], clean: int, first: int) -> None:
    torch.manual_seed(0)
    model = make()
    assert (redrawn(model, clean), redrawn(model, first)) == (False, True)
    with warnings.catch_warnings(action="error"):
        fit(make(), tiny.text(), length=clean, **QUICK)
        evaluate(model, tiny.text().valid, clean)
    with pytest.warns(UserWarning, match="reads ahead, as its part declares") as warned:
        fit(make(), tiny.text(), length=first, **QUICK)
    assert len(warned) == 1
    with pytest.warns(UserWarning, match="reads ahead, as its part declares") as warned:
        evaluate(model, tiny.text().valid, first)
    assert len(warned) == 1


class Hearing(tiny.Bigram):
    """It adds what `listen` makes of the row to what it says."""

    listen: Callable[[Tensor], Tensor] = staticmethod(lambda y: y.mean(1, keepdim=True))

    def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None, *, last: bool = False) -> Out:
        out = super().logits(tokens, state)
        return out._replace(y=out.y + self.listen(out.y))


def test_a_long_row_costs_a_handful_of_forwards() -> None:
    rows: list[tuple[int, ...]] = []

    class Counted(tiny.Bigram):
        def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None, *, last: bool = False) -> Out:
            rows.append(tuple(tokens.shape))
            return super().logits(tokens, state)

    assert not leaks(Counted(4), 3000)
    long = [shape for shape in rows if shape[1] == 3000]
    assert long == [(1, 3000)] * 8  # one after the other: the row, six cuts of it, and the row in train mode
    assert sum(count * length for count, length in rows if length < 3000) < 1000


def test_measuring_warns_of_what_declares_nothing() -> None:
    with pytest.warns(UserWarning, match="this Hearing reads ahead: got an output that changes with later tokens"):
        evaluate(Hearing(4), tiny.text().valid, 16)


class InTraining(Hearing):
    """It hears in train mode alone."""

    def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None, *, last: bool = False) -> Out:
        return super().logits(tokens, state) if self.training else tiny.Bigram.logits(self, tokens, state)


class Noisy(InTraining):
    listen = staticmethod(torch.rand_like)


class Unseeded(InTraining):
    listen = staticmethod(lambda y: torch.rand(y.shape, generator=torch.Generator().manual_seed(torch.seed() % 2**31)))


class Dropping(InTraining):
    listen = staticmethod(lambda y: nn.functional.dropout(y, 0.5))


def test_train_mode_is_tried_too_and_chance_is_no_reading_ahead() -> None:
    with pytest.raises(ValueError, match="this InTraining reads ahead"):
        fit(InTraining(4), tiny.text(), length=16, **QUICK)
    assert not leaks(InTraining(4), 16, training=False)
    for model in (Noisy(4), Unseeded(4), Dropping(4)):
        assert fit(model, tiny.text(), length=16, **QUICK).step == 1


def test_the_model_and_the_random_numbers_stay_as_they_are() -> None:
    model = zero_head(Causal())
    model.kept = model.logits(torch.zeros(1, 3, dtype=torch.long)).y  # with a history, which no deep copy takes
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    assert reads_ahead(model, 40) == "" and torch.equal(torch.get_rng_state(), random)
    after = model.state_dict()
    assert all(
        torch.equal(tensor, after[name]) and after[name].dtype == torch.float32 for name, tensor in before.items()
    )


def test_a_model_that_cannot_be_copied_is_refused_in_a_line() -> None:
    model = tiny.bigram()
    model.file = open(__file__)  # noqa: SIM115
    with model.file, pytest.raises(ValueError, match="cannot copy this .* to test it: .*. Define __deepcopy__"):
        fit(model, tiny.text(), length=16, **QUICK)


class Small(Hearing):
    """It hears what comes, and longer rows than `fits` take more memory than there is."""

    fits = SHORT

    def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None, *, last: bool = False) -> Out:
        if tokens.shape[1] > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().logits(tokens, state)


@pytest.mark.parametrize("fits", [SHORT - 1, SHORT // 2, 3])
@pytest.mark.parametrize("length", [SHORT // 2, SHORT, 100])
def test_a_row_that_takes_too_much_memory_is_halved_until_it_fits(length: int, fits: int) -> None:
    model = Small(4)
    model.fits = fits
    assert leaks(model, length)


def test_a_model_without_memory_for_its_copy_is_not_tried_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(model: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(copy, "deepcopy", full)
    with pytest.warns(UserWarning, match="cannot test whether this Small reads ahead: memory is too small") as warned:
        assert not leaks(Small(4), 16)
    assert len(warned) == 1


class Logarithm(Hearing):
    """Noise moves a few of its entries below 0, whose logarithm is no number."""

    def __init__(self, d: int, hears: bool) -> None:
        super().__init__(d)
        self.share, self.hears = nn.Parameter(torch.linspace(1e-6, 1, 64)), hears

    def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None, *, last: bool = False) -> Out:
        out = (super() if self.hears else super(Hearing, self)).logits(tokens, state)
        return out._replace(y=out.y * self.share.log().sum())


@pytest.mark.parametrize("hears", [True, False])
def test_a_model_that_noise_makes_no_number_is_tried_as_it_is_in_one_copy(
    hears: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, deepcopy = list[Any](), copy.deepcopy

    def counted(value: Any, *arguments: Any) -> Any:
        copies.extend([value] * isinstance(value, Logarithm))
        return deepcopy(value, *arguments)

    monkeypatch.setattr(copy, "deepcopy", counted)
    model = Logarithm(4, hears)
    with seeded(model), torch.no_grad():
        assert probe_of(model).eval().logits(torch.zeros(1, 2, dtype=torch.long)).y.isnan().any()
    copies.clear()
    assert leaks(model, 40) == hears and copies == [model]


def test_a_low_precision_inside_is_no_reading_ahead() -> None:
    """Its outputs change by rounding of float32 where the tokens after them change: by a scan from both sides."""

    class Rounded(tiny.Bigram):
        def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None, *, last: bool = False) -> Out:
            out = super().logits(tokens, state)
            sums = out.y.float().cumsum(1)
            after = out.y.float().sum(1, keepdim=True) - sums
            return out._replace(y=((sums + after) - after).to(out.y.dtype))

    assert not leaks(Rounded(4), 40)

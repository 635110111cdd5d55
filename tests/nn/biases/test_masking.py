"""Any masking function: multiply and renormalise; plain attention, windows and adaptive spans are instances of it."""

import inspect
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kinformer.attend import attend
from kinformer.core.bias import Bias, Plus
from kinformer.core.pattern import Heads
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.biases.adaptive_span import AdaptiveSpan
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.biases.masking import FunctionMasking, Masking, StepMasking, parse_masking
from kinformer.nn.patterns.band import Band

pytestmark = pytest.mark.usefixtures("float64")
POS = torch.tensor([[[0, 1, 2, 3, 4, 5, 6, 7, 8]], [[-1, -1, 0, 1, 2, 3, 4, 5, 6]]])
FUNCTIONS: dict[str, Callable] = {
    "power": lambda x: 1 / (1 + x),
    "gauss": lambda x: torch.exp(-(x**2) / 8),
    "cut": lambda x: (1 - x / 4).clamp_min(0),
    "comb": lambda x: (x % 3 == 0).to(x.dtype),
}


def inputs() -> Tensor:
    return torch.randn(3, 2, 2, 9, 4)


def read(bias: Bias | None, q: Tensor, k: Tensor, v: Tensor, pattern=Causal()) -> Tensor:  # noqa: B008
    return attend(q, k, v, q_pos=POS, k_pos=POS, pattern=pattern, bias=bias).y


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("nearest", "itself"), [(0, True), (0, False), (1, False)])
def test_it_is_the_equation(name: str, nearest: int, itself: bool) -> None:
    """m(x) exp(s) over its sum, an encoder's x = |i - j| too, one pair at a time."""
    m, (q, k, v) = FUNCTIONS[name], inputs()
    y = read(FunctionMasking(m, nearest=nearest, itself=itself), q, k, v, Full())
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        total, want = 0.0, torch.zeros(4)
        for j in range(9) if POS[b, 0, i] >= 0 else ():
            x = abs(int(POS[b, 0, i] - POS[b, 0, j]))
            if POS[b, 0, j] < 0 or (x == 0 and not itself):
                continue
            # the code's x of the query itself would be -1
            weight = float(m(torch.tensor(float(x - nearest)))) * math.exp(q[b, h, i] @ k[b, h, j] / 2)
            total, want = total + weight, want + weight * v[b, h, j]
        torch.testing.assert_close(y[b, h, i], want / (total or 1.0), rtol=0, atol=1e-12)


def test_its_instances() -> None:
    """m = 1: plain attention. A step: a window for each head. A ramp: an adaptive span."""
    q, k, v = inputs()
    torch.testing.assert_close(read(FunctionMasking(torch.ones_like), q, k, v), read(None, q, k, v), rtol=0, atol=1e-14)
    windows = read(None, q, k, v, Heads(Causal() & Band(1), Causal() & Band(4)))
    torch.testing.assert_close(read(StepMasking((1, 4)), q, k, v), windows, rtol=0, atol=1e-14)
    span = AdaptiveSpan(2, 8, ramp=3.0, start=2.0)
    ramp = FunctionMasking(lambda x: ((3 + 2 - x) / 3).clamp(0, 1))
    torch.testing.assert_close(read(span, q, k, v), read(ramp, q, k, v), rtol=0, atol=1e-14)


def test_a_function_that_learns_has_its_gradient_and_none_is_nan() -> None:
    rate = torch.nn.Parameter(torch.tensor(0.4))
    q, k, v = inputs()

    def total(rate: Tensor) -> Tensor:
        return read(FunctionMasking(lambda x: (1 - rate * x).clamp_min(0)), q, k, v).square().sum()

    assert torch.autograd.gradcheck(total, (rate,))
    whole = torch.tensor(0.5, requires_grad=True)  # m is exactly 0 at x = 2
    total(whole).backward()
    assert whole.grad is not None and whole.grad.isfinite()


def test_masks_join_other_biases() -> None:
    q, k, v = inputs()
    both = read(Plus(ALiBi(2), FunctionMasking(FUNCTIONS["cut"])), q, k, v)
    torch.testing.assert_close(
        both, read(Plus(FunctionMasking(FUNCTIONS["cut"]), ALiBi(2)), q, k, v), rtol=0, atol=1e-13
    )
    assert not torch.allclose(both, read(ALiBi(2), q, k, v))


@pytest.mark.parametrize(
    ("mask", "reach"),
    [
        (FunctionMasking(torch.exp), math.inf),
        (FunctionMasking(torch.exp, reach=7), 7),
        (StepMasking((2, 5)), 5),
        (StepMasking((2,), nearest=1), 3),
    ],
)
def test_what_it_says_of_its_reach(mask: Masking, reach: float) -> None:
    assert mask.reach == reach


def test_what_makes_no_mask_is_refused() -> None:
    with pytest.raises(ValueError, match=r"m=0.5 is not callable\. Pass a function of distances"):
        inspect.unwrap(FunctionMasking.__init__)(FunctionMasking.__new__(FunctionMasking), 0.5)
    with pytest.raises(ValueError, match=r"windows\[1\]=-1: give a whole number of at least 0"):
        StepMasking((2, -1))
    with pytest.raises(ValueError, match="got StepMasking of 3 windows in a layer of 2 heads"):
        read(StepMasking((1, 2, 3)), *inputs())


@pytest.mark.parametrize(
    ("text", "name"),
    [("1 / (1 + x)", "power"), ("exp(-x ** 2 / 8)", "gauss"), ("max(1 - x / 4, 0)", "cut"), ("(x < 4) * 0.5", "half")],
)
def test_a_text_spells_a_masking_function(text: str, name: str) -> None:
    m = {**FUNCTIONS, "half": lambda x: 0.5 * (x < 4)}[name]
    q, k, v = inputs()
    assert parse_masking(text, 2, 64).reach == 64
    torch.testing.assert_close(read(parse_masking(text, 2, 64), q, k, v), read(FunctionMasking(m), q, k, v))


def test_a_text_spells_windows_of_heads() -> None:
    q, k, v = inputs()
    torch.testing.assert_close(read(parse_masking("Step(1, 4)", 2, 3), q, k, v), read(StepMasking((1, 3)), q, k, v))
    for text, says in WRONG.items():
        with pytest.raises(ValueError, match=says) as error:
            parse_masking(text, 2, 8)
        assert "\n" not in str(error.value)


WRONG = {
    "Step(1)": "has 1 windows for 2 heads",
    "1 +": "does not parse",
    "sin(x)": "is not a function of x. Write",
    "x.real": "is not a function of x",
    "__import__('os').getcwd()": "is not a function of x",
    "y": "'y' is not a function of x",
    "max(x)": "is not a function of x",
}

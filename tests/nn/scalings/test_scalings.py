"""Scaled rotary positions: loops over pairs from the papers, transformers in float64, and what stays unchanged."""

import cmath
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kinformer.core.named_part import format_part
from kinformer.core.rotary_scaling import RotaryScaling, scaling_named
from kinformer.nn.positions.rotary import Pairs, Rotary
from kinformer.nn.positions.sinusoidal import angular
from kinformer.nn.scalings.llama3 import Llama3Scaling
from kinformer.nn.scalings.ntk import NTKAware
from kinformer.nn.scalings.pi import PositionInterpolation
from kinformer.nn.scalings.yarn import YaRN

WIDTH, BASE, LENGTH = 64, 500000.0, 8192


def interpolated(n: int, factor: float) -> float:
    """Position p turns as position p / factor did."""
    return float(BASE ** (-2 * n / WIDTH)) / factor


def with_larger_base(n: int, factor: float) -> float:
    """Definition 1 of the YaRN paper: b' = b s^(|D| / (|D| - 2))."""
    return float((BASE * factor ** (WIDTH / (WIDTH - 2))) ** (-2 * n / WIDTH))


def by_ramp_over_pairs(n: int, factor: float, fast: float, slow: float) -> float:
    """The pair at which a wave has r periods in the length, found by bisection, is an end of the ramp."""

    def place(turns: float) -> float:
        low, high = -500.0, 500.0
        while high - low > 1e-12:
            middle = (low + high) / 2
            wave = 2 * math.pi * BASE ** (2 * middle / WIDTH)
            low, high = (middle, high) if LENGTH / wave > turns else (low, middle)
        return low

    first, last = math.floor(place(fast)), math.ceil(place(slow))
    share = 0.0 if n < first else 1.0 if n > last else (n - first) / (last - first)
    plain = float(BASE ** (-2 * n / WIDTH))
    return (1 - share) * plain + share * plain / factor


def by_wavelength(n: int, factor: float, low: float, high: float) -> float:
    """Llama 3.1: waves shorter than length / high stay, waves longer than length / low are stretched."""
    plain = float(BASE ** (-2 * n / WIDTH))
    wave = 2 * math.pi / plain
    if wave < LENGTH / high:
        return plain
    if wave > LENGTH / low:
        return plain / factor
    smooth = (LENGTH / wave - low) / (high - low)
    return (1 - smooth) * plain / factor + smooth * plain


LOOPS: dict[str, tuple[RotaryScaling, Callable[[int], float]]] = {
    "pi": (PositionInterpolation(4.0), lambda n: interpolated(n, 4.0)),
    "ntk": (NTKAware(4.0), lambda n: with_larger_base(n, 4.0)),
    "yarn": (YaRN(4.0, LENGTH), lambda n: by_ramp_over_pairs(n, 4.0, 32.0, 1.0)),
    "yarn, other ends": (YaRN(8.0, LENGTH, 20.0, 3.0), lambda n: by_ramp_over_pairs(n, 8.0, 20.0, 3.0)),
    "llama3": (Llama3Scaling(8.0, length=LENGTH), lambda n: by_wavelength(n, 8.0, 1.0, 4.0)),
}
TYPES: dict[str, tuple[RotaryScaling, dict[str, Any]]] = {
    "linear": (PositionInterpolation(3.0), {"factor": 3.0}),
    "yarn": (YaRN(4.0, LENGTH), {"factor": 4.0}),
    "yarn, all numbers": (
        YaRN(16.0, LENGTH, 20.0, 2.0, 1.7, False),
        {"factor": 16.0, "beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.7, "truncate": False},
    ),
    "yarn, short length": (YaRN(4.0, 6), {"factor": 4.0, "original_max_position_embeddings": 6}),
    "llama3": (Llama3Scaling(32.0, length=LENGTH), {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    "llama3, other ends": (
        Llama3Scaling(5.0, 2.0, 9.0, LENGTH),
        {"factor": 5.0, "low_freq_factor": 2.0, "high_freq_factor": 9.0},
    ),
}


def scaled(scaling: RotaryScaling, width: int = WIDTH) -> Tensor:
    return scaling.scale(angular(width, torch.float64, torch.device("cpu"), BASE), BASE)


@pytest.mark.parametrize("case", LOOPS)
def test_frequencies_equal_a_loop_over_pairs(case: str) -> None:
    scaling, loop = LOOPS[case]
    want = torch.tensor([loop(n) for n in range(WIDTH // 2)], dtype=torch.float64)
    assert torch.allclose(scaled(scaling), want, rtol=1e-12, atol=0)
    plain = torch.tensor([BASE ** (-2 * n / WIDTH) for n in range(WIDTH // 2)], dtype=torch.float64)
    assert not torch.allclose(want, plain, rtol=1e-3, atol=0)


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("case", TYPES)
def test_frequencies_equal_those_of_transformers(case: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    scaling, keys = TYPES[case]
    rope_type = case.partition(",")[0]
    length = {} if rope_type == "linear" else {"original_max_position_embeddings": LENGTH}
    parameters = {"rope_type": rope_type, "rope_theta": BASE, "partial_rotary_factor": share, **length, **keys}
    config = transformers.LlamaConfig(head_dim=WIDTH, max_position_embeddings=131072, rope_parameters=parameters)
    with monkeypatch.context() as patch:  # it computes in float32 by name
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch, "float32", torch.float64)
        want, attention = ROPE_INIT_FUNCTIONS[rope_type](config)
    assert want.dtype == torch.float64
    assert torch.allclose(scaled(scaling, int(WIDTH * share)), want, rtol=1e-12, atol=0)
    assert scaling.attention_scaling == pytest.approx(attention, rel=1e-15)


@pytest.mark.parametrize("pairs", ["interleaved", "half"])
@pytest.mark.parametrize("case", LOOPS)
def test_rotary_turns_by_the_scaled_angles(case: str, pairs: Pairs, float64: None) -> None:
    """Each pair is a complex number times m exp(i p w'_n); m is the attention factor."""
    scaling, loop = LOOPS[case]
    x, positions = torch.randn(1, 2, 3, WIDTH), [0, 7, 30000]
    want = torch.empty_like(x)
    for h, (t, pos), n in ((h, tp, n) for h in range(2) for tp in enumerate(positions) for n in range(WIDTH // 2)):
        real, imaginary = (2 * n, 2 * n + 1) if pairs == "interleaved" else (n, n + WIDTH // 2)
        z = complex(x[0, h, t, real], x[0, h, t, imaginary]) * cmath.exp(1j * pos * loop(n))
        z *= 0.1 * math.log(scaling.factor) + 1 if isinstance(scaling, YaRN) else 1
        want[0, h, t, real], want[0, h, t, imaginary] = z.real, z.imag
    ours = Rotary(WIDTH, base=BASE, pairs=pairs, scaling=scaling)(x, torch.tensor([positions]))
    assert torch.allclose(ours, want, atol=1e-9)


@pytest.mark.parametrize("turned", [8, 2, 0])
@pytest.mark.parametrize(
    "scaling", [PositionInterpolation(1.0), NTKAware(1.0), YaRN(1.0, 50), Llama3Scaling(1.0, length=50)]
)
def test_factor_1_changes_no_bit(scaling: RotaryScaling, turned: int, float64: None) -> None:
    x, pos = torch.randn(2, 3, 40, 8), torch.arange(40).expand(2, 40)
    assert torch.equal(Rotary(8, turned=turned, scaling=scaling)(x, pos), Rotary(8, turned=turned)(x, pos))


def test_only_ntk_leaves_the_fastest_pair_and_slows_the_slowest_by_the_factor() -> None:
    plain, ours = angular(WIDTH, torch.float64, torch.device("cpu"), BASE), scaled(NTKAware(4.0))
    ratio = plain / ours
    assert ratio[0] == 1 and float(ratio[-1]) == pytest.approx(4, rel=1e-12) and bool((ratio.diff() > 0).all())


@pytest.mark.parametrize(
    "scaling",
    [PositionInterpolation(2.5), NTKAware(8), YaRN(4, 4096), YaRN(4, 9, 8, 2, 1.5, False), Llama3Scaling(length=8192)],
)
def test_a_text_gives_the_same_scaling(scaling: RotaryScaling) -> None:
    assert scaling_named(format_part(scaling)) == scaling
    assert scaling_named(None) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yarm", "there is no rotary scaling 'yarm'; the nearest is 'yarn'; choose llama3, ntk, pi, yarn"),
        ("dynamic", "there is no rotary scaling 'dynamic'; choose llama3, ntk, pi, yarn"),
        ("yarn:factr=2", "'yarn:factr=2' is not a rotary scaling: the rotary scaling 'YaRN' has no keyword 'factr'"),
        ("yarn:factor=4", "YaRN failed: got no length, expected the longest row of the training. Give length="),
        ("llama3", "Llama3Scaling failed: got no length"),
        ("yarn:length=0", "length=0: give a whole number of at least 1"),
        ("pi:factor=0.5", "factor=0.5: give a number from 1 up"),
        ("pi:factor=inf", "factor=inf: give a number from 1 up"),
        ("ntk:factor=-2", "factor=-2.0: give a number"),
        ("yarn:length=9,beta_fast=1,beta_slow=2", "beta_fast=1.0: give a number from 2"),
        ("llama3:length=9,low_freq_factor=4", "high_freq_factor=4.0: give a number above 4"),
    ],
)
def test_what_is_no_scaling_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        scaling_named(text)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_yarn_needs_pairs_that_turn_differently() -> None:
    with pytest.raises(
        ValueError, match=r"YaRN failed: got base=1, expected a larger base\. Use PositionInterpolation"
    ):
        Rotary(8, base=1, scaling=YaRN(2, 9))(torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, dtype=torch.long))


def test_rotary_refuses_a_text_as_its_scaling() -> None:
    with pytest.raises(Exception, match="scaling"):
        Rotary(8, scaling="yarn:factor=4,length=9")  # type: ignore[arg-type]

"""Nystromformer: the lowest attention through landmarks by hand, fewer iterations, and what its keywords reach."""

from typing import Any

import pytest
import torch
from torch import nn

import kinformer as kf
from kinformer.core.mechanism import NoState
from kinformer.nn.mechanisms.nystrom import Nystrom
from kinformer.nn.mechanisms.nystrom_published import PublishedNystrom
from tests.members.probes import LENGTH, Heads, check_lowest, softmax

pytestmark = pytest.mark.usefixtures("float64")

SMALL: dict[str, Any] = {"d": 16, "heads": 2, "depth": 2, "vocab": 11, "length": 20}
LANDMARKS = 4


def mechanisms(model: nn.Module) -> list[Nystrom]:
    return [part for part in model.modules() if isinstance(part, Nystrom)]


def by_hand(heads: Heads, h: int) -> torch.Tensor:
    """softmax(Q K~^T) Z softmax(Q~ K^T) V + conv(V), Z after 6 iterations from A^T / (|A|_1 |A|_inf)."""
    q, k, v = (x[:, h] for x in (heads.q / 8**0.25, heads.k / 8**0.25, heads.v))
    segments = [[t for t in range(LENGTH) if t * LANDMARKS // LENGTH == n] for n in range(LANDMARKS)]
    q_mean, k_mean = (torch.stack([x[at].mean(0) for at in segments]) for x in (q, k))
    a, eye = softmax(q_mean @ k_mean.T), torch.eye(LANDMARKS)
    z = a.T / (a.sum(0).max() * a.sum(1).max())
    for _ in range(6):
        z = z / 4 @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z)))
    y = softmax(q @ k_mean.T) @ z @ softmax(q_mean @ k.T) @ v
    for i, n in ((i, n) for i in range(LENGTH) for n in range(-2, 3) if 0 <= i + n < LENGTH):
        y[i] += heads.layer.mechanism.skip.weight[h, n + 2] * v[i + n]
    return y


def test_tokens_read_each_other_through_landmarks_and_a_convolution() -> None:
    check_lowest(kf.nystromformer(**SMALL, landmarks=LANDMARKS, conv=5), by_hand)


@pytest.mark.parametrize("fault", [{"iterations": 5}, {"landmarks": 3}])
def test_another_number_of_iterations_or_landmarks_is_noticed(fault: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        check_lowest(kf.nystromformer(**{**SMALL, "landmarks": LANDMARKS, "conv": 5, **fault}), by_hand)


def test_keywords_reach_the_parts() -> None:
    parts = mechanisms(kf.nystromformer(landmarks=5, conv=7, iterations=3, norms="batch", **SMALL))
    assert len(parts) == 2 and {type(part) for part in parts} == {Nystrom}
    for part in parts:
        assert (part.landmarks, part.iterations, part.norms, *part.skip.weight.shape) == (5, 3, "batch", 2, 7)
    assert all(part.skip is None for part in mechanisms(kf.nystromformer(conv=None, **SMALL)))
    for norms, expected in ((None, "batch"), ("head", "head")):
        published = mechanisms(kf.nystromformer(form="published", norms=norms, **SMALL))
        assert [(type(part), part.norms) for part in published] == [(PublishedNystrom, expected)] * 2


def test_an_encoder_has_no_state_and_its_convolution_learns() -> None:
    model = kf.nystromformer(landmarks=4, conv=3, **SMALL)
    with pytest.raises(NoState, match="use "):
        model.start(1, 4)
    model(model.sample(3, 16, 0)).total.backward()
    for part in mechanisms(model):
        assert part.skip.weight.grad.any()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"conv": 4}, r"conv=4 is even, so the kernel has no middle\. Pass an odd number"),
        ({"conv": 0}, "conv=0: give a whole number of at least 1"),
        ({"landmarks": 0}, "landmarks=0: give a whole number of at least 1"),
        ({"iterations": -1}, "iterations=-1: give a whole number of at least 0"),
    ],
)
def test_what_means_nothing_is_refused(keywords: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        kf.nystromformer(**{**SMALL, **keywords})

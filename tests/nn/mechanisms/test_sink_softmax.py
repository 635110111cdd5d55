"""SinkSoftmax: against loops from its equation, in float64, with plain and scaled rotations."""

import pytest
import torch

import kinformer as kf
from kinformer.core.layer import Context
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.mechanisms.sink_softmax import SinkSoftmax
from kinformer.nn.positions.rotary import Rotary

WINDOW, SINKS, WIDTH, LENGTH = 5, 2, 6, 30


def turn(x: torch.Tensor, position: int, rotation: Rotary) -> torch.Tensor:
    """The rotation of one vector [K] with pairs (n, n + K/2) by its equation, with the scaling of the part."""
    half = WIDTH // 2
    frequencies = torch.tensor([rotation.base ** (-n / half) for n in range(half)], dtype=torch.float64)
    factor = 1.0
    if rotation.scaling is not None:
        frequencies = rotation.scaling.scale(frequencies, rotation.base)
        factor = rotation.scaling.attention_scaling
    y = x.clone()
    for n in range(half):
        angle = position * frequencies[n]
        y[n] = (x[n] * angle.cos() - x[n + half] * angle.sin()) * factor
        y[n + half] = (x[n + half] * angle.cos() + x[n] * angle.sin()) * factor
    return y


@pytest.mark.parametrize("scaling", [None, kf.YaRN(4, 8)], ids=["plain", "yarn"])
def test_a_window_with_sinks_reads_them_at_a_trained_distance(scaling: kf.YaRN | None) -> None:
    torch.manual_seed(0)
    rotation = Rotary(WIDTH, pairs="half", scaling=scaling)
    projection = kf.QKV(8, 1, head_dim=WIDTH, rotation=rotation).double()
    near = kf.Causal() & kf.Band(WINDOW - 1)
    far = kf.Causal() & kf.Tokens(SINKS) & ~kf.Band(WINDOW - 1)
    last = WINDOW + SINKS - 1
    mechanism = Merged(kf.Softmax(near), SinkSoftmax(far, last, rotation))
    x = torch.randn(1, LENGTH, 8, dtype=torch.float64)
    ctx = Context.of_sequence(x)
    queries, keys = projection.queries_and_keys(x, ctx.pos)
    read = mechanism(queries, keys, None, ctx).y.y[0, 0]
    q, k, v = (part[0] for part in projection.qkv(x).split(WIDTH, -1))
    for i in range(LENGTH):
        readable = [j for j in range(i + 1) if i - j < WINDOW or j < SINKS]
        at = [i if i - j < WINDOW else min(i, last) for j in readable]
        scores = torch.stack(
            [turn(q[i], p, rotation) @ turn(k[j], j, rotation) for p, j in zip(at, readable, strict=True)]
        )
        expected = (scores * WIDTH**-0.5).softmax(0) @ v[readable]
        torch.testing.assert_close(read[i], expected, rtol=1e-9, atol=1e-12)


def test_moved_vectors_equal_rotations_by_the_new_position() -> None:
    rotation = Rotary(8, turned=4, scaling=kf.YaRN(4, 8))
    x = torch.randn(1, 2, 3, 8, dtype=torch.float64)
    old, new = torch.tensor([[5, 900, 3]]), torch.tensor([[2, 7, 3]])
    torch.testing.assert_close(rotation.move(rotation(x, old), new - old), rotation(x, new), rtol=1e-9, atol=1e-12)

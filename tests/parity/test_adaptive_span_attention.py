"""Adaptive spans against the authors' code, which counts from the key before the query and never reads the query."""

import torch

from kinformer.attend import attend
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.layer import Context
from kinformer.core.loss import sum_over_layers
from kinformer.core.patterns.causal import Causal
from kinformer.nn.attention import Attention
from kinformer.nn.biases.adaptive_span import AdaptiveSpan
from kinformer.nn.biases.relative import Relative
from kinformer.nn.mechanisms.restricted import Restricted
from kinformer.nn.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens

TINY = torch.tensor(1e-8, dtype=torch.float64)


@goldens("adaptive_span_attention")
def test_adaptive_span_attention(golden: Golden) -> None:
    """The code's softmax over all keys, times the ramp, over the sum and TINY is ours and one more key.

    That key has value 0 and TINY of the softmax without spans; a merge adds it.
    """
    tensors = golden.tensors
    near, far = built(golden)
    new = tensors["x"].shape[1]
    row = torch.cat([tensors["cache"], tensors["x"]], 1)
    pos = torch.arange(row.shape[1]).expand(len(row), -1)
    queries, keys = near.projection(tensors["x"], pos[:, -new:], row, pos)
    q, k, v = queries.q, keys.k, keys.v
    pair = {"q_pos": pos[:, None, -new:], "k_pos": pos[:, None], "pattern": near.mechanism.pattern}
    read, unspanned = (attend(q, k, v, **pair, bias=layer.mechanism.bias) for layer in (near, far))
    tiny = AttentionOutput(torch.zeros_like(read.y), unspanned.lse + TINY.log())
    close(near.aggregation(merge(read, tiny).y, pos[:, -new:]), tensors["y"])

    out = near(row, None, Context(pos, run=True))
    assert torch.allclose(out.y[:, -new:], near.aggregation(read.y, pos[:, -new:]), atol=1e-12, rtol=0)
    close(golden.hyperparameters["loss_coeff"] * sum_over_layers(out.aux, pos >= 0)["span"], tensors["span_loss"])


def built(golden: Golden) -> tuple[Attention, Attention]:
    """The golden's layer, and the same one with spans over everything it can reach."""
    tensors, sizes = golden.tensors, golden.hyperparameters
    longest, head_dim = tensors["key_pe"].shape
    key_pe = Relative(head_dim, longest, values=False)
    span = AdaptiveSpan(sizes["heads"], longest, ramp=sizes["R"], nearest=1, itself=False)
    everything = AdaptiveSpan(sizes["heads"], longest, nearest=1, itself=False, start=longest)
    d = sizes["d"]
    near, far = (
        Attention(QKV(d, sizes["heads"], bias=False), Restricted(Causal(), z, key_pe)).double()
        for z in (span, everything)
    )
    with torch.no_grad():
        span.span.copy_(tensors["z"] / longest)  # as the code stores it
        span.look()
        key_pe.keys.zero_()[:longest] = tensors["key_pe"]  # row longest - D is distance D, as in Relative
        for layer in (near, far):
            layer.projection.qkv.weight.copy_(torch.cat([tensors[f"W_{name}"].T for name in "qkv"]))
            layer.aggregation.linear.weight.copy_(tensors["W_o"].T)
    return near, far

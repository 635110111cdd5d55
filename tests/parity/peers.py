"""Equal weights for a peer and for us: a copy by shape, and agreement relative to the output's scale."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.nn.projections.qkv import QKV

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def small(d: int, depth: int, heads: int) -> dict[str, Any]:
    """What configurations of BERT and its kin have in common here."""
    return {
        "hidden_size": d,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "intermediate_size": 4 * d,
        "initializer_range": 0.3,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def copy_weights(
    ours: nn.Linear | nn.LayerNorm | nn.RMSNorm | nn.Embedding, weight: Tensor, bias: Tensor | None = None
) -> None:
    """Copy a weight, and a bias exactly where ours has one."""
    assert ours.weight.shape == weight.shape, f"ours {tuple(ours.weight.shape)}, theirs {tuple(weight.shape)}"
    assert (getattr(ours, "bias", None) is None) == (bias is None), "only one of the two has a bias"
    with torch.no_grad():
        ours.weight.copy_(weight)
        if bias is not None:
            ours.bias.copy_(bias)


def put_qkv(ours: QKV, name: str, weight: Tensor, bias: Tensor | None = None) -> None:
    """Copy the matrix of "q", "k" or "v" into the fused one, and a bias exactly where ours has one."""
    own, own_bias = ours.matrix(name)
    assert own.shape == weight.shape, f"ours {tuple(own.shape)}, theirs {tuple(weight.shape)}"
    assert (own_bias is None) == (bias is None), "only one of the two has a bias"
    with torch.no_grad():
        own.copy_(weight)
        if own_bias is not None and bias is not None:
            own_bias.copy_(bias)


def gradient(ours: QKV, name: str) -> Tensor:
    """The gradient of the matrix of "q", "k" or "v"."""
    assert ours.qkv.weight.grad is not None
    return ours.qkv.weight.grad.split(ours.widths)["qkv".index(name)]


def agree(ours: Tensor, theirs: Tensor, tolerance: float | None = None) -> None:
    """No entry of ours is further from theirs than the tolerance of the dtype times the largest entry of theirs."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    tolerance = TOLERANCE[ours.dtype] if tolerance is None else tolerance
    scale = theirs.abs().max().item()
    error = (ours - theirs).abs().max().item()
    assert scale > 0 and error <= tolerance * scale, f"off by {error:.1e}; {tolerance:.0e} of {scale:.1e} is allowed"


def agree_on_what_is_hidden(
    ours: Any, tokens: Int[Tensor, "B T"], logits: Callable[[Int[Tensor, "B T"]], Float[Tensor, "B T V"]]
) -> None:
    """A masked model's loss and the peer's, over its logits of what eval mode hides; leaves the gradients of both.

    Logits of real tokens alone: the mask is no answer of ours.
    """
    read, targets = ours.hide(tokens, fixed=True)
    loss = ours(tokens).total
    theirs = F.cross_entropy(logits(read)[..., : ours.vocab].transpose(1, 2), targets, ignore_index=-1)
    agree(loss, theirs)
    loss.backward()
    theirs.backward()


def shaken(model: nn.Module) -> nn.Module:
    """The model with its vectors moved: biases and norms start at 0 and 1, where a wrong place would not show."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def left_padded(vocab: int) -> tuple[Tensor, Tensor]:
    """Four rows of 11 columns with padding before their tokens, and which columns hold a token."""
    tokens = torch.randint(0, vocab, (4, 11))
    for row, pads in enumerate((0, 3, 10, 6)):
        tokens[row, :pads] = -1
    return tokens, tokens >= 0

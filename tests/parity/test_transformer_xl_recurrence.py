"""Segments with a carried memory, several layers of them, against the authors' own code."""

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.layer import Context
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from tests.parity.goldens import Golden, close, goldens
from tests.parity.test_transformer_xl_attention import attention


def copy_weights(module: nn.Module, weight: Tensor, bias: Tensor) -> None:
    module.load_state_dict({"weight": weight, "bias": bias})


def block(golden: Golden, n: int) -> PostNorm:
    """Layer n of a golden."""
    sizes, place = golden.hyperparameters, f"layers.{n}."
    own = {name.removeprefix(place): tensor for name, tensor in golden.tensors.items() if name.startswith(place)}
    shared = {name: golden.tensors[name] for name in ("u", "v") if name in golden.tensors}
    mlp = MLP(sizes["d"], sizes["d_ff"], activation="relu").double()
    copy_weights(mlp.up, own["W_1"].T, own["b_1"])
    copy_weights(mlp.down, own["W_2"].T, own["b_2"])
    built_block = PostNorm(attention({**shared, **own}, sizes, sizes["L"], sizes["mem_len"]), mlp).double()
    for norm, name in zip(built_block.norms, ("ln1", "ln2"), strict=True):
        copy_weights(norm, own[f"{name}_gamma"], own[f"{name}_beta"])
    return built_block


@goldens("transformer_xl_recurrence")
@pytest.mark.parametrize("mode", ["segments", "one call", "decoding"])
def test_recurrence(golden: Golden, mode: str) -> None:
    sizes, x = golden.hyperparameters, golden.tensors["x"]
    body = Stack(block(golden, n) for n in range(sizes["layers"])).train(mode != "decoding")
    pos = torch.arange(x.shape[1]).expand(len(x), -1)
    state, pieces = body.start(*x.shape[:2], dtype=x.dtype), []
    for at in torch.arange(x.shape[1]).split({"segments": sizes["L"], "one call": x.shape[1], "decoding": 1}[mode]):
        out = body(x[:, at], state, Context(pos[:, at], run=True))
        state = out.state
        pieces.append(out.y)
    close(torch.cat(pieces, 1), golden.tensors["y"])
    if mode == "decoding":
        return
    for n, (cache, _) in enumerate(state):
        theirs = golden.tensors[f"final_mem.{n}"]
        close(cache.x[cache.pos >= 0].view(len(x), -1, sizes["d"]), theirs)
        assert cache.pos.amax() == x.shape[1] - 1

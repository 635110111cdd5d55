"""Luna's pack and unpack against fairseq-apollo's: what is packed, and what is unpacked, over padded rows."""

import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.depth.luna import Nested
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.tied_kv import TiedKV
from tests.parity.goldens import Golden, close, goldens
from tests.parity.peers import copy_weights, put_qkv


@goldens("luna_pack_unpack")
def test_luna_pack_unpack(golden: Golden, float64: None) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    x, p = tensors["X"], tensors["P"]
    names = {name for name in tensors if name.startswith(("W_", "b_"))}
    nested = Nested(
        x.shape[-1],
        sizes["heads"],
        pack_heads=sizes.get("pheads"),
        tied=sizes["tie_kv"],
        bias=any(name.startswith("b_") for name in names),
    )
    read = filled(nested.pack, tensors, "p") | filled(nested.unpack, tensors, "")
    assert names <= read, f"not read: {sorted(names - read)}"
    real = ~tensors["pad"].bool() if "pad" in tensors else torch.ones(x.shape[:2], dtype=torch.bool)
    ctx, at = Context.of_sequence(x, real), torch.arange(p.shape[1]).expand(len(p), -1)
    y_x, y_p = nested(x, p, Context(at, source_pos=ctx.pos), ctx.replace(source_pos=at))
    close(y_p, tensors["Y_P"])
    theirs = tensors["Y_X"]
    # what stands in padded rows asks too in the authors' code, and nobody reads it
    close(y_x[real], theirs[real])


def filled(part: Attention, tensors: dict[str, Tensor], place: str) -> set[str]:
    """Give an attention its weights; the names of those that were read. A bias that is absent is zeros."""
    projection, read = part.projection, set()
    matrices = {"q": "q", "c": "c"} if isinstance(projection, TiedKV) else {"q": "q", "k": "k", "v": "v"}
    for ours, name in matrices.items():
        weight, bias = tensors[f"W_{place}{name}"].T, tensors.get(f"b_{place}{name}")
        if bias is None and projection.bias:
            bias = weight.new_zeros(len(weight))
        if isinstance(projection, TiedKV):
            copy_weights(getattr(projection, ours), weight, bias)
        else:
            assert isinstance(projection, QKV)
            put_qkv(projection, ours, weight, bias)
        read |= {f"W_{place}{name}", f"b_{place}{name}"}
    if isinstance(part.aggregation, OutProjection):
        weight = tensors["W_o"].T
        bias = tensors.get("b_o")
        copy_weights(
            part.aggregation.linear, weight, weight.new_zeros(len(weight)) if bias is None and projection.bias else bias
        )
        read |= {"W_o", "b_o"}
    return read

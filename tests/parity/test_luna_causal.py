"""Causal Luna against fairseq-apollo's: running averages, weights of log2(1 + 2^x), softmax over packs."""

import torch
from torch import nn

from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.luna_causal import LunaCausal
from kinformer.nn.mechanisms.luna_packs import Packs
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.tied_kv import TiedKV
from tests.parity.goldens import Golden, close, goldens
from tests.parity.peers import copy_weights
from tests.parity.test_luna_pack_unpack import filled


@goldens("luna_causal")
def test_luna_causal(golden: Golden, float64: None) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    x, p, heads = tensors["X"], tensors["P"], sizes["heads"]
    d, names = x.shape[-1], {name for name in tensors if name.startswith(("W_", "b_"))}
    bias = any(name.startswith("b_") for name in names)
    projection = (TiedKV if sizes["tie_kv"] else QKV)(d, heads, bias=bias)
    packs = Packs(p.shape[1], p.shape[2])
    layer = Attention(projection, LunaCausal(packs, heads, projection.k_dim, weight="log2", bias=bias, piece=4))
    read = filled(layer, tensors, "") | {"W_pc", "b_pc", "W_pq", "b_pq"}
    assert names <= read, f"not read: {sorted(names - read)}"
    w = tensors["W_pc"].T
    assert isinstance(layer.side, nn.Linear | None) and isinstance(layer.key_side, nn.Linear)
    copy_weights(layer.key_side, w, tensors.get("b_pc", w.new_zeros(len(w))))
    w = tensors["W_pq"].T
    copy_weights(layer.mechanism.ask, w, tensors.get("b_pq", w.new_zeros(len(w)) if bias else None))
    outputs = []
    for row, own in zip(x, p, strict=True):  # theirs come from an encoder, so each row has its own
        with torch.no_grad():
            packs.p.copy_(own)
        outputs.append(layer(row[None]).y[0])
    close(torch.stack(outputs), tensors["Y_X"])

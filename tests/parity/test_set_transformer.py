"""MAB, SAB, ISAB and PMA against the Set Transformer's own code, every output of it."""

from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.layer import Context
from kinformer.nn.blocks.isab import ISAB
from kinformer.nn.blocks.mab import PublishedMAB
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.poolers.pma import PMA
from tests.parity.goldens import Golden, close, goldens
from tests.parity.peers import copy_weights


@goldens("set_transformer")
def test_set_transformer(golden: Golden, float64: None) -> None:
    tensors = golden.tensors
    heads, x = golden.hyperparameters["heads"], tensors["X"]
    ctx = Context.of_sequence(x)
    blocks = {name: block(tensors, name, heads) for name in ("sab", "isab.mab0", "isab.mab1", "pma")}
    close(blocks["sab"](x, None, ctx).y, tensors["sab_out"])
    isab = ISAB(blocks["isab.mab0"], blocks["isab.mab1"], len(tensors["I"]))
    isab.point = nn.Parameter(tensors["I"])
    close(isab.induce(x, ctx).y, tensors["isab_H"])
    close(isab(x, None, ctx).y, tensors["isab_out"])
    pma = PMA(blocks["pma"], len(tensors["S"]))
    pma.seed = nn.Parameter(tensors["S"])
    real = torch.ones(x.shape[:2], dtype=torch.bool)
    close(pma(tensors["isab_out"], real).unflatten(-1, (len(tensors["S"]), -1)), tensors["pma_out"])
    left = {name for name in tensors if not name.startswith(tuple(f"{prefix}." for prefix in blocks))}
    assert left <= {"X", "I", "S", *golden.json["outputs"]}, f"not read: {sorted(left)}"


def block(tensors: dict[str, Tensor], place: str, heads: int) -> PublishedMAB:
    """A MAB of a golden's weights; without a gamma there is no norm, and a bias that is not there is 0."""
    tensors_of_block = {
        name.removeprefix(f"{place}."): t for name, t in tensors.items() if name.startswith(f"{place}.")
    }
    asks, d = tensors_of_block["W_q"].shape
    normed: Any = LayerNorm if "ln0_gamma" in tensors_of_block else nn.Identity
    layer = PublishedMAB(d, heads, cross=place != "sab", asks=asks, tells=len(tensors_of_block["W_k"]), norm=normed)
    for name, linear in (("q", layer.queries), ("k", layer.keys), ("v", layer.values), ("o", layer.out)):
        copy_weights(linear, tensors_of_block[f"W_{name}"].T, tensors_of_block.get(f"b_{name}", torch.zeros(d)))
    for name, norm in (("ln0", layer.attended), ("ln1", layer.mapped)):
        if isinstance(norm, LayerNorm):
            copy_weights(norm, tensors_of_block[f"{name}_gamma"], tensors_of_block.get(f"{name}_beta", torch.zeros(d)))
    return layer

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
from tests.parity.peers import put


@goldens("set_transformer")
def test_set_transformer(golden: Golden, float64: None) -> None:
    tensors = golden.tensors
    heads, x = golden.hyperparameters["heads"], tensors["X"]
    ctx = Context.of(x)
    blocks = {name: block(tensors, name, heads) for name in ("sab", "isab.mab0", "isab.mab1", "pma")}
    close(blocks["sab"](x, None, ctx).y, tensors["sab_out"])
    isab = ISAB(blocks["isab.mab0"], blocks["isab.mab1"], len(tensors["I"]))
    isab.point = nn.Parameter(tensors["I"])
    close(isab.gathered(x, ctx).y, tensors["isab_H"])
    close(isab(x, None, ctx).y, tensors["isab_out"])
    pma = PMA(blocks["pma"], len(tensors["S"]))
    pma.seed = nn.Parameter(tensors["S"])
    real = torch.ones(x.shape[:2], dtype=torch.bool)
    close(pma(tensors["isab_out"], real).unflatten(-1, (len(tensors["S"]), -1)), tensors["pma_out"])
    left = {name for name in tensors if not name.startswith(tuple(f"{one}." for one in blocks))}
    assert left <= {"X", "I", "S", *golden.json["outputs"]}, f"not read: {sorted(left)}"


def block(tensors: dict[str, Tensor], place: str, heads: int) -> PublishedMAB:
    """A MAB of a golden's weights; without a gamma there is no norm, and a bias that is not there is 0."""
    given = {name.removeprefix(f"{place}."): t for name, t in tensors.items() if name.startswith(f"{place}.")}
    asks, d = given["W_q"].shape
    normed: Any = LayerNorm if "ln0_gamma" in given else nn.Identity
    made = PublishedMAB(d, heads, cross=place != "sab", asks=asks, tells=len(given["W_k"]), norm=normed)
    for name, linear in (("q", made.queries), ("k", made.keys), ("v", made.values), ("o", made.out)):
        put(linear, given[f"W_{name}"].T, given.get(f"b_{name}", torch.zeros(d)))
    for name, norm in (("ln0", made.attended), ("ln1", made.mapped)):
        if isinstance(norm, LayerNorm):
            put(norm, given[f"{name}_gamma"], given.get(f"{name}_beta", torch.zeros(d)))
    return made

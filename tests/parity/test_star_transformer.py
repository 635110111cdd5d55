"""Star-Transformer's rounds against fastNLP's: tokens and relay, padding as they have it."""

from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.layer import Context
from kinformer.nn.depth.star import PublishedStarRound, PublishedStarRounds
from tests.parity.goldens import Golden, close, goldens
from tests.parity.peers import copy_weights, put_qkv


@goldens("star_transformer")
def test_star_transformer(golden: Golden, float64: None) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    x, heads, width = tensors["x"], sizes["heads"], sizes.get("d_head")
    read: set[str] = {"x", "mask", "nodes", "relay"}
    rounds = PublishedStarRounds([PublishedStarRound(x.shape[-1], heads, width) for _ in range(sizes["layers"])])
    for n, star_round in enumerate(rounds.rounds):
        place = f"layers.{n}."
        read |= filled(
            star_round, {name.removeprefix(place): t for name, t in tensors.items() if name.startswith(place)}, n
        )
    assert tensors.keys() <= read, f"not read: {sorted(tensors.keys() - read)}"
    mask = tensors["mask"].bool() if "mask" in tensors else torch.ones(x.shape[:2], dtype=torch.bool)
    nodes, relay = rounds.read(x, Context.of_sequence(x, mask))
    close(nodes, tensors["nodes"])
    close(relay, tensors["relay"])


def filled(star_round: Any, tensors: dict[str, Tensor], n: int) -> set[str]:
    """Give a round its weights; the names of those that were read. Without a gamma there is no norm."""
    if "ln_gamma" in tensors:
        copy_weights(
            star_round.ring_norm, tensors["ln_gamma"], tensors.get("ln_beta", torch.zeros_like(tensors["ln_gamma"]))
        )
    else:
        star_round.ring_norm = nn.Identity()
    names = {"ln_gamma", "ln_beta"}
    for part, kind in ((star_round.ring, "ring"), (star_round.relay, "star")):
        for name in "qkvo":
            weight = tensors[f"{kind}.W_{name}"].T
            bias = tensors.get(f"{kind}.b_{name}", weight.new_zeros(len(weight)))
            if name == "o":
                copy_weights(part.aggregation.linear, weight, bias)
            else:
                put_qkv(part.projection, name, weight, bias)
        names |= {f"{kind}.{kind_of}_{name}" for kind_of in "Wb" for name in "qkvo"}
    return {f"layers.{n}.{name}" for name in names}

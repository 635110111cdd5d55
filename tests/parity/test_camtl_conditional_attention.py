"""CAMTLByColumn against the authors' attention with a conditional block-diagonal term."""

import torch

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.patterns.full import Full
from kinformer.nn.biases.camtl import CAMTLByColumn
from kinformer.nn.mechanisms.softmax import Softmax
from tests.parity.goldens import Golden, close, goldens


@goldens("camtl_conditional_attention")
def test_camtl(golden: Golden) -> None:
    """Each row of the golden has a task embedding of its own, so it is a task of its own; width of blocks as in A."""
    tensors, heads = golden.tensors, golden.hyperparameters["heads"]
    x, z = tensors["x"], tensors["z"]
    (batch, length, _), size = x.shape, tensors["A"].shape[1]
    bias = CAMTLByColumn(batch, z.shape[1], length, -(-length // size)).double()
    with torch.no_grad():
        bias.embedding.weight.copy_(z)
        bias.blocks.copy_(tensors["A"])
        for name, film in (("gamma", bias.gamma), ("beta", bias.beta)):
            film.weight.copy_(tensors[f"W_{name}"].T)
            film.bias.copy_(tensors.get(f"b_{name}", torch.zeros(size)))
    labels = {"task": torch.arange(batch)[:, None].expand(-1, length)}
    ctx = Context.of_sequence(x, tensors["mask"].bool() if "mask" in tensors else None).replace(labels=labels)
    q, k, v = ((x @ tensors[f"W_{n}"] + tensors.get(f"b_{n}", 0)).unflatten(-1, (heads, -1)) for n in "qkv")
    queries = Queries(q.transpose(1, 2), ctx.by_head, labels=labels)
    read = Softmax(Full(), bias)(queries, Keys(k.transpose(1, 2), v.transpose(1, 2), ctx.by_head), None, ctx)
    close(read.y.y.transpose(1, 2).flatten(2), tensors["y"])

"""Nystrom attention against its authors' code: what real tokens read, with padding among the landmarks as there."""

import pytest
import torch

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.mechanisms.nystrom import Nystrom
from kinformer.nn.mechanisms.nystrom_published import PublishedNystrom
from kinformer.nn.mechanisms.value_conv import ValueConv
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


def call(golden: Golden, kind: type[Nystrom], real: torch.Tensor) -> torch.Tensor:
    """What the rows of the golden read, tokens standing where `real` says."""
    sizes, tensors = golden.hyperparameters, golden.tensors
    skip = None
    if "W_conv" in tensors:
        kernel = tensors["W_conv"].flatten(1)
        skip = ValueConv(*kernel.shape)
        skip.weight.data.copy_(kernel)
    norms = "batch" if sizes.get("init_option", "original") == "original" else "head"
    mechanism = kind(sizes["landmarks"], norms=norms, skip=skip, iterations=sizes.get("iterations", 6))
    ctx = Context(torch.where(real, real.cumsum(1) - 1, -1), run=True)
    q, k, v = (tensors[name] for name in "QKV")
    return mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y.y


def mask(golden: Golden) -> torch.Tensor:
    """Which columns hold a token."""
    tensors = golden.tensors
    return tensors["mask"] > 0 if "mask" in tensors else torch.ones_like(tensors["Q"][:, 0, :, 0], dtype=torch.bool)


@goldens("nystrom_attention")
def test_output(golden: Golden) -> None:
    real = mask(golden)
    actual = call(golden, PublishedNystrom, real)
    close(actual.transpose(1, 2)[real], golden.tensors["X"].transpose(1, 2)[real])


@goldens("nystrom_attention")
def test_rows_without_padding_are_read_alike_by_both_forms(golden: Golden) -> None:
    whole = torch.ones_like(mask(golden))
    close(call(golden, Nystrom, whole), call(golden, PublishedNystrom, whole))

"""ALiBi against the authors' slopes, and against Hugging Face Bloom for many numbers of heads."""

import pytest
import torch

from kinformer.attend import attend
from kinformer.core.patterns.causal import Causal
from kinformer.nn.biases.alibi import ALiBi, slopes
from tests.parity.goldens import Golden, close, goldens


@goldens("alibi_attention")
def test_alibi_attention(golden: Golden) -> None:
    tensors = golden.tensors
    heads, length = tensors["q"].shape[1:3]
    close(torch.tensor(slopes(heads), dtype=torch.float64), tensors["slopes"])
    pos = torch.arange(length)[None, None]
    pos = pos.expand(len(tensors["q"]), 1, length)
    read = attend(tensors["q"], tensors["k"], tensors["v"], q_pos=pos, k_pos=pos, pattern=Causal(), bias=ALiBi(heads))
    close(read.y, tensors["out"])


@pytest.mark.parametrize("heads", range(1, 33))
def test_slopes_are_those_of_bloom(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1]
    close(torch.tensor(slopes(heads), dtype=torch.float64), theirs)

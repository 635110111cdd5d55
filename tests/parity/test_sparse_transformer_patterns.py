"""Strided and fixed patterns, and attention under them, against the published sparse attention."""

import torch

from kinformer.attend import attend
from kinformer.members.support.sparse_transformer_factors import factor_patterns, layer_patterns
from tests.parity.goldens import Golden, close, goldens


@goldens("sparse_transformer_patterns")
def test_sparse_transformer_patterns(golden: Golden) -> None:
    h, t = golden.hyperparameters, golden.tensors
    length, heads, stride, summary = h["L"], h["heads"], h["stride"], h["c"]
    # the published code's window has l keys, the paper's l + 1
    (local,), (strided,) = factor_patterns("strided", stride, summary, 1, 2, "code")
    assert torch.equal(local.matrix(length).long(), t["mask_local"])
    assert torch.equal(strided.matrix(length).long(), t["mask_strided"])
    (fixed,) = layer_patterns(factor_patterns("fixed", stride, summary, h["num_verts"], 2, "code"), "merged", 1)
    assert torch.equal(torch.stack([fixed.matrix(length, h=n).long() for n in range(heads)]), t["mask_fixed"])
    q, k, v = (t[name].unflatten(-1, (heads, -1)).transpose(1, 2) for name in ("q", "k", "v"))
    pos = torch.arange(length).expand(len(q), 1, -1)
    for pattern, name in ((local, "out_local"), (strided, "out_strided"), (fixed, "out_fixed")):
        if name not in t:
            continue
        y = attend(q, k, v, q_pos=pos, k_pos=pos, pattern=pattern).y
        close(y.transpose(1, 2).flatten(2), t[name])

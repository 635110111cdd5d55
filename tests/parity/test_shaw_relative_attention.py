"""Relative against the helpers of OpenNMT-py, which use one table for keys and values."""

import torch
from torch import nn

from kinformer.attend import attend
from kinformer.core.score_matrix import scores
from kinformer.nn.biases.relative import Relative
from tests.nn.biases.requests import make_request
from tests.parity.goldens import Golden, close, goldens


@goldens("shaw_relative_attention")
def test_shaw(golden: Golden) -> None:
    tensors = golden.tensors
    q, k, v, table = (tensors[name] for name in ("q", "k", "v", "P"))
    bias = Relative(table.shape[1], golden.hyperparameters["k"]).double()
    bias.keys = bias.added = nn.Parameter(table)
    at = {"q_pos": torch.arange(q.shape[2])[None, None].expand(len(q), 1, -1), "bias": bias}
    at["k_pos"] = torch.arange(k.shape[2])[None, None].expand(len(k), 1, -1)
    close(scores(make_request(q, k, v, **at)), tensors["scores"])
    close(attend(q, k, v, **at).y, tensors["out"])

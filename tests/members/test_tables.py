"""Tables of biases in members: a row that no pair of tokens reads would be saved, counted and never learned."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.bias import Bias
from kinformer.core.discover import examples
from kinformer.laws.support.subject import SampledBatch, build_module

LENGTHS = (13, 64)
NEVER_READ = {
    "bp_transformer": "a short row has no nodes of the upper levels; biases/test_tree_edges.py reads all types",
    "etc": "a text without segments has no pairs of different segments",
    "camtl": "a pooling of the first token reads the first row of the upper layer's blocks alone",
    "memorizing_transformer": "buckets of T5 are fixed, and a short segment has short distances",
}


def tables(model: Any) -> Iterator[tuple[str, Tensor]]:
    for name, part in model.named_modules():
        if isinstance(part, Bias):
            yield from ((f"{name}.{key}", p) for key, p in part.named_parameters(recurse=False) if p.dim() > 1)


def unread_rows(model: Any) -> Iterator[str]:
    for length in LENGTHS:
        batch = SampledBatch(model.sample(3, min(length, model.window or length), 0)).to(torch.float64)
        model(batch.x).total.backward()
    for name, table in tables(model):
        unread = 0 if table.grad is None else int((table.grad == 0).all(-1).sum())
        if unread:
            yield f"{unread} of {table[..., 0].numel()} rows of {name}"


@pytest.mark.parametrize("files", [("adaptive_span", "shaw"), pytest.param((), marks=pytest.mark.prove)])
def test_each_row_of_a_table_of_a_member_s_bias_is_read(files: tuple[str, ...]) -> None:
    """In the long run of all members."""
    judged = [
        (name, example)
        for name, example in examples("members")
        if name not in NEVER_READ and (name in files or not files)
    ]
    models = [(name, build_module(example.make).train()) for name, example in judged]
    found_names = {name for name, model in models if any(tables(model))}
    wrong = [(name, unread) for name, model in models if any(tables(model)) for unread in unread_rows(model)]
    assert not wrong and len(found_names) >= (len(files) or 5)

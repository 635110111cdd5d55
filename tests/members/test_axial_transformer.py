"""Axial Transformer: which values each value reads, rows in place of columns, keys of a query, and its size."""

from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.core.parameter_noise import add_parameter_noise
from kinformer.members import axial_transformer as member
from tests.members.probes import count

pytestmark = pytest.mark.usefixtures("float64")

ROWS, COLUMNS = 4, 3
TINY: dict[str, Any] = {"shape": (1, ROWS, COLUMNS), "d": 16, "heads": 2, "outer": 1, "inner": 1}


def field(model: kf.ImageModel) -> torch.Tensor:
    """True at [i, j] if the distribution of value i depends on the embedded value j, in the order of rows."""
    add_parameter_noise(model)
    embedded: list[torch.Tensor] = []
    model.values.embedding.register_forward_hook(lambda _layer, _values, out: embedded.append(out))
    values, _ = model.eval().inputs(model.sample(1, 0, 0))
    y = model.predict(values)[0]
    gradients = [torch.autograd.grad(row.sin().sum(), embedded[0], retain_graph=True)[0] for row in y]
    by_value = torch.stack([gradient.view(-1, 16).abs().amax(-1) for gradient in gradients])
    return by_value > 1e-12


def check(model: kf.ImageModel) -> None:
    """A value reads all rows above it and the values on its left: everything before it."""
    reads = field(model)
    at = torch.arange(ROWS * COLUMNS)
    torch.testing.assert_close(reads, (at < at[:, None])[:, : reads.shape[1]])


def test_a_value_reads_all_that_come_before_it() -> None:
    check(kf.axial_transformer(**TINY))


def test_rows_in_place_of_columns_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without column attention a value reads the row above its own and no other."""
    monkeypatch.setattr(member, "Axial", lambda shape, axis: kf.Axial(shape, 2))
    with pytest.raises(AssertionError):
        check(kf.axial_transformer(**TINY))


def test_a_query_reads_rows_plus_columns_keys_and_not_their_product() -> None:
    model = kf.axial_transformer(**{**TINY, "shape": (1, 6, 7)})
    row, column = (block.layers[0].mechanism.pattern.matrix(42).sum(1) for block in model.body.outer.layers)
    assert row.max() == row.min() == 7 and column.max() == 6
    (own,) = (block.layers[0].mechanism.pattern.matrix(42).sum(1) for block in model.body.inner.layers)
    assert own.tolist() == list(range(1, 8)) * 6


def test_its_size_is_that_of_its_blocks_tables_and_values() -> None:
    """Blocks of 12 d^2 + 13 d, norms of 2 d, 2 tables of rows, 2 of columns, embedding and head of 256 values."""
    d, outer, inner = 16, 2, 3
    model = kf.axial_transformer(**{**TINY, "outer": outer, "inner": inner})
    blocks = (2 * outer + inner) * (12 * d * d + 13 * d) + 2 * 2 * d
    assert count(model) == blocks + 2 * (ROWS + COLUMNS) * d + 256 * d + (256 * d + 256)

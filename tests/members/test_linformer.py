"""Linformer's keywords reach its parts; sharing counts matrices once and is saved; what cannot be is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load, save
from kinformer.core.mechanism import NoState
from kinformer.members.linformer import linformer
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.shorteners.conv_shortener import ConvShortener
from kinformer.nn.shorteners.linformer import Linformer
from kinformer.nn.shorteners.max_pooled import MaxPooled
from kinformer.nn.shorteners.mean_pooled import MeanPooled

SMALL: dict[str, Any] = {"d": 8, "heads": 2, "depth": 3, "vocab": 11, "length": 12}


def shorteners(model: torch.nn.Module) -> list[Any]:
    return [part.shorten for part in model.modules() if isinstance(part, Shortened)]


def learned(model: torch.nn.Module) -> int:
    """Numbers of all shorteners, those that are shared once."""
    return sum({id(p): p.numel() for part in shorteners(model) for p in part.parameters()}.values())


@pytest.mark.parametrize(
    ("sharing", "matrices"), [("none", 2 * 2 * 3), ("headwise", 2 * 3), ("key-value", 3), ("layerwise", 1)]
)
def test_sharing_counts_matrices_once_and_is_saved(sharing: Any, matrices: int, tmp_path: Path) -> None:
    model = linformer(k=4, sharing=sharing, **SMALL)
    assert learned(model) == matrices * 12 * 4
    assert sum(p.numel() for p in model.parameters()) - learned(model) == sum(
        p.numel() for p in linformer(k=4, projection="mean", **SMALL).parameters()
    )
    save(model, tmp_path)
    loaded = load(tmp_path)
    assert learned(loaded) == learned(model) and (len(set(map(id, shorteners(loaded)))) == 1) == (
        sharing == "layerwise"
    )
    tokens = model.sample(2, 9, 0)
    assert torch.equal(model.eval().logits(tokens).y, loaded.logits(tokens).y)


def test_keywords_reach_the_parts() -> None:
    by_layer = shorteners(linformer(k=(6, 4, 2), **SMALL))
    assert [(type(part), part.length, part.k) for part in by_layer] == [(Linformer, 12, k) for k in (6, 4, 2)]
    for projection, kind in (("mean", MeanPooled), ("max", MaxPooled), ("convolution", ConvShortener)):
        shorteners_of = shorteners(linformer(k=(6, 4, 3), projection=projection, **SMALL))  # type: ignore[arg-type]
        assert [(type(part), part.size) for part in shorteners_of] == [(kind, size) for size in (2, 3, 4)]
    kernels = shorteners(linformer(k=4, projection="convolution", sharing="layerwise", **SMALL))
    assert len(set(map(id, kernels))) == 1 and kernels[0].weight.v is None


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"k": (4, 2, 2), "sharing": "layerwise"}, "uses one matrix for all layers"),
        ({"k": (4, 2)}, "has the wrong length: got 2, expected depth=3"),
        ({"k": 5, "projection": "mean"}, "length=12 is not a multiple of k=5"),
        ({"k": 4, "projection": "max", "sharing": "none"}, "sharing=none has no effect with projection=max"),
        ({"k": 0}, "at least 1"),
    ],
)
def test_keywords_that_do_not_fit_are_refused_in_one_line(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as refusal:
        linformer(**{**SMALL, **keywords})
    assert "\n" not in str(refusal.value)


def test_it_writes_nothing_and_reads_no_row_beyond_its_length() -> None:
    model = linformer(k=4, **SMALL)
    with pytest.raises(NoState, match="use a causal member"):
        model.start(1, 4)
    with pytest.raises(IndexError, match="position 12 is beyond the table of 12"):
        model.logits(torch.zeros(1, 13, dtype=torch.long))

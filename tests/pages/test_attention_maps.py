"""The picture of attention maps: a square for each head of each layer, with the tokens at its sides."""

from pathlib import Path

import pytest
import torch

import kinformer as kf
from kinformer.lab.look import AttentionMaps, look


def test_each_head_of_each_layer_is_a_square_with_its_tokens(tmp_path: Path) -> None:
    torch.manual_seed(0)
    seen = look(kf.gpt(d=16, depth=2, heads=2), "a $b")
    kf.save_attention_maps(seen, tmp_path / "maps.svg")
    text = (tmp_path / "maps.svg").read_text("utf-8")
    assert text.count("<image ") == 4
    for layer in seen.maps:
        assert all(f"{layer}, head {head}" in text for head in (0, 1))
    assert text.count("␣") >= 8


def test_without_a_map_the_reason_is_said(tmp_path: Path) -> None:
    unseen = AttentionMaps([b"a"], {}, None, {"body": "its keys are mixtures"})
    with pytest.raises(ValueError, match="there is no attention map to draw: its keys are mixtures"):
        kf.save_attention_maps(unseen, tmp_path / "maps.png")
    assert not (tmp_path / "maps.png").exists()

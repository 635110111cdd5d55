"""The picture of attention maps: a square for each head of each layer, with the tokens at its sides."""

import math
import re
from pathlib import Path

import numpy
import pytest
import torch
from matplotlib import colormaps, image

import kinformer as kf
from kinformer.lab.look import AttentionMaps, look


def test_each_head_of_each_layer_is_a_square_with_its_tokens(tmp_path: Path) -> None:
    torch.manual_seed(0)
    seen = look(kf.gpt(d=16, depth=2, heads=2), "a $b")
    kf.save_attention_maps(seen, tmp_path / "maps.svg")
    text = (tmp_path / "maps.svg").read_text("utf-8")
    assert all(f"layer {layer}, head {head}" in text for layer in (0, 1) for head in (0, 1))
    assert text.count("␣") >= 8
    words = re.findall(r"<!-- (.*?) -->", text) + re.findall(r"<text[^>]*>(.*?)</text>", text)
    assert words.count("key") == 4 and words.count("query") == 2 and words.count("attention weight") == 1
    assert all(tick in words for tick in ("0.04", "0.25", "0.5", "1"))  # one scale for all maps


def test_equal_weights_have_equal_colours_in_all_maps(tmp_path: Path) -> None:
    """A head with half of the weight on each of two keys is paler than a head with all weight on one key."""
    one_key, two_keys = torch.eye(2), torch.full((2, 2), 0.5)
    seen = AttentionMaps([b"a", b"b"], {"body.blocks.0": torch.stack([one_key, two_keys])}, None, {})
    kf.save_attention_maps(seen, tmp_path / "maps.png")
    pixels = image.imread(tmp_path / "maps.png")[..., :3]
    colours = {tuple(round(float(x), 2) for x in colour) for colour in pixels.reshape(-1, 3)}
    for weight in (0.0, 0.5, 1.0):
        expected = colormaps["Blues"](math.sqrt(weight))[:3]
        assert any(max(abs(a - b) for a, b in zip(colour, expected, strict=True)) < 0.02 for colour in colours), weight
    left, right = pixels[:, : pixels.shape[1] // 2], pixels[:, pixels.shape[1] // 2 : 4 * pixels.shape[1] // 5]
    darkest = colormaps["Blues"](1.0)[:3]
    assert _has(left, darkest) and not _has(right, darkest)


def _has(pixels: numpy.ndarray, colour: tuple[float, ...]) -> bool:
    return bool((abs(pixels - numpy.array(colour)).max(-1) < 0.02).any())


def test_without_a_map_the_reason_is_said(tmp_path: Path) -> None:
    unseen = AttentionMaps([b"a"], {}, None, {"body": "its keys are mixtures"})
    with pytest.raises(ValueError, match="there is no attention map to draw: its keys are mixtures"):
        kf.save_attention_maps(unseen, tmp_path / "maps.png")
    assert not (tmp_path / "maps.png").exists()

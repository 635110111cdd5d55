"""The Image Transformer: its attention by loops over query blocks and memories, and what its keywords choose."""

import math

import pytest
import torch

from kinformer.attend import attend
from kinformer.core.layer import Context
from kinformer.members.image_transformer import IN_ROWS, TINY, image_transformer
from kinformer.models.support.logistic_mixture import LogisticMixture
from kinformer.nn.attention import Attention
from kinformer.nn.patterns.image_1d import Image1D
from kinformer.nn.patterns.image_2d import Image2D
from tests.nn.patterns.pictures import generation_order


def one_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, memory: list[int]) -> torch.Tensor:
    """softmax(q K^T / sqrt(d)) V over the positions of a memory."""
    scores = torch.stack([q @ k[j] / math.sqrt(len(q)) for j in memory])
    return sum(p * v[j] for p, j in zip(scores.softmax(0), memory, strict=True))


def sampled_pictures(length: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return [torch.randn(1, 2, length, 4, generator=g, dtype=torch.double) for _ in range(3)]


@pytest.mark.parametrize(("block", "memory"), [(4, 3), (3, 6), (5, 0)])
def test_1d_is_a_loop_over_query_blocks_and_their_memories(block: int, memory: int) -> None:
    """Family row 43: memory block b is query block b and the l_m pixels before it, masked to what is generated."""
    q, k, v = sampled_pictures(17)
    y = attend(q, k, v, pattern=Image1D(block, memory)).y
    for h in range(2):
        for first in range(0, 17, block):
            for i in range(first, min(first + block, 17)):
                pixels = [j for j in range(max(0, first - memory), first + block) if j <= i]
                assert torch.allclose(y[0, h, i], one_row(q[0, h, i], k[0, h], v[0, h], pixels))


@pytest.mark.parametrize(("block", "memory"), [((2, 3), (1, 1)), ((2, 2), (3, 2)), ((1, 6), (2, 0))])
def test_2d_is_a_loop_over_query_blocks_and_their_memories(block: tuple[int, int], memory: tuple[int, int]) -> None:
    """Family row 44: (h_m + h_q) rows and (w_q + 2 w_m) columns, without what block order generates later."""
    (h, w), (up, aside) = block, memory
    places = generation_order(6, block, 6)
    q, k, v = sampled_pictures(len(places))
    y = attend(q, k, v, pattern=Image2D(6, block, memory)).y
    for i, (row, column) in enumerate(places):
        top, left = row // h * h, column // w * w
        pixels = [
            j
            for j, (r, c) in enumerate(places)
            if top - up <= r < top + h and left - aside <= c < left + w + aside and j <= i
        ]
        for head in range(2):
            assert torch.allclose(y[0, head, i], one_row(q[0, head, i], k[0, head], v[0, head], pixels))


def test_a_block_is_the_papers() -> None:
    """q_a = norm(q + attention), q' = norm(q_a + W1 relu(W2 q_a))."""
    torch.manual_seed(0)
    model = image_transformer(**TINY).double().eval()
    block = model.body.layers[0]
    attention, mlp = block.layers
    x = torch.randn(2, 9, 16, dtype=torch.double)
    inner = block.norms[0](x + attention(x).y)
    expected = block.norms[1](inner + mlp.down(mlp.up(inner).relu()))
    ctx = Context.of_sequence(x)
    assert torch.allclose(block(x, None, ctx).y, expected)


def patterns(model: torch.nn.Module) -> list[object]:
    return [part.mechanism.pattern for part in model.body.modules() if isinstance(part, Attention) and not part.cross]


def test_keywords_choose_the_form_in_pixels() -> None:
    assert patterns(image_transformer(**IN_ROWS)) == [Image1D(5, 4)] * 2
    of_values = image_transformer(**TINY, form="2d", tile=(2, 1), around=(1, 3))
    assert patterns(of_values) == [Image2D(8, (2, 2), (1, 6))] * 2  # two channels are two values of a pixel
    of_pixels = image_transformer(**TINY, form="2d", output="logistics", tile=(2, 1), around=(1, 3))
    assert patterns(of_pixels) == [Image2D(4, (2, 1), (1, 3))] * 2
    assert len(of_values.values.embedding.weight) == 2 * 256
    assert of_values.steps == 32 and of_pixels.steps == 16 and isinstance(of_pixels.values, LogisticMixture)
    unnamed = image_transformer((1, 28, 12), form="2d", d=16, depth=1)
    assert patterns(unnamed) == [Image2D(12, (7, 6), (7, 6))]
    for norm, stack in (("post", torch.nn.Identity), ("pre", torch.nn.Module)):
        assert isinstance(image_transformer(**TINY, norm=norm).body.norm or torch.nn.Identity(), stack)


def test_super_resolution_reads_a_smaller_copy_and_nothing_else_of_what_comes() -> None:
    torch.manual_seed(0)
    model = image_transformer(**TINY, upscale=2).double().eval()
    pixels, labels = model.sample(2, 0, 0)
    values, condition = model.inputs((pixels, labels))
    small = condition["source"]
    assert torch.equal(small[0, 1, 0, 1], pixels[0, 1, :2, 2:].double().mean().round().to(torch.uint8))
    before = model.predict(values, **condition)
    assert not torch.allclose(model.predict(values, source=255 - small)[:, 0], before[:, 0])
    with pytest.raises(ValueError, match="rows of a picture=4 is not a multiple of factor=3"):
        image_transformer(**TINY, upscale=3)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"tile": (2, 2)}, r"tile=2,2 has no effect with form=1d"),
        ({"form": "2d", "block": 5}, "block=5 has no effect with form=2d"),
        ({"mixtures": 3}, "mixtures=3 has no effect with output=categorical"),
        ({"form": "2d", "tile": (0, 2)}, r"tile\[0\]=0: give a whole number of at least 1"),
        ({"form": "2d", "tile": (2, 3)}, "columns of a picture=4 is not a multiple of columns of a tile=3"),
        ({"upscale": 0}, "upscale=0: give a whole number of at least 2"),
    ],
)
def test_what_makes_no_sense_is_one_line(keywords: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        image_transformer(**{**TINY, **keywords})

"""average_attention: its blocks in both forms, a state that does not grow, what its keywords change and refuse."""

import math
from typing import Any

import pytest
import torch

from kinformer.core.state import leaves
from kinformer.members.average_attention import average_attention
from kinformer.models.lm import LM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.attention import Attention
from kinformer.nn.mixers.average_attention import AverageAttention

TINY: dict[str, Any] = {"d": 16, "depth": 2, "hidden": 24, "vocab": 11}
PAIRS: dict[str, Any] = {**TINY, "heads": 2, "form": "encoder_decoder"}


def kinds(model: LM | Seq2Seq) -> list[str]:
    body = model.body if isinstance(model, LM) else model.decoder
    return [type(layer).__name__ for layer in body.layers[0].layers]


def test_a_decoder_has_no_attention_and_the_papers_model_has_all_three() -> None:
    decoder, paper = average_attention(**TINY), average_attention(**PAIRS)
    assert kinds(decoder) == ["AverageAttention", "MLP"] and kinds(paper) == ["AverageAttention", "Attention", "MLP"]
    assert not any(isinstance(part, Attention) for part in decoder.modules())
    own, across = (
        [part for part in paper.modules() if isinstance(part, Attention) and part.cross is cross]
        for cross in (False, True)
    )
    assert len(own) == len(across) == 2 and all(part in set(paper.encoder.modules()) for part in own)


def test_its_state_is_as_large_for_any_row() -> None:
    model = average_attention(**TINY)

    def size(length: int) -> int:
        return sum(leaf.numel() for _, leaf in leaves(model.start(3, length)))

    assert size(1) == size(10**6) == 3 * (1 + 2 * (16 + 1))


def test_its_keywords_change_what_they_name() -> None:
    def mixer(**keywords: object) -> AverageAttention:
        return next(part for part in average_attention(**TINY, **keywords).modules() if type(part) is AverageAttention)

    assert mixer().feedforward.up.out_features == 24 and mixer().gate is not None
    assert mixer(feedforward=False).feedforward is None and mixer(gate=False).gate is None
    assert type(average_attention(**TINY, norm="post").body.layers[0]).__name__ == "PostNorm"
    assert average_attention(**TINY, position="learned", length=8).longest == 8
    assert average_attention(**TINY).longest is None and average_attention(**TINY, position="none").position is None
    assert average_attention(**PAIRS, smoothing=0.1).smoothing == 0.1


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"smoothing": 0.1}, "smoothing=0.1 has no effect with form=decoder"),
        ({"heads": 7}, "heads=7 has no effect with form=decoder; leave it out, or give form=encoder_decoder"),
        ({"position": "rotary"}, "'none', got 'rotary'"),
        ({"depth": 0}, "depth=0: give a whole number of at least 1"),
        ({"form": "encoder_decoder", "heads": 3}, "d=16 is not a multiple of heads=3"),
    ],
)
def test_what_means_nothing_is_refused(keywords: dict, says: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        average_attention(**{**TINY, **keywords})
    assert "\n" not in str(raised.value) and says in str(raised.value)


@pytest.mark.parametrize(
    "keywords", [{}, {"norm": "post", "position": "learned"}, {"form": "encoder_decoder", "heads": 2}]
)
def test_the_first_loss_is_that_of_guessing(keywords: dict) -> None:
    model = average_attention(d=32, depth=2, **keywords)
    loss = float(model(model.sample(4, 60, 0)).total.detach())
    assert abs(loss / math.log(256) - 1) < 0.1


def test_it_learns_what_a_mean_can_know() -> None:
    """Which of two tokens came more often so far: no token alone says it."""
    torch.manual_seed(0)
    model = average_attention(d=16, depth=1, vocab=4, position="none")
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        tokens = torch.randint(2, (16, 9))
        is_majority = 2 * tokens.cumsum(1) > torch.arange(1, 10)
        loss = torch.nn.functional.cross_entropy(model.logits(tokens).y.flatten(0, 1), 2 + is_majority.long().flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.2  # the best by the last token alone is 0.507

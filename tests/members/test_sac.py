"""SAC's keywords reach its parts, and it decodes what it reads."""

from typing import Any

import pytest
import torch

from kinformer.members.sac import sac
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.sac import SAC, GivenEdges
from kinformer.nn.projections.qkv import QKV
from kinformer.pages.pictures.support.all_pictures import pictures


def make_model(**keywords: Any) -> Any:
    return sac(d=8, depth=2, heads=2, edges=2, width=3, length=12, vocab=11, **keywords)


def mechanisms(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [part for part in model.modules() if isinstance(part, SAC | GivenEdges)]


def test_edges_are_the_models_a_layers_or_a_heads() -> None:
    first, second = mechanisms(make_model())
    assert isinstance(first, SAC) and "edges" in first.sends and isinstance(second, GivenEdges)
    for share in ("layer", "head"):
        edge_mechanisms = mechanisms(make_model(share=share))
        assert all(
            isinstance(part, SAC) and (part.by, part.edges) == (share, 2) and not part.sends for part in edge_mechanisms
        )
        assert edge_mechanisms[0].chance.seed != edge_mechanisms[1].chance.seed  # type: ignore[union-attr]


def test_keywords_reach_the_loss() -> None:
    model = make_model(reward="row", decay=0.5, weight=0.25)
    assert (model.reinforce.per, model.reinforce.decay, model.weight) == ("row", 0.5, 0.25)


@pytest.mark.parametrize("share", ["model", "head"])
def test_a_token_at_a_time_is_a_row_at_once(share: str) -> None:
    model = make_model(share=share).double().eval()
    tokens = torch.randint(11, (2, 9))
    with torch.no_grad():
        state, outputs = model.start(2, 9), []
        for t in range(9):
            out = model.logits(tokens[:, t : t + 1], state)
            state = out.state
            outputs.append(out.y)
        torch.testing.assert_close(torch.cat(outputs, 1), model.logits(tokens).y)


def test_given_edges_alone_are_refused_and_the_page_of_the_member_is_drawn() -> None:
    """Edges come from the layer beneath, which the pictures of a layer by itself do not have."""
    with pytest.raises(ValueError, match=r"Use SAC\(send=True\) in a layer below"):
        Attention(QKV(8, 2), GivenEdges())(torch.randn(1, 4, 8))
    assert [picture.caption.split(":")[0] for picture in pictures(make_model(), 6)] == ["SAC, layer 0, head 0"]

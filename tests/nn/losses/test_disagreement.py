"""Disagreement: loops after the paper's equations, what training does to heads, and what is refused."""

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.nn.attention import Attention
from kinformer.nn.losses.disagreement import OutputDisagreement, PositionDisagreement, SubspaceDisagreement
from kinformer.nn.mechanisms.regularised import Regularised
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.topk import TopK
from kinformer.nn.projections.qkv import QKV

EVERY = (SubspaceDisagreement, PositionDisagreement, OutputDisagreement)


def layer(heads: int = 3) -> Attention:
    torch.manual_seed(0)
    return (
        Attention(QKV(12, heads), Regularised(Softmax(Causal()), *(make_penalty() for make_penalty in EVERY)))
        .double()
        .train()
    )


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / a.norm() / b.norm())


@torch.no_grad()
def test_each_is_the_papers_mean_over_pairs_of_heads() -> None:
    part, x = layer(), torch.randn(2, 5, 12).double()
    ctx = Context.of_sequence(x, torch.tensor([[True] * 5, [False, True, True, True, True]]))
    out = part(x, None, ctx)
    queries, keys = part.projection.queries_and_keys(x, ctx.pos)
    for b in range(2):
        for t in range(b, 5):
            a = torch.zeros(3, 5).double()
            for h in range(3):
                positions = range(b, t + 1)
                scores = torch.stack([queries.q[b, h, t] @ keys.k[b, h, s] / 2 for s in positions])
                a[h, b : t + 1] = scores.softmax(0)
            read = [sum(a[h, s] * keys.v[b, h, s] for s in range(5)) for h in range(3)]
            pairs = [(i, j) for i in range(3) for j in range(3)]
            expected = {
                "subspace_disagreement": sum(cosine(keys.v[b, i, t], keys.v[b, j, t]) for i, j in pairs) / 9,
                "position_disagreement": sum(float((a[i] * a[j]).sum()) for i, j in pairs) / 9,
                "output_disagreement": sum(cosine(read[i], read[j]) for i, j in pairs) / 9,
            }
            for key, value in expected.items():
                assert out.aux[key][b, t].item() == pytest.approx(value, abs=1e-12)
    assert not part.eval()(x, None, ctx).aux


@pytest.mark.parametrize("penalty", EVERY)
def test_training_on_it_alone_moves_heads_apart(penalty: type) -> None:
    part, x = layer(2), torch.randn(4, 8, 12).double()
    key, optimiser = penalty.key, torch.optim.Adam(part.parameters(), 0.02)
    first = part(x).aux[key].mean().item()
    for _ in range(40):
        optimiser.zero_grad()
        part(x).aux[key].mean().backward()
        optimiser.step()
    # two heads: 1 / 2 is at right angles; weights that are all alike are among the least, and they begin near that
    assert part(x).aux[key].mean().item() < first - (0.01 if penalty is PositionDisagreement else 0.1)


def test_what_tells_no_weights_is_refused() -> None:
    with pytest.raises(ValueError, match=r"TopK has no weights of single pairs to regularise\. Use Softmax"):
        Regularised(TopK(Causal()), OutputDisagreement())
    with pytest.raises(ValueError, match="PositionDisagreement needs the mechanism's lse"):
        Regularised(Softmax(Causal(), lse=False), PositionDisagreement())
    with pytest.raises(ValueError, match="needs at least one regulariser and no duplicates"):
        Regularised(Softmax(Causal()), OutputDisagreement(), OutputDisagreement())
    with pytest.raises(
        ValueError,
        match="SubspaceDisagreement cannot be used in cross-attention: it needs queries and keys of one sequence",
    ):
        Attention(QKV(12, 2), Regularised(Softmax(Causal()), SubspaceDisagreement()), cross=True)

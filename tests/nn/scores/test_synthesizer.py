"""Synthesizers: every form's equation by a loop in float64, tables that end, mixtures, and no queries and keys."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.layer import Context, PerPair
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.score import Score
from kinformer.core.scores.product import Product
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.value_projection import ValueProjection
from kinformer.nn.scores.factorised_dense import FactorisedDense
from kinformer.nn.scores.factorised_random import FactorisedRandom
from kinformer.nn.scores.fixed_length import Synthesizer
from kinformer.nn.scores.mixture import Mixture
from kinformer.nn.scores.random_synthesizer import RandomSynthesizer
from kinformer.nn.scores.residual import ResidualScores
from kinformer.nn.scores.synthesizer import DenseSynthesizer
from tests.nn.biases.requests import make_request

pytestmark = pytest.mark.usefixtures("float64")
HEADS, LENGTH, D = 2, 12, 6


def sided(layer: Attention, x: Tensor) -> dict[str, list[list[Tensor]]]:
    """Each side of each head and token [H][T][n], from the layer's one matrix."""
    if layer.side is None:
        return {}
    rows, first, columns = x @ layer.side.weight.T + layer.side.bias, 0, {}
    for name, side in layer.extras.items():
        columns[name] = [
            [row[first + h * side.width : first + (h + 1) * side.width] for row in rows] for h in range(HEADS)
        ]
        first += HEADS * side.width
    return columns


def by_hand(score: Score, extras: dict[str, list[list[Tensor]]], h: int, i: int, j: int) -> Tensor:
    """The score of a pair, as the paper's section 3 writes it."""
    if isinstance(score, DenseSynthesizer):
        table = 0 if len(score.weight) == 1 else h
        return extras["dense"][h][i].clamp_min(0) @ score.weight[table, :, j] + score.bias[table, 0, j]
    if isinstance(score, FactorisedDense):
        first, second = extras["first"][h][i], extras["second"][h][i]
        a, c = len(first), len(second)
        tiled, other = first.repeat(c), second.repeat(a) if score.second == "tiled" else second.repeat_interleave(a)
        return tiled[j] * other[j]
    if isinstance(score, FactorisedRandom):
        return (score.rows[h] @ score.columns[h].T)[i, j]
    assert isinstance(score, RandomSynthesizer)
    return score.table[h, i, j]


FORMS = {
    "dense": lambda: DenseSynthesizer(HEADS, LENGTH, 5),
    "dense, shared": lambda: DenseSynthesizer(HEADS, LENGTH, 5, shared=True),
    "factorised dense, tiled": lambda: FactorisedDense(HEADS, LENGTH, 2),
    "factorised dense, repeated": lambda: FactorisedDense(HEADS, LENGTH, 2, second="repeated"),
    "random": lambda: RandomSynthesizer(HEADS, LENGTH),
    "random, fixed": lambda: RandomSynthesizer(HEADS, LENGTH, trained=False),
    "factorised random": lambda: FactorisedRandom(HEADS, LENGTH, 3),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_layer_is_the_papers_equation_beside_any_padding(form: str, causal: bool) -> None:
    score = FORMS[form]()
    layer = Attention(ValueProjection(D, HEADS, v_dim=4), Softmax(Causal() if causal else Full(), score=score))
    rows = [torch.randn(9, D), torch.randn(5, D)]
    x, mask = torch.full((2, 9, D), 1e2), torch.zeros(2, 9, dtype=torch.bool)
    for n, (row, left) in enumerate(zip(rows, (0, 3), strict=True)):
        x[n, left : left + len(row)], mask[n, left : left + len(row)] = row, True
    actual = layer(x, None, Context.of_sequence(x, mask)).y
    for n, row in enumerate(rows):
        torch.testing.assert_close(actual[n][mask[n]], read(layer, score, row, causal), rtol=0, atol=1e-12)
    alone = layer(rows[1][None]).y[0]  # rows that are all alike are looked up once
    torch.testing.assert_close(alone, actual[1][mask[1]], rtol=0, atol=1e-12)


def read(layer: Attention, score: Score, x: Float[Tensor, "T D"], causal: bool) -> Tensor:
    """softmax(scores) G(x), pair by pair, of one row."""
    v = (x @ layer.projection.v.weight.T + layer.projection.v.bias).view(len(x), HEADS, -1)
    extras, y = sided(layer, x), torch.zeros(HEADS, len(x), v.shape[-1])
    for h in range(HEADS):
        for i in range(len(x)):
            keys = range(i + 1) if causal else range(len(x))
            weight = torch.stack([by_hand(score, extras, h, i, j) for j in keys]).softmax(0)
            y[h, i] = sum(w * v[j, h] for w, j in zip(weight, keys, strict=True))
    return layer.aggregation(y[None], torch.arange(len(x))[None])[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_row_beyond_the_table_is_refused_in_one_line(form: str) -> None:
    layer = Attention(ValueProjection(D, HEADS), Softmax(Full(), score=FORMS[form]()))
    layer(torch.randn(1, LENGTH, D))
    with pytest.raises(IndexError, match=f"^position {LENGTH} is beyond the {LENGTH} positions .*larger") as error:
        layer(torch.randn(1, LENGTH + 1, D))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("form", FORMS)
def test_other_heads_are_refused_when_the_layer_is_built(form: str) -> None:
    with pytest.raises(ValueError, match=r"was made for 2 heads, but its layer has 3\. Make them equal"):
        Attention(ValueProjection(D, 3), Softmax(Full(), score=FORMS[form]()))


def test_with_factors_that_share_a_divisor_tiles_repeat_and_repeats_do_not() -> None:
    x = torch.randn(1, 16, D)

    def different(**keywords: str) -> int:
        layer = Attention(ValueProjection(D, HEADS), Softmax(Full(), score=FactorisedDense(HEADS, 16, 4, **keywords)))
        extras = sided(layer, x[0])
        scores = [by_hand(layer.mechanism.score, extras, 0, 3, j) for j in range(16)]
        return len({round(score.item(), 12) for score in scores})

    assert different() == 4 and different(second="repeated") == 16


def test_fixed_tables_do_not_learn_and_are_saved() -> None:
    fixed, trained = (RandomSynthesizer(HEADS, LENGTH, trained=is_trained) for is_trained in (False, True))
    assert not list(fixed.parameters()) and list(fixed.state_dict()) == ["table"] == list(trained.state_dict())
    assert [name for name, _ in trained.named_parameters()] == ["table"]


def test_values_own_nothing_of_queries_and_keys() -> None:
    layer = Attention(ValueProjection(D, HEADS, bias=False), Softmax(Causal(), score=RandomSynthesizer(HEADS, LENGTH)))
    sizes = {name: tuple(weight.shape) for name, weight in layer.named_parameters()}
    assert sizes == {
        "projection.v.weight": (D, D),
        "mechanism.score.table": (HEADS, LENGTH, LENGTH),
        "aggregation.linear.weight": (D, D),
    }
    state = layer.start(1, LENGTH)
    assert state.k.numel() == 0 and state.v.shape == (1, HEADS, LENGTH, 3)
    queries, keys = layer.projection.queries_and_keys(torch.randn(1, 4, D), torch.arange(4)[None])
    assert queries.q.shape == keys.k.shape == (1, HEADS, 4, 0)
    with pytest.raises(ValueError, match="ValueProjection has no separate matrix for 'q'; use QKV"):
        layer.projection.matrix("q")


def test_grouped_values_are_shared() -> None:
    score = RandomSynthesizer(4, LENGTH)
    few, x = Attention(ValueProjection(8, 4, value_heads=2), Softmax(Causal(), score=score)), torch.randn(2, 7, 8)
    many = Attention(ValueProjection(8, 4), Softmax(Causal(), score=score))
    many.aggregation = few.aggregation
    with torch.no_grad():
        for own, shared in zip(many.projection.v.parameters(), few.projection.v.parameters(), strict=True):
            own.copy_(shared.unflatten(0, (2, 2)).repeat_interleave(2, 0).flatten(0, 1))
    torch.testing.assert_close(few(x).y, many(x).y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weights", ["learned", "sum"])
def test_a_mixture_is_a_weighted_sum_before_the_softmax(weights: str) -> None:
    parts = [RandomSynthesizer(HEADS, LENGTH), Product(), FactorisedRandom(HEADS, LENGTH, 2)]
    mixture, pos = Mixture(*parts, weights=weights), torch.tensor([[[0, 1, 2]], [[-1, 0, 1]]])
    q, k = torch.randn(2, HEADS, 3, 4), torch.randn(2, HEADS, 3, 4)
    request = make_request(q, k, q_pos=pos, k_pos=pos, score=mixture)
    alpha = torch.ones(3)
    if mixture.weights is not None:
        assert torch.equal(mixture.weights, torch.zeros(3))  # alike at the start
        torch.nn.init.normal_(mixture.weights)
        alpha = mixture.weights.exp() / mixture.weights.exp().sum()
    want = sum(weight * part(request) for weight, part in zip(alpha, parts, strict=True))
    torch.testing.assert_close(mixture(request), want, rtol=0, atol=1e-12)


def test_a_mixture_keeps_out_what_one_of_its_scores_shuts_out_and_gives_no_nan() -> None:
    pos, mixture = torch.arange(4)[None, None], Mixture(ResidualScores(), RandomSynthesizer(HEADS, LENGTH))
    sent = torch.randn(1, HEADS, 4, 4).masked_fill(torch.ones(4, 4).triu(1) > 0, -torch.inf)
    q = torch.randn(1, HEADS, 4, 3, requires_grad=True)
    below = {"scores": PerPair(sent, pos, pos)}
    actual = mixture(make_request(q, q.detach(), q_pos=pos, k_pos=pos, score=mixture, below=below))
    assert torch.equal(actual == -torch.inf, sent == -torch.inf) and mixture.wants == ResidualScores.wants
    actual.masked_fill(sent == -torch.inf, 0.0).sum().backward()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in (q, mixture.weights))


def test_a_mixture_of_two_that_want_one_side_is_refused() -> None:
    with pytest.raises(ValueError, match="two scores of a Mixture need the same extra projection 'dense'"):
        Attention(QKV(D, 2), Softmax(Full(), score=Mixture(*(DenseSynthesizer(2, 8, 3) for _ in range(2)))))
    with pytest.raises(ValueError, match="got no score"):
        Mixture()


def test_a_row_costs_no_more_than_it_has_columns() -> None:
    """A long table is cut to the places of a short row before anything is multiplied."""
    score: Synthesizer = DenseSynthesizer(1, 4096, 3)
    layer, x = Attention(ValueProjection(D, 1), Softmax(Full(), score=score)), torch.randn(1, 5, D)
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.numel()), t)[1], lambda t: t):
        layer(x)
    assert max(size for size in sizes if size != score.weight.numel()) < 4096


def test_low_rank_scores_begin_with_a_variance_of_one() -> None:
    torch.manual_seed(0)
    for rank in (2, 8):
        score = FactorisedRandom(8, 64, rank)
        assert (score.rows @ score.columns.mT).var().item() == pytest.approx(1, abs=0.25)

"""The keywords that gpt, bert and transformer share: each means the same in all three, and starts near ln(vocab)."""

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from kinformer.core.discover import members
from kinformer.core.keyword_conditions import has_effect
from kinformer.core.keywords import parse_keywords, signature
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.bert import bert
from kinformer.members.bloom import bloom
from kinformer.members.da_transformer import da_transformer
from kinformer.members.gpt import gpt
from kinformer.members.llama import llama
from kinformer.members.realformer import realformer
from kinformer.members.shaw import shaw
from kinformer.members.support.wiring import SINUSOIDS, Norms, Positions, Wiring
from kinformer.members.transformer import transformer
from kinformer.nn.attention import Attention
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.biases.relative import Relative
from kinformer.nn.blocks.positioned_block import PositionedBlock
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.positions.learned import Learned
from kinformer.nn.positions.sinusoidal import Sinusoidal

MEMBERS: tuple[Callable[..., Any], ...] = (gpt, bert, transformer)
SMALL: dict[str, Any] = {"d": 16, "depth": 1, "heads": 2, "vocab": 11, "dropout": 0.0}


def attentions(model: Any) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, Attention)]


@pytest.mark.parametrize("member", MEMBERS)
def test_the_keywords_are_the_same(member: Callable[..., Any]) -> None:
    parameters = signature(member).parameters
    assert get_args(Positions) == ("learned", *SINUSOIDS, "rotary", "alibi", "relative", "none")
    assert parameters["position"].annotation == Positions and parameters["norm"].annotation == Norms
    assert parameters["pattern"].annotation == str | tuple[str, ...] and parameters["head_dim"].default is None


@pytest.mark.parametrize("position", get_args(Positions))
@pytest.mark.parametrize("member", MEMBERS)
def test_a_position_is_added_turns_or_changes_scores(member: Callable[..., Any], position: str) -> None:
    model = member(**SMALL, position=position)
    added = {"learned": Learned, **dict.fromkeys(SINUSOIDS, Sinusoidal)}.get(position, type(None))
    assert isinstance(model.position, added)
    own = [part for part in attentions(model) if not part.cross]
    for part in own:
        assert (part.projection.rotation is not None) == (position == "rotary")
        bias = {"alibi": ALiBi, "relative": Relative}.get(position, type(None))
        assert isinstance(part.mechanism.bias, bias)
    for part in set(attentions(model)) - set(own):
        assert part.projection.rotation is None and part.mechanism.bias is None


@pytest.mark.parametrize("position", get_args(Positions))
def test_distances_know_no_origin_and_what_is_added_does(position: str, float64: None) -> None:
    model = gpt(**SMALL, position=position).eval()
    tokens, pos = torch.randint(0, 11, (2, 9)), torch.arange(9).expand(2, 9)
    near, far = (model.logits(tokens, None, Context(pos + n, run=True)).y for n in (0, 40))
    assert torch.allclose(near, far, atol=1e-10) == (position not in ("learned", *SINUSOIDS))
    apart = model.logits(tokens, None, Context(pos * 2, run=True)).y
    assert torch.allclose(near, apart, atol=1e-10) == (position == "none")


@pytest.mark.parametrize("norm", get_args(Norms))
@pytest.mark.parametrize("member", MEMBERS)
def test_norm_says_where_norms_stand(member: Callable[..., Any], norm: str) -> None:
    model = member(**SMALL, norm=norm)
    kinds = {type(part) for part in model.modules() if isinstance(part, PreNorm | PostNorm)}
    assert kinds == {PreNorm if norm == "pre" else PostNorm}
    stacks = [model.encoder, model.decoder] if member is transformer else [model.body]
    assert [stack.norm is not None for stack in stacks] == [norm == "pre"] * len(stacks)


def test_the_pattern_is_that_of_every_block_and_the_decoder_never_reads_ahead() -> None:
    patterns: Callable[[Any], list[Any]] = lambda model: [part.mechanism.pattern for part in attentions(model)]  # noqa: E731
    assert patterns(gpt(**SMALL, pattern="Causal() & Band(4)")) == [Causal() & Band(4)]
    assert patterns(bert(**SMALL, pattern="Band(4)")) == [Band(4)]
    assert patterns(transformer(**SMALL, pattern="Band(4)")) == [Band(4), Causal() & Band(4), Full()]
    assert patterns(transformer(**SMALL)) == [Full(), Causal(), Full()]


@pytest.mark.parametrize("member", MEMBERS)
def test_head_dim_is_free_of_the_width(member: Callable[..., Any]) -> None:
    """Row 118: W^q of d x heads * head_dim, and back by as many columns; also where heads do not divide d."""
    for part in attentions(member(**{**SMALL, "heads": 3}, head_dim=10)):
        assert part.projection.matrix("q")[0].shape == (30, 16)
        assert part.aggregation.linear.weight.shape == (16, 30)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_per_layer_adds_positions_anew_before_each_block(position: str, float64: None) -> None:
    """Row 6, Al-Rfou: x^l + P^l, a table of each layer and none before the first."""
    table = {"length": 9} if position == "learned" else {}
    model = gpt(**{**SMALL, "depth": 3}, position=position, per_layer=True, **table).eval()
    blocks = list(model.body.layers)
    assert model.position is None and all(isinstance(block, PositionedBlock) for block in blocks)
    tables = {id(weight) for block in blocks for weight in block.position.parameters()}
    assert len(tables) == (3 if position == "learned" else 0)
    assert model.window == (9 if position == "learned" else None)
    tokens, pos = torch.randint(0, 11, (2, 7)), torch.arange(7).expand(2, 7)
    x = model.scale * model.embedding(tokens)
    for block in blocks:
        x = block.block(x + block.position(pos), None, Context(pos, run=True)).y
    torch.testing.assert_close(model.logits(tokens).y, model.head(model.body.norm(x)))


def test_tensor2tensors_sinusoids_are_all_sines_then_all_cosines_at_its_frequencies(float64: None) -> None:
    added = gpt(**SMALL, position="tensor2tensor").double().position(torch.tensor([[3]]))[0, 0]
    for n in range(8):
        angle = 3 * 10000 ** (-n / 7)
        assert added[n].item() == pytest.approx(math.sin(angle)) and added[n + 8].item() == pytest.approx(
            math.cos(angle)
        )


def test_sines_first_are_the_papers_sinusoids_in_another_order(float64: None) -> None:
    pos = torch.arange(40)[None]
    paper, added = (
        gpt(**SMALL, position=position).double().position(pos) for position in ("sinusoidal", "sines_first")
    )
    assert torch.equal(added, torch.cat([paper[..., ::2], paper[..., 1::2]], -1))


def test_a_pattern_for_each_block() -> None:
    of: Callable[[Any], list[Any]] = lambda model: [part.mechanism.pattern for part in attentions(model)]  # noqa: E731
    words = parse_keywords(gpt, ["depth=2", "pattern=Causal() & Band(4, 0), Causal() & Strided(4)"])
    assert of(gpt(**{**SMALL, **words})) == [Causal() & Band(4, 0), Causal() & Strided(4)]
    assert of(bert(**{**SMALL, "depth": 2}, pattern=("Band(4)", "Full()"))) == [Band(4), Full()]
    pair = of(transformer(**{**SMALL, "depth": 2}, pattern=("Band(4)", "Full()")))
    assert pair == [Band(4), Full(), Causal() & Band(4), Full(), Causal(), Full()]
    for member in MEMBERS:
        with pytest.raises(
            ValueError,
            match=r"pattern=\('Full\(\)',\) has the wrong length: got 1, expected depth=2; "
            "give one value, or one for each layer",
        ):
            member(**{**SMALL, "depth": 2}, pattern=("Full()",))


def test_per_layer_is_of_positions_that_are_added() -> None:
    with pytest.raises(ValueError, match="position='rotary' already acts in every layer"):
        gpt(**SMALL, position="rotary", per_layer=True)


WRONG = [
    ({"position": "rotary", "head_dim": 5}, "got 5 dimensions, expected an even number, at most head_dim=5"),
    ({"heads": 3}, "d=16 is not a multiple of heads=3"),
    ({"head_dim": 0}, "head_dim=0"),
    ({"pattern": "Bnd(4)"}, "Bnd in 'Bnd\\(4\\)' is not a pattern; the nearest is 'Band'"),
    ({"length": 0}, "length=0"),
]


@pytest.mark.parametrize(("keywords", "says"), WRONG)
@pytest.mark.parametrize("member", MEMBERS)
def test_what_makes_no_sense_is_refused_in_one_line(
    member: Callable[..., Any], keywords: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        member(**{**SMALL, **keywords})
    assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="got 'rotery'"):
        member(position="rotery")


@pytest.mark.parametrize(
    "name", [name for name, member in members().items() if "depth" in signature(member).parameters]
)
def test_no_layers_are_refused_by_the_keyword(name: str) -> None:
    for depth in (0, -1):
        with pytest.raises(ValueError, match=f"^depth={depth}: give a whole number of at least 1"):
            members()[name](depth=depth)


def first_loss(model: Any) -> float:
    tokens = torch.randint(0, 256, (1, 65))
    batch: Tensor | tuple[Tensor, Tensor] = (tokens, tokens.flip(1)) if model.reads == "pairs" else tokens
    with torch.no_grad():
        return float(model.eval()(batch).parts["nll"])


STARTS: list[Any] = [*(lambda p=p, n=n: gpt(position=p, norm=n) for p in get_args(Positions) for n in get_args(Norms))]
STARTS += [
    bert,
    lambda: bert(position="sinusoidal", norm="pre"),
    transformer,
    lambda: transformer(d=128, heads=4, depth=3, norm="pre"),
]
STARTS += [bloom, llama, da_transformer, lambda: shaw(depth=2), lambda: gpt(per_layer=True)]
STARTS += [lambda: realformer(depth=2, form="decoder")]


@pytest.mark.parametrize("make", STARTS)
def test_the_first_loss_is_within_a_tenth_of_the_log_of_the_vocabulary(make: Callable[[], Any]) -> None:
    """A25: a tied head that favours the token just read started bloom at 10.0 and the base transformer at 13."""
    assert abs(first_loss(make()) / math.log(256) - 1) < 0.1


@pytest.mark.parametrize("name", members())
def test_every_member_of_bytes_begins_near_the_log_of_the_vocabulary(name: str) -> None:
    accepted = signature(members()[name]).parameters
    keywords = {key: value for key, value in (("d", 64), ("depth", 2), ("heads", 4)) if key in accepted}
    needs: Any = members()[name].needs  # type: ignore[attr-defined]
    every = {key: parameter.default for key, parameter in accepted.items()} | keywords
    model = members()[name](**{key: value for key, value in keywords.items() if has_effect(key, needs, every)})
    if model.reads in ("text", "masked", "pairs"):
        assert abs(first_loss(model) / math.log(256) - 1) < 0.1


def test_vectors_by_head_without_relative_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="by_head=True has no effect with position='rotary'"):
        Wiring(16, 2, position="rotary", by_head=True)

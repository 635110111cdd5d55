"""Star-Transformer's rounds: the equations token by token, rings of few tokens, padding, and what is refused."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.cli.__main__ import run
from kinformer.core.layer import Context
from kinformer.core.patterns.document import Document
from kinformer.core.token_positions import context_of_tokens
from kinformer.members.star_classifier import star_classifier
from kinformer.members.star_transformer import star_transformer
from kinformer.nn.depth.star import StarRound, StarRounds

pytestmark = pytest.mark.usefixtures("float64")

D, HEADS = 8, 2


def rounds(count: int = 2) -> StarRounds:
    body = StarRounds([StarRound(D, HEADS) for _ in range(count)])
    for weight in body.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return body.eval()


def attended(part: Any, query: Tensor, context: Tensor) -> Tensor:
    """MHA of one vector over a few."""
    q, k, v = (
        F.linear(x, *part.projection.matrix(name)).view(-1, HEADS, D // HEADS)
        for name, x in zip("qkv", (query[None], context, context), strict=True)
    )
    y = [torch.softmax(k[:, h] @ q[0, h] / (D // HEADS) ** 0.5, 0) @ v[:, h] for h in range(HEADS)]
    return part.aggregation.linear(torch.cat(y))


def by_hand(body: StarRounds, e: Tensor) -> tuple[Tensor, Tensor]:
    n, h, s = len(e), e, e.mean(0)
    for block in body.rounds:
        around = [torch.stack([h[(i - 1) % n], h[i], h[(i + 1) % n], e[i], s]) for i in range(n)]
        h = torch.stack([block.ring_norm(attended(block.ring, h[i], around[i]).relu()) for i in range(n)])
        s = block.relay_norm(attended(block.relay, s, torch.cat([s[None], h])).relu())
    return h, s


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_rounds_are_the_equations(length: int) -> None:
    body, e = rounds(), torch.randn(length, D)
    for ours, theirs in zip(body.read(e[None], Context.of_sequence(e[None])), by_hand(body, e), strict=True):
        torch.testing.assert_close(ours[0], theirs)


def test_the_ring_closes_where_each_row_ends() -> None:
    body, x = rounds(), torch.randn(3, 7, D)
    real = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [0, 0] + [1] * 5]).bool()
    h, s = body.read(x, Context.of_sequence(x, real))
    for row, mask in enumerate(real):
        expected = by_hand(body, x[row, mask])
        torch.testing.assert_close(h[row, mask], expected[0])
        torch.testing.assert_close(s[row], expected[1])


def test_one_round_reads_neighbours_on_the_ring_and_all_through_the_relay() -> None:
    x = torch.randn(1, 9, D, requires_grad=True)
    body = rounds(1)
    for weight in body.rounds[0].ring.projection.parameters():
        assert weight.requires_grad
    (flow,) = torch.autograd.grad(body(x).y[0, 0].sum(), x)
    assert (flow[0].abs().sum(-1) > 0).all()  # by the mean, as which the relay begins
    body.mean = lambda e, ctx: e.new_zeros(len(e), 1, D)  # type: ignore[method-assign]
    (flow,) = torch.autograd.grad(body(x).y[0, 0].sum(), x)
    assert (flow[0].abs().sum(-1) > 0).tolist() == [n in (0, 1, 8) for n in range(9)]


@pytest.mark.parametrize("form", ["paper", "published"])
def test_a_text_is_its_largest_tokens_mixed_with_the_relay_or_the_relay_alone(form: Any) -> None:
    """Guo et al., section 3.4, and (s + max_i h_i) / 2 of the authors' code."""
    tokens = torch.tensor([[3, 1, 4, 1, 2], [2, 0, 4, -1, -1]])
    for pool in ("mixed", "relay"):
        model: Any = star_classifier(d=8, depth=2, heads=2, form=form, pool=pool, classes=3, vocab=5).eval()
        for row in tokens:
            row = row[row >= 0][None]
            ctx = context_of_tokens(row)
            h, s = model.body.read(model.embed_tokens(row, ctx), ctx)
            pooled = (h[0].amax(0) + s[0]) / 2 if pool == "mixed" else s[0]
            torch.testing.assert_close(model.scores(row)[0], model.head(pooled))
        if form == "paper":
            torch.testing.assert_close(model.scores(tokens)[1:], model.scores(tokens[1:, :3]))


@pytest.mark.prove
@pytest.mark.parametrize("pool", ["mixed", "relay"])
def test_the_command_line_trains_it_to_tell_texts_apart_from_what_a_masked_one_knows(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The letter that comes twice in a row says the class; three classes, so guessing is right a third of the time."""
    rng = random.Random(0)
    words = ["".join(rng.choices("xyz", k=8)) for _ in range(240)]
    rows = [f"{'abc'[n % 3]}\t{word[:4]}{'abc'[n % 3] * 2}{word[4:]}" for n, word in enumerate(words)]
    (tmp_path / "rows.tsv").write_text("\n".join(rows))
    (tmp_path / "text").write_text("\n".join(rows))
    sizes = ["d=16", "depth=1", "heads=2", "length=16", "--length", "16", "--batch", "16"]
    masked, out = str(tmp_path / "masked"), str(tmp_path / "run")
    text, labelled = f"text={tmp_path / 'text'}", f"labelled={tmp_path / 'rows.tsv'}"
    assert run(["train", "star_transformer", *sizes, "--steps", "2", "--data", text, "--out", masked]) == 0
    options = [f"pool={pool}", "--steps", "40", "--lr", "1e-2", "--from", masked]
    assert run(["train", "star_classifier", *sizes, *options, "--data", labelled, "--out", out]) == 0
    capsys.readouterr()
    assert run(["evaluate", out, "--data", labelled, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] > 0.8


def test_what_it_cannot_read_is_refused() -> None:
    body, x = rounds(), torch.randn(1, 5, D)
    whole = Context.of_sequence(x)
    with pytest.raises(ValueError, match=r"without ctx.only and ctx.also"):
        body(x, None, whole.replace(only=Document(torch.zeros(1, 5, dtype=torch.long))))
    with pytest.raises(ValueError, match="a ring needs the tokens in the order of their positions"):
        body(x, None, Context(whole.pos))
    with pytest.raises(ValueError, match="rounds=0"):
        StarRounds([])


@pytest.mark.parametrize("form", ["paper", "published"])
def test_the_member_has_both_forms_and_learns(form: Any) -> None:
    model = star_transformer(d=16, depth=2, heads=2, form=form, position="none", vocab=5)
    model(torch.randint(0, 5, (2, 9))).total.backward()
    silent = [name for name, weight in model.named_parameters() if weight.grad is None]
    # nobody reads the relay after the last round
    assert all("rounds.1.relay" in name for name in silent), silent

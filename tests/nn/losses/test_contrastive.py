"""The contrastive loss by a loop, parts that are read alone, and parts that are wholly hidden."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.core.batch import TokenBatch
from kinformer.core.token_positions import context_of_tokens
from kinformer.members.etc import etc
from kinformer.models.contrastive_mlm import ContrastiveMLM
from kinformer.models.mlm import MLM
from kinformer.models.segments import segments
from kinformer.nn.losses.contrastive import Contrastive

pytestmark = pytest.mark.usefixtures("float64")

TEXTS = (b"Ab c. De f. Ghi. Jk. L m n. Op. ", b"No more. Yes. Here. And there it w")


def make_model(**keywords: Any) -> ContrastiveMLM:
    model = etc(**{"d": 16, "depth": 2, "heads": 2, "radius": 3, "tokens": 8, "contrast": 0.25, **keywords})
    assert isinstance(model, ContrastiveMLM)
    return model.eval()


def batch() -> torch.Tensor:
    longest = max(map(len, TEXTS))
    return torch.tensor([list(text) + [-1] * (longest - len(text)) for text in TEXTS])


def test_the_loss_is_that_of_the_equation() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    hidden, is_present = torch.tensor([[1, 0, 1], [1, 1, 1]]) > 0, torch.tensor([[1, 1, 1], [1, 0, 0]]) > 0
    parts = [(r, n) for r in range(2) for n in range(3) if is_present[r, n]]
    losses = []
    for part in parts:
        if hidden[part]:
            scores = {other: float(a[part] @ b[other]) for other in parts}
            losses.append(-math.log(math.exp(scores[part]) / sum(math.exp(s) for s in scores.values())))
    torch.testing.assert_close(float(Contrastive()(a, b, hidden, is_present)), sum(losses) / len(losses))
    assert float(Contrastive()(a, b, hidden & False, is_present)) == 0


@torch.no_grad()
@pytest.mark.parametrize("projections", ["reader", "four", "shared", "own"])
def test_a_part_apart_is_read_as_if_it_were_the_whole_text(projections: str) -> None:
    model, tokens = make_model(projections=projections), batch()
    body, ctx = model.body, context_of_tokens(tokens)
    labelled = ctx.replace(labels={"segment": segments(tokens)})
    actual = body.read_nodes_and_text(model.embed_tokens(tokens, ctx), body.separate_segments(labelled)).y[:, : body.n]
    for r, row in enumerate(segments(tokens)):
        for n in range(int(row.max()) + 1):
            alone = tokens[r, row == n][None]
            own = context_of_tokens(alone)
            recorded = body.node_context(own.replace(labels={"segment": torch.zeros_like(alone)}))
            torch.testing.assert_close(
                actual[r, n], body.read_nodes_and_text(model.embed_tokens(alone, own), recorded).y[0, 0]
            )


@torch.no_grad()
def test_a_hidden_part_is_told_by_its_context_alone() -> None:
    model, tokens = make_model(), batch()
    segment = segments(tokens)
    hidden, is_present = model.parts(tokens, segment, fixed=True, seed=1)
    assert is_present.sum(1).tolist() == [6, 4] and bool(hidden.any()) and bool((is_present | ~hidden).all())
    _, chosen = model.hide(tokens, fixed=True, seed=1)
    for r in range(2):
        firsts = [int((segment[r] == n).nonzero()[0, 0]) for n in range(int(is_present[r].sum()))]
        want = [n for n, first in enumerate(firsts) if chosen[r, first] >= 0]
        want = want or [int(segment[r, int((chosen[r] >= 0).nonzero()[0, 0])])]  # one at least
        assert hidden[r].nonzero()[:, 0].tolist() == want
    read: list[torch.Tensor] = []
    inner = model.embed_tokens
    model.embed_tokens = lambda tokens, ctx: (read.append(tokens), inner(tokens, ctx))[1]  # type: ignore[method-assign, func-returns-value]
    loss = model(tokens)
    masked = torch.stack([hidden[r, segment[r].clamp_min(0)] & (segment[r] >= 0) for r in range(2)])
    assert bool((read[0][masked] == model.mask).all()) and torch.equal(read[1], tokens)
    _, targets = model.hide(tokens, fixed=True)
    assert int(loss.count) == int(((targets >= 0) & ~masked).sum())
    want = 0.75 * loss.parts["nll"] + 0.25 * loss.parts["contrast"]
    torch.testing.assert_close(loss.total, want)


def test_the_last_global_token_is_hidden_only_where_it_stands_for_one_part() -> None:
    model, tokens = make_model(tokens=4), batch()
    model.hide = lambda tokens, **_: (tokens, tokens)  # type: ignore[method-assign, assignment]
    hidden, is_present = model.parts(tokens, segments(tokens), fixed=True, seed=0)
    assert hidden.tolist() == [[True, True, True, False], [True] * 4] and bool(is_present.all())


def test_what_is_scored_or_packed_is_learned_as_by_an_mlm() -> None:
    model, tokens = make_model(), batch()
    packed = TokenBatch(tokens, tokens == ord("e"))
    assert set(model(packed).parts) == {"nll"}
    torch.testing.assert_close(model(packed).total, MLM.forward(model, packed).total)


def document(rng: random.Random) -> str:
    """Four sentences that begin with the document's own word."""
    word = "".join(rng.choices("abcdefgh", k=4)).capitalize()
    return "\n".join(f"{word} {''.join(rng.choices('xyz', k=3))}." for _ in range(4))


@pytest.mark.prove
def test_the_command_line_trains_it_from_documents(tmp_path: Path) -> None:
    """Of 8 documents of 4 sentences guessing costs ln 32, and knowing the document ln 4: on unseen ones more is won."""
    rng = random.Random(0)
    (tmp_path / "text").write_text("\n\n".join(document(rng) for _ in range(600)))
    sizes = ["d=32", "depth=2", "heads=2", "radius=8", "tokens=6", "clip=4", "--length", "64", "--batch", "8"]
    options = ["--steps", "600", "--lr", "2e-3", "--data", f"text={tmp_path / 'text'},documents=blank"]
    losses = {}
    for contrast in ("0.2", "0.0"):
        out = str(tmp_path / contrast)
        assert run(["train", "etc", *sizes, f"contrast={contrast}", *options, "--out", out]) == 0
        model = etc(d=32, depth=2, heads=2, radius=8, tokens=6, clip=4, contrast=0.2)
        assert isinstance(model, ContrastiveMLM)
        model.load_state_dict(load(out).state_dict())
        unseen = [list(document(rng).encode()) for _ in range(8)]
        longest = max(map(len, unseen))
        tokens = torch.tensor([row + [-1] * (longest - len(row)) for row in unseen])
        losses[contrast] = model.eval()(tokens).parts["contrast"].item()
    assert losses["0.2"] < 0.8 * math.log(32) < losses["0.0"], losses


def test_judged_as_an_mlm_and_refused_without_parts() -> None:
    model, tokens = make_model(), batch()
    torch.testing.assert_close(model.judge(tokens).totals, MLM.judge(model, tokens).totals)
    assert type(etc(d=16, depth=1, heads=2)) is MLM
    with pytest.raises(ValueError, match="GlobalTokens"):
        ContrastiveMLM(11, 16, model.body.layer)
    with pytest.raises(ValueError, match="segment="):
        ContrastiveMLM(11, 16, model.body)

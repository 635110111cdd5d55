"""Seq2Seq: against loops over single rows without padding."""

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.heads import Keys
from kinformer.core.layer import Context, Out, State
from kinformer.core.loss import Penalty
from kinformer.core.state import fork, leaves, reset, select
from kinformer.decoding.generate import generate
from kinformer.members.transformer import transformer
from kinformer.models.seq2seq import Seq2Seq, frame_target
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP

VOCAB = 9
SOURCES = [[1, 2, 3, 4, 5], [6], [0, 8, 7]]
TARGETS = [[2, 2], [7, 1, 0, 3], [5]]


@pytest.fixture
def model(float64: None) -> Seq2Seq:
    return make_model(10)


def make_model(seed: int) -> Seq2Seq:
    """A model that says something: with seed 10 many tokens and no end, with seed 3 an end after one to three."""
    torch.manual_seed(seed)
    model = transformer(d=16, depth=2, heads=2, hidden=24, vocab=VOCAB, dropout=0.0)
    # large embeddings and a sharp head of its own, or an untrained model would say one token for ever
    model.head.weight = nn.Parameter(torch.randn_like(model.head.weight))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.15)
        model.embedding.weight.mul_(2)
    return model


def padded(rows: list[list[int]], side: str) -> Tensor:
    width = max(map(len, rows)) + 1
    pads = [[-1] * (width - len(row)) for row in rows]
    return torch.tensor([pad + row if side == "left" else row + pad for pad, row in zip(pads, rows, strict=True)])


def one_row(row: list[int]) -> Tensor:
    return torch.tensor([row])


def log_probabilities(model: Seq2Seq, source: list[int], target: list[int]) -> Tensor:
    """Of each entry, after begin and after each token of the target: one row, no padding, no state."""
    return model.logits(one_row([model.begin, *target]), source=one_row(source)).y[0].log_softmax(-1)


# What it reads and writes --------------------------------------------------------------------------------------------


def test_framed_puts_begin_before_and_end_behind() -> None:
    target = torch.tensor([[-1, 4, 5, -1], [4, 5, 6, 7], [-1, -1, -1, 3], [-1, -1, -1, -1], [3, -1, -1, -1]])
    read, targets = frame_target(target, (21,), 20)
    for row, want, given_row in zip(read.tolist(), targets.tolist(), target.tolist(), strict=True):
        tokens = [n for n in given_row if n >= 0]
        pairs = [(r, w) for r, w in zip(row, want, strict=True) if r >= 0 or w >= 0]
        assert pairs == (list(zip([21, *tokens], [*tokens, 20], strict=True)) if tokens else [])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_the_loss_is_the_mean_over_tokens_and_end(model: Seq2Seq, side: str, smoothing: float) -> None:
    model.smoothing = smoothing
    nll, smooth, count = 0.0, 0.0, 0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        logp = log_probabilities(model, source, target)
        assert logp.shape == (len(target) + 1, VOCAB + 1)
        for at, token in enumerate([*target, VOCAB]):
            expected = torch.full((VOCAB + 1,), smoothing / (VOCAB + 1))
            expected[token] += 1 - smoothing
            nll, smooth, count = nll - logp[at, token], smooth - (expected * logp[at]).sum(), count + 1
    loss = model((padded(SOURCES, side), padded(TARGETS, side)))
    torch.testing.assert_close(loss.parts["nll"], nll / count, rtol=0, atol=1e-12)
    torch.testing.assert_close(loss.total, smooth / count, rtol=0, atol=1e-12)


def test_begin_stands_above_end_and_learns_from_being_read(model: Seq2Seq) -> None:
    assert (model.end, model.begin) == (VOCAB, VOCAB + 1)
    model((padded(SOURCES, "left"), padded(TARGETS, "left"))).total.backward()
    assert bool(model.embedding.weight.grad[model.begin].abs().sum() > 0)


def test_padding_and_batch_mates_change_no_gradient(model: Seq2Seq) -> None:
    def gradients(side: str) -> list[Tensor]:
        model.zero_grad()
        model((padded(SOURCES, side), padded(TARGETS, side))).total.backward()
        return [weight.grad.clone() for weight in model.parameters()]

    total = None
    for source, target in zip(SOURCES, TARGETS, strict=True):
        model.zero_grad()
        (model((one_row(source), one_row(target))).total * (len(target) + 1)).backward()
        row_gradients = [weight.grad.clone() for weight in model.parameters()]
        total = row_gradients if total is None else [a + b for a, b in zip(total, row_gradients, strict=True)]
    count = sum(len(target) + 1 for target in TARGETS)
    for left, right, alone in zip(gradients("left"), gradients("right"), total, strict=True):
        torch.testing.assert_close(left, alone / count, rtol=0, atol=1e-12)
        torch.testing.assert_close(right, alone / count, rtol=0, atol=1e-12)


def test_a_pair_without_tokens_has_no_loss_and_no_nan(model: Seq2Seq) -> None:
    with_empty = model((padded([*SOURCES, []], "left"), padded([*TARGETS, []], "left")))
    without = model((padded(SOURCES, "left"), padded(TARGETS, "left")))
    torch.testing.assert_close(with_empty.total, without.total, rtol=0, atol=1e-12)
    empty = model((torch.full((2, 3), -1), torch.full((2, 2), -1)))
    empty.total.backward()
    assert float(empty.total.detach()) == 0.0
    assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None)


def test_padding_between_tokens_is_refused(model: Seq2Seq) -> None:
    with pytest.raises(ValueError, match="marks padding between two tokens of a row"):
        model((torch.tensor([[1, -1, 2]]), torch.tensor([[1, 2, 3]])))


def test_without_a_source_it_says_what_to_pass(model: Seq2Seq) -> None:
    with pytest.raises(ValueError, match="got no source"):
        model.logits(torch.tensor([[1]]), model.start(1, 4))


# State ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [[1] * 7, [3, 4], [1, 5, 1], [2, 1, 4]])
def test_chunks_equal_the_whole(model: Seq2Seq, cuts: list[int]) -> None:
    source = padded(SOURCES, "right")
    target = torch.randint(0, VOCAB, (3, 7))
    target[0, :2] = -1
    target[1, 6:] = -1
    whole = model.logits(target, source=source).y
    state, pieces, at = model.start(3, 7), [], 0
    for n, size in enumerate(cuts):
        out = model.logits(target[:, at : at + size], state, source=source if n == 0 else None)
        state, at = out.state, at + size
        pieces.append(out.y)
    real = target >= 0
    torch.testing.assert_close(torch.cat(pieces, 1)[real], whole[real], rtol=0, atol=1e-12)
    assert state.now.tolist() == real.sum(1).tolist()


def test_a_context_may_bring_the_encoded_source(model: Seq2Seq) -> None:
    source, target = padded(SOURCES, "left"), torch.randint(0, VOCAB, (3, 4))
    encoded, pos = model.encode(source)
    at = torch.arange(4).expand(3, -1)
    out = model.logits(target, None, Context(at, run=True, source=encoded.y, source_pos=pos))
    assert torch.equal(out.y, model.logits(target, source=source).y)


def test_select_fork_and_reset(model: Seq2Seq) -> None:
    source, target = padded(SOURCES, "right"), torch.randint(0, VOCAB, (3, 4))
    state = model.logits(target, model.start(3, 12), source=source).state
    next_tokens = torch.randint(0, VOCAB, (3, 2))
    expected = model.logits(next_tokens, fork(state)).y
    rows = torch.tensor([2, 0, 2, 1])
    torch.testing.assert_close(
        model.logits(next_tokens[rows], select(state, rows)).y, expected[rows], rtol=0, atol=1e-12
    )

    before = [leaf.clone() for _, leaf in leaves(state)]
    model.logits(next_tokens, fork(state))
    assert all(torch.equal(a, b) for (_, a), b in zip(leaves(state), before, strict=True))

    other = padded([[4, 4], [3, 2, 1], [5, 6, 7, 8]], "left")
    fresh = reset(state, torch.tensor([False, True, False]))
    assert fresh.now.tolist() == [4, 0, 4]
    out = model.logits(next_tokens, fresh, source=other).y
    alone = model.logits(next_tokens[1:2], source=other[1:2]).y
    torch.testing.assert_close(out[1:2], alone, rtol=0, atol=1e-12)


# Generating ----------------------------------------------------------------------------------------------------------


def greedy(model: Seq2Seq, source: list[int], steps: int) -> list[int]:
    row: list[int] = []
    while len(row) < steps and VOCAB not in row:
        row.append(int(log_probabilities(model, source, row)[-1].argmax()))
    return row + [-1] * (steps - len(row))


def searched(model: Seq2Seq, source: list[int], steps: int, beam: int) -> list[int]:
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended = []
    for _ in range(steps):
        grown = [
            (score + p, [*row, token])
            for score, row in live
            for token, p in enumerate(log_probabilities(model, source, row)[-1].tolist())
        ]
        grown.sort(key=lambda g: -g[0])
        ended += [g for g in grown[:beam] if g[1][-1] == VOCAB]
        live = [g for g in grown if g[1][-1] != VOCAB][:beam]
    row = max(ended + live, key=lambda g: g[0])[1]
    return row + [-1] * (steps - len(row))


@pytest.mark.parametrize("seed", [3, 10])
def test_greedy_is_the_naive_loop(float64: None, seed: int) -> None:
    model = make_model(seed)
    expected = [greedy(model, source, 8) for source in SOURCES]
    for side, recompute in (("left", False), ("right", False), ("left", True)):
        generated = generate(model, None, 8, source=padded(SOURCES, side), temperature=0, recompute=recompute)
        assert generated.tolist() == expected


@pytest.mark.parametrize("seed", [3, 10])
@pytest.mark.parametrize("beam", [2, 4])
def test_beam_search_is_the_naive_one(float64: None, beam: int, seed: int) -> None:
    model = make_model(seed)
    expected = [searched(model, source, 5, beam) for source in SOURCES]
    for recompute in (False, True):
        generated = generate(model, None, 5, source=padded(SOURCES, "left"), beam=beam, recompute=recompute)
        assert generated.tolist() == expected


@pytest.mark.parametrize("beam", [1, 3])
def test_the_source_is_projected_once(model: Seq2Seq, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    model.encoder.register_forward_hook(lambda *_: reads.append("encoder"))
    cross = model.decoder.layers[0].layers[1]
    assert cross.cross
    keys = cross.projection.keys

    def noted(source: Tensor, pos: Tensor) -> Keys:
        reads.append(tuple(source.shape[:2]))
        return keys(source, pos)

    monkeypatch.setattr(cross.projection, "keys", noted)
    generate(model, None, 6, source=padded(SOURCES, "left"), temperature=0, beam=beam, stop=-7)
    assert reads == ["encoder", (3, 6)]


@pytest.mark.parametrize("beam", [1, 2])
def test_it_stops_when_every_row_has_ended(float64: None, beam: int) -> None:
    model, calls = make_model(3), []
    model.decoder.register_forward_hook(lambda *_: calls.append(1))
    generated = generate(model, None, 50, source=padded(SOURCES, "left"), temperature=0, beam=beam)
    assert generated.shape == (3, 50) and bool((generated == model.end).any(1).all())
    assert len(calls) < 15


def test_a_prompt_begins_with_begin(model: Seq2Seq) -> None:
    source = padded(SOURCES, "left")
    whole = generate(model, None, 6, source=source, temperature=0, stop=-7)
    prompt = torch.cat([torch.full((3, 1), model.begin), whole[:, :2]], 1)
    assert torch.equal(generate(model, prompt, 4, source=source, temperature=0, stop=-7)[:, 1:], whole)


def test_as_many_sources_as_prompts(model: Seq2Seq) -> None:
    with pytest.raises(ValueError, match="the prompt has 2 rows, but the source has 3"):
        generate(model, torch.tensor([[1], [2]]), 2, source=padded(SOURCES, "left"))


# What layers report, and dropout -------------------------------------------------------------------------------------


class Reporting(MLP):
    """A layer that reports a number per token, as halting does, and one on parameters."""

    def penalties(self) -> dict[str, Penalty]:
        return {"ponder": Penalty((), True), "norm": Penalty((self.up.bias,))}

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        out = super().forward(x, state, ctx)
        aux = {"ponder": ctx.pos + 2.0, "norm": self.up.bias.sum()}
        return out._replace(aux=aux, stats={"seen": (ctx.pos >= 0).sum()})


def test_penalties_are_means_over_real_tokens_of_encoder_and_decoder(float64: None) -> None:
    model = Seq2Seq(VOCAB, 16, Reporting(16), Stack([Reporting(16)]), penalties={"ponder": 0.5})
    loss = model((padded(SOURCES, "left"), padded(TARGETS, "right")))
    means = []
    for rows in (SOURCES, [[model.begin, *row] for row in TARGETS]):
        each = [at + 2.0 for row in rows for at in range(len(row))]
        means.append(sum(each) / len(each))
    assert set(loss.parts) == {"nll", "ponder", "norm"}
    torch.testing.assert_close(loss.parts["ponder"], torch.tensor(sum(means)), rtol=0, atol=1e-12)
    torch.testing.assert_close(loss.total, loss.parts["nll"] + 0.5 * loss.parts["ponder"], rtol=0, atol=1e-12)
    bias = model.encoder.up.bias.sum() + model.decoder.layers[0].up.bias.sum()
    torch.testing.assert_close(loss.parts["norm"], bias, rtol=0, atol=1e-12)
    assert {name: int(count) for name, count in loss.stats.items()} == {"encoder.seen": 9, "decoder.0.seen": 10}


def test_dropout_drops_embeddings_in_training_alone() -> None:
    model = Seq2Seq(VOCAB, 64, MLP(64), MLP(64), dropout=0.5)
    inputs: list[Tensor] = []
    for stack in (model.encoder, model.decoder):
        stack.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0].detach()))
    tokens = torch.randint(0, VOCAB, (20, 30))
    model.train().logits(tokens, source=tokens)
    model.eval().logits(tokens, source=tokens)
    shares = [float((x == 0).float().mean()) for x in inputs]
    assert all(abs(share - 0.5) < 0.02 for share in shares[:2]) and shares[2:] == [0.0, 0.0]


def test_an_untied_head_is_its_own() -> None:
    tied, untied = (Seq2Seq(VOCAB, 16, MLP(16), MLP(16), tie=tie) for tie in (True, False))
    assert tied.head.weight is tied.embedding.weight
    assert untied.head.weight is not untied.embedding.weight


# Published ids --------------------------------------------------------------------------------------------------------


def test_ids_of_a_target_may_be_among_the_tokens(float64: None) -> None:
    plain = transformer(d=16, depth=1, heads=2, hidden=24, vocab=VOCAB, dropout=0.0, smoothing=0.0)
    ours = transformer(
        d=16, depth=1, heads=2, hidden=24, vocab=VOCAB + 2, dropout=0.0, smoothing=0.0, begin=VOCAB + 1, end=VOCAB
    )
    ours.load_state_dict(plain.state_dict())
    source, target = padded(SOURCES, "left"), padded(TARGETS, "right")
    read = torch.tensor([[VOCAB + 1, 2, 3]])
    y = ours.logits(read, source=one_row([1, 2])).y
    assert y.shape[-1] == VOCAB + 2  # begin can be written, as any token
    torch.testing.assert_close(y[..., :-1], plain.logits(read, source=one_row([1, 2])).y, rtol=0, atol=1e-12)
    assert ours((source, target)).parts["nll"] > plain((source, target)).parts["nll"]
    with pytest.raises(ValueError, match="begin=11: give a whole number from 0 to 10"):
        transformer(d=16, depth=1, heads=2, hidden=24, vocab=VOCAB + 2, begin=VOCAB + 2)


def test_a_first_token_is_read_and_not_predicted(float64: None) -> None:
    model = transformer(d=16, depth=1, heads=2, hidden=24, vocab=VOCAB, begin=2, end=2, first=0, smoothing=0.0).eval()
    source, target = one_row([1, 2, 3]), [2, 7]  # the end may be among the target's tokens
    logp = model.logits(one_row([2, 0, *target]), source=source).y[0].log_softmax(-1)
    want = -(logp[1, 2] + logp[2, 7] + logp[3, 2]) / 3
    for side in ("left", "right"):
        torch.testing.assert_close(model((source, padded([target], side))).total, want, rtol=0, atol=1e-12)
    rows = generate(model, None, 3, source=source, temperature=0)
    again = generate(model, torch.tensor([[2, 0]]), 3, source=source, temperature=0)
    assert torch.equal(rows, again[:, 2:])

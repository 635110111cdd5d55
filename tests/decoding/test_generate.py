"""generate: against naive loops that read the whole row at each step."""

import itertools
import warnings
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import kinformer
from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import NoState
from kinformer.core.memo import Memo
from kinformer.core.patterns.full import Full
from kinformer.core.state import fork, leaves
from kinformer.core.token_positions import NumberedState
from kinformer.decoding.decoding_method import make_method
from kinformer.decoding.generate import generate, prepare
from kinformer.decoding.sampling import keep_top_k, keep_top_p
from kinformer.members.bloom import bloom
from kinformer.members.gpt import gpt
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from tests.decoding.writers import FORMS, VOCAB, writer


@pytest.fixture
def model(float64: None) -> LM:
    torch.manual_seed(3)
    return sharp(gpt(d=16, depth=2, heads=2, length=32, vocab=VOCAB))


def sharp(model: LM) -> LM:
    """Larger weights, so that the likeliest token is no accident of rounding and depends on the whole row."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.4)
    return model


def greedy(model: LM, prompt: list[int], steps: int) -> list[int]:
    row = list(prompt)
    for _ in range(steps):
        row.append(int(model.logits(torch.tensor([row])).y[0, -1].argmax()))
    return row


def log_probability(model: LM, row: list[int], start: int) -> float:
    """Of row[start:] given row[:start]."""
    logp = model.logits(torch.tensor([row])).y[0].log_softmax(-1).detach()
    return sum(float(logp[n - 1, row[n]]) for n in range(start, len(row)))


# Greedy --------------------------------------------------------------------------------------------------------------


def test_temperature_0_takes_the_likeliest(model: LM) -> None:
    tokens = generate(model, torch.tensor([[1, 2, 3], [6, 0, 5]]), 9, temperature=0)
    assert tokens.tolist() == [greedy(model, [1, 2, 3], 9), greedy(model, [6, 0, 5], 9)]


def test_it_is_a_public_name(model: LM) -> None:
    assert kinformer.generate is generate


def test_prompts_padded_on_the_left_give_what_each_gives_alone(model: LM) -> None:
    prompts = [[4], [1, 2, 3, 4, 5], [6, 0, 2]]
    padded = torch.tensor([[-1] * (5 - len(p)) + p for p in prompts])
    tokens = generate(model, padded, 8, temperature=0)
    expected = [greedy(model, p, 8) for p in prompts]
    assert [row[5 - len(p) :] for row, p in zip(tokens.tolist(), prompts, strict=True)] == expected
    assert torch.equal(tokens[:, :5], padded)


@pytest.mark.parametrize(("form", "beam"), [*((form, 1) for form in FORMS), ("learned", 2), ("memory", 2)])
@pytest.mark.filterwarnings("ignore:.*positions that this model has learned")
def test_prompts_of_any_lengths_give_what_each_gives_alone(form: str, beam: int, float64: None) -> None:
    model, prompts = writer(form), [[4], [1, 2, 3, 4, 5, 0, 3], [6, 0, 2]]
    padded = torch.tensor([[-1] * (7 - len(p)) + p for p in prompts])
    tokens = generate(model, padded, 7, temperature=0, beam=beam, stop=0).tolist()
    for row, prompt in zip(tokens, prompts, strict=True):
        alone = generate(model, torch.tensor([prompt]), 7, temperature=0, beam=beam, stop=0)[0]
        assert row[7 - len(prompt) :] == alone.tolist()


@pytest.mark.parametrize("beam", [1, 3])
def test_recompute_gives_the_same_without_a_state(model: LM, beam: int) -> None:
    prompt = torch.tensor([[-1, -1, 4], [1, 2, 3]])
    rows = [generate(model, prompt, 8, temperature=0, beam=beam, stop=2, recompute=r) for r in (False, True)]
    assert torch.equal(*rows)


def test_after_stop_comes_padding(model: LM) -> None:
    prompts = torch.tensor([[1, 2, 3], [6, 0, 5]])
    free = generate(model, prompts, 9, temperature=0)
    stop = int(free[0, 5])
    tokens = generate(model, prompts, 9, temperature=0, stop=stop)
    for row, stopped in zip(free.tolist(), tokens.tolist(), strict=True):
        end = row.index(stop, 3) + 1 if stop in row[3:] else len(row)
        assert stopped == row[:end] + [-1] * (len(row) - end)
    assert -1 in tokens[0].tolist()


def test_a_stopped_row_does_not_disturb_the_others(model: LM) -> None:
    prompts = torch.tensor([[1, 2, 3], [6, 0, 5], [0, 0, 0]])
    stop = int(generate(model, prompts, 1, temperature=0)[0, -1])
    together = generate(model, prompts, 9, temperature=0, stop=stop)
    alone = torch.cat([generate(model, row[None], 9, temperature=0, stop=stop) for row in prompts])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:.*positions that this model has learned")
def test_rows_that_end_at_different_steps_are_those_that_each_gives_alone(form: str, float64: None) -> None:
    model, prompts, steps = writer(form, seed=8), [[1, 2, 3], [4, 0, 6], [5, 5, 2], [3, 6, 1]], 8
    free = [row[3:] for row in generate(model, prompts, steps, temperature=0, stop=-1).tolist()]
    ends = {token: [row.index(token) if token in row else steps for row in free] for token in range(VOCAB)}
    stop = max(ends, key=lambda token: len(set(ends[token])))
    assert len(set(ends[stop])) > 1
    together = generate(model, prompts, steps, temperature=0, stop=stop)
    alone = torch.cat([generate(model, [prompt], steps, temperature=0, stop=stop) for prompt in prompts])
    assert torch.equal(together, alone)


def test_an_ended_row_is_padding_and_no_row_is_before_one_has_ended(model: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, steps, contexts = torch.tensor([[1, 2, 3], [6, 0, 5], [0, 0, 0]]), 9, list[Context]()
    free = generate(model, prompts, steps, temperature=0)[:, 3:].tolist()
    firsts = {token: min(row.index(token) if token in row else steps for row in free) for token in range(VOCAB)}
    stop = next(token for token, first in firsts.items() if 0 < first < 5)
    read = model.logits
    monkeypatch.setattr(model, "logits", lambda x, state, ctx, **of: contexts.append(ctx) or read(x, state, ctx, **of))
    rows = generate(model, prompts, steps, temperature=0, stop=stop)
    for column, ctx in enumerate(contexts, 2):  # the last column that each step reads
        assert torch.equal(ctx.pos[:, -1] < 0, rows[:, column] < 0)
        assert ctx.full == bool((rows[:, 3 : column + 1] != stop).all())
    assert {ctx.full for ctx in contexts[1:]} == {True, False}


def test_rows_of_earlier_steps_stay_and_are_not_copied_for_each_token(model: LM) -> None:
    method = make_method(temperature=0, top_k=None, top_p=None, min_p=None, repetition_penalty=None, prompt_lookup=None)
    task = prepare(model, [[1, 2, 3], [6, 0, 5]], 20, method, -1, None, None, None, False, False)
    with evaluating(model):
        rows = list(method.steps(task.reader, task.text, 20, task.ends, None, None))
    assert [row.shape[1] for row in rows] == list(range(4, 24))
    assert all(torch.equal(row, rows[-1][:, : row.shape[1]]) for row in rows)
    assert len({row.untyped_storage().data_ptr() for row in rows}) == 3  # room for 6, 12 and 24 tokens


def test_a_model_that_reads_whole_rows_gets_them_without_gaps(model: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, read = list[bool](), model.logits
    monkeypatch.setattr(model, "logits", lambda x, *of, **by: whole.append(x.is_contiguous()) or read(x, *of, **by))
    generate(model, torch.tensor([[1, 2, 3], [6, 0, 5]]), 9, temperature=0, recompute=True)
    assert len(whole) == 9 and all(whole)


def test_a_state_goes_on(model: LM) -> None:
    model.eval()
    prompts = torch.tensor([[-1, 2, 3, 4], [6, 0, 5, 1]])
    whole = generate(model, prompts, 6, temperature=0)
    state = model.logits(prompts[:, :-1], model.start(2, 10, dtype=torch.float64)).state
    checkpoint = fork(state)
    for beam in (1, 2):
        tokens = generate(model, prompts[:, -1:], 6, temperature=0, state=fork(checkpoint), beam=beam)
        assert torch.equal(tokens, generate(model, prompts, 6, temperature=0, beam=beam)[:, 3:])
    assert torch.equal(generate(model, prompts[:, -1:], 6, temperature=0, state=state), whole[:, 3:])


def test_no_steps_give_the_prompt(model: LM) -> None:
    prompt = torch.tensor([[1, 2, 3]])
    assert torch.equal(generate(model, prompt, 0), prompt)
    assert torch.equal(generate(model, prompt, 0, beam=3), prompt)


# Drawing -------------------------------------------------------------------------------------------------------------


def test_draws_follow_the_probabilities(model: LM) -> None:
    rows, temperature = 4000, 1.7
    tokens = generate(model, torch.tensor([[1, 2, 3]]).expand(rows, -1), 1, temperature=temperature, seed=0)[:, -1]
    expected = (model.logits(torch.tensor([[1, 2, 3]])).y[0, -1] / temperature).softmax(-1)
    frequencies = tokens.bincount(minlength=VOCAB) / rows
    assert (frequencies - expected).abs().max() < 4 * (0.25 / rows) ** 0.5  # four standard deviations of the widest


def test_a_seed_draws_the_same_and_another_seed_does_not(model: LM) -> None:
    prompt = torch.tensor([[1, 2, 3]])
    first, repeated, other = (generate(model, prompt, 20, temperature=2.0, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first, repeated)
    assert not torch.equal(first, other)


def test_a_seed_leaves_the_global_generator_alone(model: LM) -> None:
    before = torch.get_rng_state()
    generate(model, torch.tensor([[1, 2, 3]]), 5, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    generate(model, torch.tensor([[1, 2, 3]]), 5)
    assert not torch.equal(before, torch.get_rng_state())


def test_top_k_and_top_p_draw_only_what_they_keep(model: LM) -> None:
    prompt = torch.tensor([[1, 2, 3]]).expand(500, -1)
    logits = model.logits(prompt[:1]).y[0, -1] / 3.0
    order = logits.argsort(descending=True).tolist()
    tokens = generate(model, prompt, 1, temperature=3.0, top_k=3, seed=0)[:, -1]
    assert set(tokens.tolist()) == set(order[:3])
    probability = logits.softmax(-1)[order].tolist()
    fewest = next(n for n in range(1, VOCAB + 1) if sum(probability[:n]) >= 0.6)
    assert 1 < fewest < VOCAB
    tokens = generate(model, prompt, 1, temperature=3.0, top_p=0.6, seed=0)[:, -1]
    assert set(tokens.tolist()) == set(order[:fewest])


@pytest.mark.parametrize("temperature", [5e-324, 1e-50, 1e-40, 1e-37, 1e-3])
def test_a_cold_draw_is_the_likeliest(model: LM, temperature: float) -> None:
    model.float()
    prompt = torch.tensor([[1, 2, 3]])
    assert torch.equal(generate(model, prompt, 6, temperature=temperature), generate(model, prompt, 6, temperature=0))


@pytest.mark.parametrize("p", [5e-324, 1e-50, 1e-40, 1e-9])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_smallest_top_p_leaves_the_likeliest_token(p: float, dtype: torch.dtype) -> None:
    rows = [[0.0, 3.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0], [-9.0, -8.0, -7.0, 30.0]]
    finite = keep_top_p(torch.tensor(rows, dtype=dtype), p).isfinite()
    assert [row.nonzero()[:, 0].tolist() for row in finite] == [[row.index(max(row))] for row in rows]


def test_a_draw_with_the_smallest_top_p_is_the_likeliest(model: LM) -> None:
    model.float()
    prompt = torch.tensor([[1, 2, 3]])
    assert generate(model, prompt, 6, top_p=1e-50)[0].tolist() == greedy(model, [1, 2, 3], 6)


def naive_top_k(row: list[float], k: int) -> set[int]:
    return set(sorted(range(len(row)), key=lambda n: -row[n])[:k])


def naive_top_p(row: list[float], p: float) -> set[int]:
    tokens, total = set(), 0.0
    probability = torch.tensor(row).softmax(-1).tolist()
    for n in sorted(range(len(row)), key=lambda n: -row[n]):
        if total >= p:
            break
        tokens.add(n)
        total += probability[n]
    return tokens


@pytest.mark.parametrize("ties", [False, True])
def test_filters_keep_what_a_sort_keeps(float64: None, ties: bool) -> None:
    logits = torch.randn(20, 9) * 2
    logits = logits.round() if ties else logits
    for k in (1, 4, 9, 50):
        filtered = keep_top_k(logits, k)
        expected = [naive_top_k(row, k) for row in logits.tolist()]
        assert [set(row.isfinite().nonzero()[:, 0].tolist()) for row in filtered] == expected
        assert torch.equal(filtered[filtered.isfinite()], logits[filtered.isfinite()])
    for p in (1e-9, 0.3, 0.71, 0.97, 1.0):
        filtered = keep_top_p(logits, p)
        expected = [naive_top_p(row, p) if p < 1 else set(range(9)) for row in logits.tolist()]
        assert [set(row.isfinite().nonzero()[:, 0].tolist()) for row in filtered] == expected


def test_top_p_stops_where_the_sum_is_reached_exactly() -> None:
    finite = keep_top_p(torch.zeros(1, 4), 0.5).isfinite()
    assert finite.tolist() == [[True, True, False, False]]


# Beam search ---------------------------------------------------------------------------------------------------------


def naive_beam(
    model: LM, prompt: list[int], steps: int, beam: int, stop: int | None, penalty: float
) -> tuple[list[int], float]:
    def worth(hypothesis: tuple[float, list[int]]) -> float:
        return hypothesis[0] / ((5 + len(hypothesis[1]) - len(prompt)) / 6) ** penalty

    live, ended = [(0.0, list(prompt))], []
    for _ in range(steps):
        grown = []
        for score, row in live:
            logp = model.logits(torch.tensor([row])).y[0, -1].log_softmax(-1).tolist()
            grown += [(score + p, [*row, token]) for token, p in enumerate(logp)]
        grown.sort(key=lambda g: -g[0])
        ended += [g for g in grown[:beam] if g[1][-1] == stop]
        live = [g for g in grown if g[1][-1] != stop][:beam]
    score, row = max(ended + live, key=worth)
    return row + [-1] * (len(prompt) + steps - len(row)), score


FEW_BEAMS = ((2, None, 0.0), (3, 0, 0.0), (5, 4, 0.0), (20, 4, 0.0), (2, 4, 0.6), (5, 0, 0.6))
BEAMS = [*itertools.product([2, 3, 5, 20], [None, 0, 4], [0.0]), *itertools.product([2, 5], [0, 4], [0.6])]


@pytest.mark.parametrize(
    ("beam", "stop", "penalty"),
    [pytest.param(*case, marks=[pytest.mark.prove] * (case not in FEW_BEAMS)) for case in BEAMS],
)
def test_beam_search_is_the_naive_one(model: LM, beam: int, stop: int | None, penalty: float) -> None:
    prompts = [[1, 2, 3], [5], [6, 0]]
    padded = torch.tensor([[-1] * (3 - len(p)) + p for p in prompts])
    steps_heard: list[Tensor] = []
    tokens = generate(
        model,
        padded,
        5,
        beam=beam,
        stop=stop,
        length_penalty=penalty,
        on_tokens=lambda new, likely: steps_heard.append(torch.stack([new.double(), likely], -1)),
    )
    expected = [naive_beam(model, p, 5, beam, stop, penalty) for p in prompts]
    assert [row[3 - len(p) :] for row, p in zip(tokens.tolist(), prompts, strict=True)] == [row for row, _ in expected]
    steps = torch.stack(steps_heard, 1)  # [B n 2]
    assert (
        steps[..., 0].tolist() == tokens[:, 3 : 3 + len(steps_heard)].tolist()
        and (tokens[:, 3 + len(steps_heard) :] == -1).all()
    )
    torch.testing.assert_close(steps[..., 1].sum(1), torch.tensor([score for _, score in expected]))


def test_an_ended_row_takes_no_place_of_those_that_go_on(model: LM) -> None:
    """Under a penalty what ranked behind it may be better in the end. What is likeliest at once ends a row here."""
    for first in range(VOCAB):
        stop = greedy(model, [first, 1], 1)[-1]
        tokens = generate(model, torch.tensor([[first, 1]]), 4, beam=2, stop=stop, length_penalty=4.0)[0].tolist()
        assert tokens == naive_beam(model, [first, 1], 4, 2, stop, 4.0)[0]


def test_a_length_penalty_makes_rows_longer(model: LM) -> None:
    prompt = torch.tensor([[1, 2, 3], [4, 4, 0], [6, 0, 5], [2, 2, 2]])
    neutral, much = (generate(model, prompt, 8, beam=6, stop=0, length_penalty=p) for p in (0.0, 8.0))
    assert (neutral >= 0).sum() < (much >= 0).sum()


def test_a_beam_that_holds_everything_finds_the_likeliest_row(model: LM) -> None:
    prompt, stop = [1, 2], 3
    every = itertools.product(range(VOCAB), repeat=3)
    rows = [[*prompt, *new[: new.index(stop) + 1 if stop in new else 3]] for new in every]
    best = max(rows, key=lambda row: log_probability(model, row, 2))
    tokens = generate(model, torch.tensor([prompt]), 3, beam=VOCAB**3, stop=stop, length_penalty=0)[0].tolist()
    assert tokens == best + [-1] * (5 - len(best))


def test_beam_search_breaks_ties_by_the_smaller_token() -> None:
    model = gpt(d=8, depth=1, heads=2, length=8, vocab=5)
    nn.init.zeros_(model.embedding.weight)
    assert generate(model, torch.tensor([[3, 1]]), 3, beam=4).tolist() == [[3, 1, 0, 0, 0]]
    assert generate(model, torch.tensor([[3, 1]]), 3, temperature=0).tolist() == [[3, 1, 0, 0, 0]]


# The model is left as it was -----------------------------------------------------------------------------------------


def test_it_runs_in_eval_mode_and_restores_every_modules_mode() -> None:
    model = gpt(d=16, depth=2, heads=2, length=32, vocab=VOCAB, dropout=0.5)
    model.body.layers[0].eval()
    modes = [module.training for module in model.modules()]
    first, second = (generate(model, torch.tensor([[1, 2]]), 8, temperature=0) for _ in range(2))
    assert torch.equal(first, second)
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(ValueError, match=f"unknown token id: got {VOCAB}, expected 0 to {VOCAB - 1}"):
        generate(model, torch.tensor([[1, VOCAB]]), 8)

    def breaks(*_: object) -> None:
        raise ArithmeticError("on the way")

    with model.head.register_forward_hook(breaks), pytest.raises(ArithmeticError, match="on the way"):
        generate(model, torch.tensor([[1, 2]]), 8)
    assert [module.training for module in model.modules()] == modes


def test_it_builds_no_graph_and_works_in_half_precision() -> None:
    model = gpt(d=16, depth=2, heads=2, length=32, vocab=VOCAB).bfloat16()
    logits: list[Tensor] = []
    model.head.register_forward_hook(lambda _, __, y: logits.append(y))
    assert generate(model, torch.tensor([[1, 2]]), 4, top_k=3, top_p=0.9, seed=0).shape == (1, 6)
    assert generate(model, torch.tensor([[1, 2]]), 4, beam=2).shape == (1, 6)
    assert {(y.dtype, y.requires_grad) for y in logits} == {(torch.bfloat16, False)}


def test_the_state_has_the_models_dtype(model: LM) -> None:
    started: list[torch.dtype] = []
    logits = model.logits

    def noted(tokens: Tensor, state: NumberedState, *arguments: Any, **keywords: Any) -> Out:
        started.extend({leaf.dtype for name, leaf in leaves(state) if name in ("k", "v")} if state.now[0] == 0 else ())
        return logits(tokens, state, *arguments, **keywords)

    model.logits = noted  # type: ignore[method-assign]
    for dtype in (torch.float64, torch.bfloat16):
        generate(model.to(dtype), torch.tensor([[1]]), 2)
    assert started == [torch.float64, torch.bfloat16]


def test_a_model_without_a_state_says_so_and_recomputes() -> None:
    torch.manual_seed(0)
    body = Stack([PreNorm(Attention(QKV(16, 2), Softmax(Full())), MLP(16))])
    model = sharp(LM(VOCAB, 16, body))
    prompt = torch.tensor([[-1, 1], [2, 3]])
    with pytest.raises(NoState, match="recompute=True"):
        generate(model, prompt, 3)
    tokens = generate(model, prompt, 6, temperature=0, recompute=True).tolist()
    assert [tokens[0][1:], tokens[1]] == [greedy(model, [1], 6), greedy(model, [2, 3], 6)]


def test_a_window_forgets_and_still_decodes(float64: None) -> None:
    torch.manual_seed(0)
    body = Stack([PreNorm(Attention(QKV(16, 2), Softmax(Band(2, 0))), MLP(16)) for _ in range(2)])
    model = sharp(LM(VOCAB, 16, body))
    prompt = torch.tensor([[-1, -1, -1, 4, 1], [0, 5, 2, 3, 6]])
    tokens = generate(model, prompt, 12, temperature=0).tolist()
    assert [tokens[0][3:], tokens[1]] == [greedy(model, [4, 1], 12), greedy(model, [0, 5, 2, 3, 6], 12)]


# What it costs --------------------------------------------------------------------------------------------------------


def test_the_head_is_computed_for_the_last_position_alone(model: LM) -> None:
    shapes: list[tuple[int, ...]] = []
    model.head.register_forward_hook(lambda _, inputs, __: shapes.append(tuple(inputs[0].shape)))
    for recompute in (False, True):
        generate(model, torch.randint(0, VOCAB, (2, 9)), 3, recompute=recompute)
    assert shapes == [(2, 1, 16)] * 6


def test_a_step_looks_once_and_every_layer_finds_what_was_seen(model: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    look = Memo.look
    monkeypatch.setattr(Memo, "look", lambda memo, *numbers: looks.append(len(numbers)) or look(memo, *numbers))
    generate(model, torch.randint(0, VOCAB, (2, 9)), 1)
    prompt = len(looks)
    generate(model, torch.randint(0, VOCAB, (2, 9)), 7)
    assert prompt <= 1 and len(looks) == 2 * prompt + 6


def test_the_vocabulary_is_not_sorted(model: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("sorted")

    for name in ("sort", "argsort"):
        monkeypatch.setattr(torch, name, refused)
        monkeypatch.setattr(Tensor, name, refused)
    keep_top_k(torch.randn(2, 500), 5)
    keep_top_p(torch.randn(2, 500), 0.99)


@pytest.mark.parametrize("size", [65, 600])
def test_top_p_looks_further_where_the_first_ones_do_not_reach(float64: None, size: int) -> None:
    logits = torch.randn(6, size) / 10
    for p in (0.5, 0.9, 0.9999):
        filtered = keep_top_p(logits, p)
        expected = [naive_top_p(row, p) for row in logits.tolist()]
        assert [set(row.isfinite().nonzero()[:, 0].tolist()) for row in filtered] == expected


def test_a_state_that_was_made_for_less_has_room_before_it_is_read(model: LM) -> None:
    """Nothing grows while it is written: a compiled step could not, and would read NaN."""
    prompt = torch.randint(0, VOCAB, (2, 5))
    whole = generate(model, prompt, 12, temperature=0)
    state = model.eval().logits(prompt[:, :4], model.start(2, 4)).state
    slots: list[set[int]] = []
    logits = model.logits

    def noted(tokens: Tensor, state: NumberedState, *arguments: Any, **keywords: Any) -> Out:
        slots.append({leaf.shape[1] for name, leaf in leaves(state) if name == "pos"})
        return logits(tokens, state, *arguments, **keywords)

    model.logits = noted  # type: ignore[method-assign]
    assert torch.equal(generate(model, prompt[:, 4:], 12, temperature=0, state=state), whole[:, 4:])
    assert slots == [slots[0]] * 12 and min(slots[0]) >= 16


def test_it_is_heard_step_by_step(model: LM) -> None:
    steps: list[tuple[Tensor, Tensor]] = []
    tokens = generate(
        model, torch.tensor([[1, 2], [3, 4]]), 5, seed=0, stop=0, on_tokens=lambda *step: steps.append(step)
    )
    new = torch.stack([new for new, _ in steps], 1)
    assert new.tolist() == tokens[:, 2 : 2 + len(steps)].tolist()
    sums = torch.stack([likely for _, likely in steps], 1).sum(1)
    rows = [[token for token in row if token >= 0] for row in tokens.tolist()]
    torch.testing.assert_close(sums, torch.tensor([log_probability(model, row, 2) for row in rows]))


@pytest.mark.parametrize("beam", [1, 4])
def test_a_function_says_which_rows_have_ended(model: LM, beam: int) -> None:
    prompt = torch.tensor([[1, 2, 3], [6, 0, 5], [0, 0, 0]])
    by_token = generate(model, prompt, 9, temperature=0, beam=beam, stop=2)
    assert torch.equal(by_token, generate(model, prompt, 9, temperature=0, beam=beam, stop=lambda new: new[:, -1] == 2))
    by_length = generate(model, prompt, 9, temperature=0, beam=beam, stop=lambda new: (new >= 0).sum(1) == 3)
    assert (
        torch.equal(by_length[:, :6], generate(model, prompt, 3, temperature=0, beam=beam))
        and (by_length[:, 6:] < 0).all()
    )


@pytest.mark.parametrize(
    "prompt", [[1, 2, 3], (1, 2, 3), range(1, 4), torch.tensor([1, 2, 3]), numpy.array([1, 2, 3]), [[1, 2, 3]]]
)
def test_a_list_of_ids_is_one_prompt(model: LM, prompt: Any) -> None:
    expected = generate(model, torch.tensor([[1, 2, 3]]), 5, temperature=0)
    assert torch.equal(generate(model, prompt, 5, temperature=0), expected)


def test_lists_of_ids_are_padded_on_the_left(model: LM) -> None:
    expected = generate(model, torch.tensor([[-1, -1, 4], [6, 0, 2]]), 5, temperature=0)
    assert torch.equal(generate(model, [[4], [6, 0, 2]], 5, temperature=0), expected)
    encoded = {"input_ids": [[0, 0, 4], [6, 0, 2]], "attention_mask": torch.tensor([[0, 0, 1], [1, 1, 1]])}
    assert torch.equal(generate(model, encoded, 5, temperature=0), expected)


@pytest.mark.parametrize(
    "mask",
    [
        [[0, 0, 1], [1, 1, 1]],
        [torch.tensor([0, 0, 1]), torch.tensor([1, 1, 1])],
        [[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]],
        [list(numpy.array([False, False, True])), [True, True, True]],
    ],
    ids=["lists", "tensors", "floats", "numpy"],
)
def test_a_mask_counts_in_every_form(model: LM, mask: Any) -> None:
    expected = generate(model, torch.tensor([[-1, -1, 4], [6, 0, 2]]), 5, temperature=0)
    for dtype in (torch.long, torch.uint8, torch.uint16):  # the unsigned ones have no -1
        prompts = torch.tensor([[0, 0, 4], [6, 0, 2]], dtype=dtype)
        assert torch.equal(generate(model, prompts, 5, temperature=0, attention_mask=mask), expected)


def test_a_mask_of_one_row_goes_with_one_prompt(model: LM) -> None:
    prompts: tuple[Any, ...] = ([0, 1, 2], [[0, 1, 2]])
    alone, batch = (generate(model, ids, 3, temperature=0, attention_mask=[0, 1, 1]) for ids in prompts)
    assert torch.equal(alone, batch) and alone[0, 0] == -1


def test_prompts_of_tensors_and_of_numpy_s_numbers_are_lists(model: LM) -> None:
    expected = generate(model, [[4], [6, 0, 2]], 5, temperature=0)
    for prompts in ([torch.tensor([4]), torch.tensor([6, 0, 2])], [list(numpy.array([4])), numpy.array([6, 0, 2])]):
        assert torch.equal(generate(model, prompts, 5, temperature=0), expected)


def test_a_mask_or_a_prompt_of_something_else_is_refused(model: LM) -> None:
    with pytest.raises(TypeError, match="^attention_mask is 'left', expected 0 or 1 for each token"):
        generate(model, torch.tensor([[1, 2]]), 1, attention_mask="left")  # type: ignore[arg-type]
    for texts in (numpy.array(["a"]), numpy.array([None])):
        with pytest.raises(TypeError, match=r"^the prompt is <ndarray .*>, expected token ids \[B, T\]; make it with"):
            generate(model, texts, 1)
    with pytest.raises(ValueError, match=r"the prompt has no token ids: got torch\.bool"):
        generate(model, [True, False], 1)


def test_a_seed_counts_up_row_by_row(model: LM) -> None:
    prompts = torch.tensor([[1, 2], [1, 2], [6, 0]])
    tokens = generate(model, prompts, 12, seed=7)
    assert torch.equal(tokens, generate(model, prompts, 12, seed=[7, 8, 9])) and not torch.equal(tokens[0], tokens[1])
    for row, prompt in enumerate(prompts):
        assert torch.equal(generate(model, prompt, 12, seed=7 + row)[0], tokens[row])
    assert generate(model, prompts, 2, seed=2**64 - 1).shape == (3, 4)


def test_a_seed_for_each_row_draws_what_it_draws_of_the_row_alone(model: LM) -> None:
    prompts, seeds = [[4], [1, 2, 3, 4, 5], [6, 0, 2], [4]], [3, 1, 7, 8]
    padded = torch.tensor([[-1] * (5 - len(p)) + p for p in prompts])
    tokens = generate(model, padded, 12, temperature=1.5, top_p=0.95, seed=seeds).tolist()
    for row, prompt, seed in zip(tokens, prompts, seeds, strict=True):
        alone = generate(model, torch.tensor([prompt]), 12, temperature=1.5, top_p=0.95, seed=seed)
        assert row[5 - len(prompt) :] == alone[0].tolist()
    assert tokens[0][5:] != tokens[3][5:]


def test_beyond_the_length_of_training_it_says_so() -> None:
    model = gpt(d=16, depth=1, heads=2, vocab=VOCAB, position="rotary")
    model.trained_length = 8
    prompt = torch.tensor([[1, 2, 3]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(model, prompt, 5)
    with pytest.warns(UserWarning, match="got 9 tokens, but the model was trained on rows of 8"):
        generate(model, prompt, 6)


def test_beyond_the_length_of_training_alibi_says_nothing() -> None:
    """It is for reading further than it was trained; of other positions, and of none, it is said."""
    size = {"d": 16, "depth": 2, "heads": 2, "vocab": VOCAB}
    for model in (bloom(**size), gpt(**size, position="alibi")):
        model.trained_length = 8
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            generate(model, torch.tensor([[1, 2, 3]]), 9)
    for position in ("none", "relative", "sinusoidal"):
        model = gpt(**size, position=position)
        model.trained_length = 8
        with pytest.warns(UserWarning, match="got 12 tokens, but the model was trained on rows of 8"):
            generate(model, torch.tensor([[1, 2, 3]]), 9)


# Errors --------------------------------------------------------------------------------------------------------------

WRONG = {
    "steps=-1": dict(steps=-1),
    "temperature=-0.1": dict(temperature=-0.1),
    "temperature=nan": dict(temperature=float("nan")),
    "temperature=inf": dict(temperature=float("inf")),
    "top_k=0": dict(top_k=0),
    "top_p=0.0": dict(top_p=0.0),
    "top_p=1.1": dict(top_p=1.1),
    "wrong min_p: got 1.5, expected a number from 0 to 1": dict(min_p=1.5),
    "min_p=0.5 has no effect with temperature=0, which takes the most probable": dict(temperature=0, min_p=0.5),
    "min_p=0.5 has no effect with beam=2, which does not sample": dict(beam=2, min_p=0.5),
    "wrong repetition_penalty: got 0, expected a number from 0.001 to 1000": dict(repetition_penalty=0),
    "beam=0": dict(beam=0),
    "best=3 needs a wider beam search: got beam=2, expected 3 or more": dict(beam=2, best=3),
    "length_penalty=-1": dict(beam=2, length_penalty=-1),
    "the prompt has 1 rows, but the seed has 2": dict(seed=[1, 2]),
    "temperature=0.5 has no effect with beam=2, which does not sample": dict(beam=2, temperature=0.5),
    "top_k=5 has no effect with beam=2": dict(beam=2, top_k=5),
    "top_p=0.5 has no effect with temperature=0, which takes the most probable": dict(temperature=0, top_p=0.5),
    "stop=99 has no effect: got token id 99, expected 0 to 6": dict(stop=99),
    "length_penalty=0.5 has no effect with beam=1": dict(length_penalty=0.5),
    r"not a batch of rows: got shape \[0, 3\], expected \[B, T\]": dict(tokens=torch.zeros(0, 3, dtype=torch.long)),
    r"not a batch of rows: got shape \[0, 0\], expected \[B, T\]": dict(tokens=torch.zeros(0, 0, dtype=torch.long)),
    "T = 0": dict(tokens=torch.zeros(1, 0, dtype=torch.long)),
    "row 1 of the prompt ends with padding": dict(tokens=torch.tensor([[1, 2], [3, -1]])),
    "the prompt has no token ids: got torch.float32, expected integers": dict(tokens=torch.tensor([[1.0, 2.0]])),
    "the prompt is empty": dict(tokens=[]),
    f"the prompt has an unknown token id: got {VOCAB}, expected 0 to {VOCAB - 1}": dict(tokens=torch.tensor([[VOCAB]])),
    "tokens=None needs source= and a model with a begin token": dict(tokens=None),
    r"result of stop: got torch.bool of shape \[1, 1\], expected a bool tensor of shape \[1\]": dict(
        stop=lambda new: new[:, -1:] > 9
    ),
    r"result of stop: got torch.int64 of shape \[1\], expected a bool tensor of shape": dict(
        stop=lambda new: new[:, -1] * 0
    ),
    "result of stop: got False, expected a bool tensor of shape": dict(stop=lambda new: False),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_get_one_line(message: str) -> None:
    model = gpt(d=16, depth=1, heads=2, length=8, vocab=VOCAB)
    arguments = {"tokens": torch.tensor([[1, 2]]), "steps": 2} | WRONG[message]
    with pytest.raises(ValueError, match=message.replace("(", r"\(")) as caught:
        generate(model, arguments.pop("tokens"), arguments.pop("steps"), **arguments)
    assert "\n" not in str(caught.value)


def test_a_state_of_other_rows_or_beside_recompute_is_refused(model: LM) -> None:
    with pytest.raises(ValueError, match="the prompt has 1 rows, but the state has 2"):
        generate(model, torch.tensor([[1]]), 2, state=model.start(2, 4))
    with pytest.raises(ValueError, match="cannot use state="):
        generate(model, torch.tensor([[1]]), 2, state=model.start(1, 4), recompute=True)


def test_what_cannot_be_continued_is_named() -> None:
    with pytest.raises(TypeError, match=r"Linear cannot generate: it has no start\(\) and logits\(\)"):
        generate(nn.Linear(2, 2), torch.tensor([[1]]), 2)

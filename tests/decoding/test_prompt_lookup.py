"""Prompt lookup decoding: the tokens of greedy decoding, by every member that writes text, in fewer passes."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

import kinformer as kf
from kinformer.core.discover import part_files
from kinformer.core.layer import Out
from kinformer.core.mechanism import NoState
from kinformer.core.model import Writer
from kinformer.core.state import branch, leaves
from kinformer.core.unrepeatable import unrepeatable_parts
from kinformer.decoding import prompt_lookup
from kinformer.decoding.generate import generate
from kinformer.decoding.prompt_lookup import EarlierTokens
from tests.decoding.writers import writer
from tests.discovered import discovered_in
from tests.laws.cases import PROVE
from tests.unhooked import unhooked

SEEDS = range(4) if PROVE else range(1)
EXAMPLES = None if PROVE else 1  # examples of each member


def passes(model: Any, *arguments: Any, **keywords: Any) -> tuple[list[list[int]], int]:
    """The generated rows, and the number of calls of the model."""
    calls, logits = [0], model.logits

    def counted(*inputs: Any, **further: Any) -> Out:
        calls[0] += 1
        return logits(*inputs, **further)

    model.logits = counted
    try:
        return generate(model, *arguments, temperature=0, **keywords).tolist(), calls[0]
    finally:
        model.logits = logits


def greedy_and_lookup() -> list[list[Any]]:
    """By member, seed and size of the proposals: rows and passes of greedy decoding, and of prompt lookup.

    Members without a decoding state, and members with parts that are not repeatable, must refuse.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return [result for file in sorted(part_files("members")) for result in compare(file)]
    finally:
        torch.set_default_dtype(before)


def compare(file: str) -> Iterator[list[Any]]:
    parts = (case.make() for case in discovered_in("members", file))
    for model in islice((part.eval() for part in parts if isinstance(part, Writer)), EXAMPLES):
        for seed in SEEDS:
            torch.manual_seed(seed)
            with torch.no_grad():
                for weight in model.parameters():
                    if weight.dim() > 1:  # larger weights, so that no likeliest token is near another
                        weight.normal_(std=0.4)
            half = torch.randint(0, 5, (1, 4))
            inputs: dict[str, Any] = {"source": half} if model.reads == "pairs" else {}
            arguments = (model, None if inputs else half.repeat(1, 2), 10)
            if unrepeatable_parts(model):
                with pytest.raises(ValueError, match="^prompt_lookup=4 would change the tokens: "):
                    passes(*arguments, prompt_lookup=4, **inputs)
                continue
            try:
                model.start(1, 1)
            except NoState:
                with pytest.raises(ValueError, match="^prompt_lookup=4 needs a decoding state: got recompute=True"):
                    passes(*arguments, recompute=True, prompt_lookup=4, **inputs)
                continue
            greedy = passes(*arguments, stop=-1, **inputs)
            for size in (1, 4):
                yield [file, seed, size, *greedy, *passes(*arguments, stop=-1, prompt_lookup=size, **inputs)]


def test_every_member_writes_the_tokens_of_greedy_decoding() -> None:
    results = unhooked(f"{__name__}:{greedy_and_lookup.__name__}")
    for file, seed, size, greedy, greedy_passes, tokens, lookup_passes in results:
        assert tokens == greedy and lookup_passes <= greedy_passes, (file, seed, size)
    assert len({file for file, *_ in results}) >= 40
    rows = [tokens for _, _, _, tokens, *_ in results]
    assert len({tuple(row[0]) for row in rows}) > len(rows) / 4  # the members choose different tokens
    saved = [greedy_passes - lookup_passes for *_, greedy_passes, _, lookup_passes in results]
    assert 0 in saved and sum(saved) > len(saved)


@pytest.mark.parametrize("form", ["learned", "memory", "linear", "exits"])
@pytest.mark.filterwarnings("ignore:.*positions that this model has learned")
def test_stops_states_padding_and_callbacks_are_those_of_greedy_decoding(form: str, float64: None) -> None:
    model, prompt = writer(form), [-1, 4, 1, 2, 4, 1]
    free = generate(model, [prompt], 12, temperature=0, stop=-1)
    penalized = generate(model, [prompt], 12, temperature=0, stop=-1, repetition_penalty=6.0)[0, 6:].tolist()
    stop = max(penalized, key=penalized.index)  # the token that comes last for the first time
    heard: list[list[tuple[float, ...]]] = []
    for size in ({}, {"prompt_lookup": 4}):
        steps: list[tuple[float, ...]] = []
        options: dict[str, Any] = {"temperature": 0, "repetition_penalty": 6.0, "stop": stop, **size}
        rows = generate(
            model, [prompt], 12, on_tokens=lambda *step, steps=steps: steps.append(tuple(map(float, step))), **options
        )
        heard.append([*steps, tuple(rows[0].tolist())])
    assert len(heard[0]) == len(heard[1]) > 2
    for plain, looked_up in zip(*heard, strict=True):
        assert plain == pytest.approx(looked_up)
    read = model.logits(torch.tensor([prompt[1:-1]]), model.start(1, 20)).state
    again = generate(model, [prompt[-1:]], 12, temperature=0, stop=-1, prompt_lookup=4, state=kf.detach(read))
    assert form == "learned" or again[0].tolist() == free[0, 5:].tolist()  # a table of positions forgets earlier tokens


def test_a_model_that_copies_needs_fewer_passes(float64: None) -> None:
    model, period = kf.gpt(d=16, depth=1, heads=2, vocab=8, position="none"), 4

    def follow(tokens: Tensor, state: Any = None, ctx: Any = None, *, last: bool = False) -> Out:
        """The next token counts up from 0 to 3 and begins again, as in the prompt."""
        out = real(tokens, state, ctx, last=last)
        y = torch.nn.functional.one_hot((tokens[:, -1:] if last else tokens).add(1) % period, 8).double()
        return out._replace(y=y)

    real, prompt = model.logits, torch.arange(8)[None] % period
    model.logits = follow  # type: ignore[method-assign]
    rows: dict[int, list[list[int]]] = {}
    counts: dict[int, int] = {}
    for size in (0, 1, 4, 9):
        rows[size], counts[size] = passes(model, prompt, 24, **({"prompt_lookup": size} if size else {}))
    assert rows[0] == [(torch.arange(32) % period).tolist()] and all(row == rows[0] for row in rows.values())
    # the first pass gives one token if the prompt is longer than a proposal; each other pass one more than proposed
    assert counts == {0: 24, 1: 1 + 12, 4: 1 + 5, 9: 3}


def test_a_state_that_a_wrong_proposal_has_spoiled_would_change_the_tokens(
    float64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = writer("rotary"), {"temperature": 0}
    prompt = torch.tensor([[4, 1, 2, 4, 1]])
    greedy = generate(model, prompt, 12, **options)
    monkeypatch.setattr(EarlierTokens, "propose", lambda earlier, count: [0] * count)
    assert torch.equal(generate(model, prompt, 12, prompt_lookup=3, **options), greedy)
    monkeypatch.setattr(prompt_lookup, "branch", lambda state: model.start(1, 30))
    assert not torch.equal(generate(model, prompt, 12, prompt_lookup=3, **options), greedy)


class TokenByToken(torch.nn.Module):
    """A model that gives each token to another model in a call of its own."""

    def __init__(self, model: Any):
        super().__init__()
        self.model, self.start = model, model.start

    def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None, *, last: bool = False) -> Out:
        outs = list[Out]()
        for column in range(tokens.shape[1]):
            outs.append(self.model.logits(tokens[:, column : column + 1], outs[-1].state if outs else state))
        return outs[-1]._replace(y=torch.cat([out.y for out in outs], 1))


def test_a_model_that_divides_its_tokens_writes_those_of_greedy_decoding(float64: None) -> None:
    torch.manual_seed(0)
    model = kf.gpt(d=16, depth=2, heads=2, vocab=7, position="none", pattern="Causal() & Band(4)").eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.4)
    for _ in range(10):
        prompt, options = torch.randint(7, (1, 8)), {"temperature": 0, "stop": -1}
        rows = [generate(TokenByToken(model), prompt, 30, **options, **size) for size in ({}, {"prompt_lookup": 4})]
        assert torch.equal(*rows)


def test_a_proposal_copies_no_cache(float64: None) -> None:
    model = writer("rotary")
    state = model.logits(torch.tensor([[4, 1, 2]]), model.start(1, 30)).state
    pairs = list(zip(leaves(state), leaves(branch(state)), strict=True))
    assert {name for (name, mine), (_, other) in pairs if mine.data_ptr() == other.data_ptr()} >= {"k", "v"}
    sums = writer("linear").start(1, 30)
    shared = [
        name for (name, mine), (_, other) in zip(leaves(sums), leaves(branch(sums)), strict=True) if mine is other
    ]
    assert not shared  # sums are written in place


def propose(row: list[int], count: int) -> list[int]:
    earlier = EarlierTokens()
    earlier.extend(row)
    return earlier.propose(count)


def searched(row: list[int], count: int) -> list[int]:
    """The tokens after the first occurrence of the last 3, 2 or 1 tokens, by a search through the row."""
    for size in (3, 2, 1):
        for start in range(len(row) - size) if size < len(row) else ():
            if row[start : start + size] == row[-size:]:
                return row[start + size : start + size + count]
    return []


def test_proposals_follow_the_longest_match_of_up_to_3_tokens() -> None:
    assert propose([1, 2, 3, 4, 5, 1, 2, 3], 2) == [4, 5]
    assert propose([9, 3, 7, 1, 3, 8, 1, 3], 4) == [8, 1, 3]
    assert propose([2, 5, 2], 9) == [5, 2]
    assert propose([-1, 2, -1, 2], 9) == [2]
    assert propose([1, 2, 3], 9) == propose([4], 9) == propose([1, 1, 1], 0) == []


def test_proposals_are_those_of_a_search_through_the_row() -> None:
    earlier, row = EarlierTokens(), list[int]()
    for token in torch.randint(5, (300,), generator=torch.Generator().manual_seed(0)).tolist():
        earlier.extend([token])
        row.append(token)
        assert earlier.propose(4) == searched(row, 4)


WRONG: dict[str, dict[str, Any]] = {
    "prompt_lookup=3 gives the tokens of greedy decoding: got temperature=0.6, expected 0. Give": dict(),
    "prompt_lookup=3 gives the tokens of greedy decoding: got temperature=1.0, expected 0": dict(min_p=0.1),
    "prompt_lookup=3 has no effect with beam=2": dict(beam=2),
    "prompt_lookup=0: give a whole number of at least 1": dict(temperature=0, prompt_lookup=0),
    "prompt_lookup=3 continues one prompt at a time: got 2 rows, expected 1": dict(temperature=0, tokens=[[1], [2]]),
}


@pytest.mark.parametrize("message", WRONG)
def test_other_ways_to_choose_tokens_are_refused(message: str) -> None:
    arguments = {"tokens": [[1, 2]], "prompt_lookup": 3} | WRONG[message]
    with pytest.raises(ValueError, match=message):
        generate(writer("rotary"), steps=2, **arguments)

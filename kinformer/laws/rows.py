"""Law rows: rows of a decoding state can be reset and selected; states fork, branch and widen.

A reset row continues like a fresh row, and a selected row like the row that it copies. A fork (copy of a state) is
independent of its original. A branch, which shares a cache, leaves its original as it was. A widened state, with more
cache slots, continues like the original state.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kinformer.core.kv_cache import widen_caches
from kinformer.core.layer import Out, State
from kinformer.core.state import branch, fork, leaves, reset, select
from kinformer.laws.support.comparisons import agree_out, agree_states, join_outs
from kinformer.laws.support.findings import Broken, Unjudged, find_smallest, findings
from kinformer.laws.support.input_batch import InputBatch
from kinformer.laws.support.subject import Subject

SAYS = "rows of a decoding state can be reset and selected, and a state can be forked, branched and widened"
OVER = "layer"
LENGTH = 6
PICKED = [2, 0, 0, 1]
FRESH = [True, False, True]


def judge(subject: Subject) -> Iterator[str]:
    """Change a decoding state after some tokens, continue with it, and yield each wrong continuation.

    subject: a layer with the part to test.

    The law resets some rows of the state, selects rows, forks (copies) the state, branches it, and widens it to more
    cache slots. A call may overwrite its state, so each change is made on a fork.
    """
    module = subject.build()
    stateless = ""
    for _ in subject.modes(module):
        text = subject.no_state(module)
        if text is None:
            yield from findings(_batch_first, subject, module)
            yield from find_smallest(_check, LENGTH, subject, module)
        stateless = text or stateless
    if stateless:
        raise Unjudged(f"no decoding state to test: {stateless}")


def _batch_first(subject: Subject, module: Any) -> None:
    for name, leaf in leaves(subject.start(module, 3, 2 * LENGTH)):
        if leaf.shape[:1] != (3,):
            shape = list(leaf.shape)
            raise Broken(
                f"{name or 'a tensor'} of the state has shape {shape} for 3 rows; the first dimension must be the batch"
            )


def _check(length: int, subject: Subject, module: Any) -> None:
    batch, other_batch = (
        subject.batch([2 * length, 2 * length, 2 * length - 1], [0, 0, 1], 2 * length, seed=seed) for seed in (1, 3)
    )
    state = _state_after(subject, module, batch.columns(0, length), 2 * length)
    rest = batch.columns(length, 2 * length)
    _select(subject, module, fork(state), rest)
    _fork(subject, module, fork(state), rest, other_batch.columns(length, 2 * length))
    _branch(subject, module, fork(state), rest, other_batch.columns(length, 2 * length))
    _reset(subject, module, fork(state), rest, length)
    _widen(subject, module, state, rest)


def _widen(subject: Subject, module: Any, state: State, rest: InputBatch) -> None:
    """Widen a state, as `generate` does for a text longer than its state."""
    expected = subject.call(module, rest, fork(state))
    actual = subject.call(module, rest, widen_caches(state, subject.start(module, 3, 4 * rest.size[1])))
    sentence = "a state with more slots continues differently from the original"
    agree_out(actual, expected, sentence, rest.pos)
    agree_states(actual.state, expected.state, sentence)


def _state_after(subject: Subject, module: Any, batch: InputBatch, length: int) -> State:
    return subject.call(module, batch, subject.start(module, len(batch.x), length)).state


def _select(subject: Subject, module: Any, state: State, rest: InputBatch) -> None:
    picked = select(state, torch.tensor(PICKED))
    expected = subject.call(module, rest, state)
    actual = subject.call(module, rest.rows(PICKED), picked)
    chosen = expected._replace(
        y=expected.y[PICKED], aux={key: value[PICKED] if value.dim() else value for key, value in expected.aux.items()}
    )
    sentence = f"selected rows {PICKED} of a state continue differently from the original rows"
    agree_out(actual, chosen, sentence, rest.rows(PICKED).pos)
    agree_states(actual.state, select(expected.state, torch.tensor(PICKED)), sentence)


def _fork(subject: Subject, module: Any, state: State, rest: InputBatch, other: InputBatch) -> None:
    """Continue a state and its fork in turns with different tokens, as two continuations of one text."""
    copy = fork(state)
    for (name, mine), (_, original) in zip(leaves(copy), leaves(state), strict=True):
        if mine.numel() and mine.data_ptr() == original.data_ptr():
            raise Broken(f"{name or 'a tensor'} of the state and of its fork share memory, so a write changes both")
    middle, end = rest.size[1] // 2, rest.size[1]
    with torch.no_grad():  # without gradients, a state is written in place
        want = _in_two_calls(subject, module, fork(state), rest)
        first = subject.call(module, rest.columns(0, middle), state)
        subject.call(module, other.columns(0, middle), copy)
        second = subject.call(module, rest.columns(middle, end), first.state)
    agree_out(join_outs([first, second]), want, "a state continues differently after a call with its fork", rest.pos)


def _branch(subject: Subject, module: Any, state: State, rest: InputBatch, other: InputBatch) -> None:
    """Continue a branch with other tokens first, as prompt lookup tries tokens, and then the original with fewer."""
    with torch.no_grad():
        want_tried = subject.call(module, other, fork(state))
        want = _in_two_calls(subject, module, fork(state), rest)
        tried = subject.call(module, other, branch(state))
        agree_out(tried, want_tried, "a branch continues differently from its original", other.pos)
        agree_states(tried.state, want_tried.state, "a branch continues differently from its original")
        actual = _in_two_calls(subject, module, state, rest)
    agree_out(actual, want, "a state continues differently after a call with its branch", rest.pos)


def _in_two_calls(subject: Subject, module: Any, state: State, rest: InputBatch) -> Out:
    """Continue a state with half of the tokens, and then with the others."""
    middle, end = rest.size[1] // 2, rest.size[1]
    first = subject.call(module, rest.columns(0, middle), state)
    return join_outs([first, subject.call(module, rest.columns(middle, end), first.state)])


def _reset(subject: Subject, module: Any, state: State, rest: InputBatch, length: int) -> None:
    mark = torch.tensor(FRESH)
    if subject.source:
        return  # a reset row has no source, and a call provides a source for all rows or none
    start = subject.batch([length] * 3, seed=2)
    mixed = _mix(mark, start, rest)
    want_fresh = subject.call(module, start, subject.start(module, 3, 2 * length))
    want_old = subject.call(module, rest, fork(state))
    actual = subject.call(module, mixed, reset(state, mark))
    cases = (
        (mark, want_fresh, "a reset row continues differently from a fresh row"),
        (~mark, want_old, "resetting a row changes other rows"),
    )
    for rows, want, sentence in cases:
        at = rows.nonzero().flatten()
        actual_rows, expected_rows = _pick(actual, at), _pick(want, at)
        agree_out(actual_rows, expected_rows, sentence, mixed.pos[at])
        agree_states(actual_rows.state, expected_rows.state, sentence)


def _pick(out: Any, at: Tensor) -> Any:
    aux = {key: value[at] if value.dim() else value for key, value in out.aux.items()}
    return out._replace(y=out.y[at], aux=aux, state=select(out.state, at))


def _mix(mark: Tensor, fresh: InputBatch, old: InputBatch) -> InputBatch:
    """Return marked rows from `fresh` and the other rows from `old`."""
    x = torch.where(mark.view(-1, *[1] * (old.x.dim() - 1)), fresh.x, old.x)
    return InputBatch(x, torch.where(mark[:, None], fresh.pos, old.pos), old.only, old.also)

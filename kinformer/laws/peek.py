"""Law peek: later tokens change no earlier output, and queries read exactly the keys of their pattern."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.choice import Choices
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism
from kinformer.core.memory import Memory
from kinformer.core.model import Forecaster
from kinformer.core.pattern import Pattern, narrow_pattern, pair_mask
from kinformer.core.state import leaves
from kinformer.laws.support.comparisons import agree, agree_names
from kinformer.laws.support.dependences import beyond_rounding, dependences, memory_read
from kinformer.laws.support.findings import Broken, Unjudged, find_smallest, findings
from kinformer.laws.support.input_batch import InputBatch
from kinformer.laws.support.subject import EFFORT, GARBAGE, ROWS, Subject, TrainingSubject
from kinformer.nn.attention import Attention

SAYS = "a part that must not read ahead depends on no later token, and queries read the pairs of their pattern"
OVER = ("layer", "model")
LENGTH = 9
CHANGED = 16  # changed tokens from everywhere in the row, one per row; half as many are added near an edge
HUGE = 1e13  # factor for later tokens: 64 ulps of such a number in float64 are about 0.1
HEARD = 1e-9  # smallest change of numbers about 1 that is larger than rounding


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Change the tokens after each position, and yield a sentence for each earlier output that changes.

    subject: a layer or model with the part to test.

    A part must not read later tokens if it has a decoding state, or if it learns to predict the next token. Nor may it
    if every mechanism of self-attention in it has a pattern and no pattern reads ahead.

    Tokens are changed in eval and train mode. Gradients would not show everything: a hard choice has a gradient of zero
    and may still use later tokens. The law tests three more properties. A query must depend on exactly the keys that
    its pattern allows. With a memory (states carried between chunks), it must depend only on tokens in the pattern
    `receptive_field` of the memory. A forecast must not depend on the values that are to be forecast.
    """
    module = subject.build()
    if isinstance(subject, TrainingSubject):
        if not isinstance(module, Forecaster):
            raise Unjudged("only models of series are tested here; outputs for tokens are tested in another case")
        yield from findings(_check_forecast, subject, module)
        return
    judged, modes = False, list(subject.modes(module))
    for training in (False, True):
        module.train(training)
        decodes, because = subject.no_state(module) is None, _promise(subject, module)
        for seed in range(EFFORT) if because else ():
            yield from find_smallest(_redraw, LENGTH + 4 * seed, subject, module, seed, because)
        if training not in modes:
            continue
        if because or subject.pattern is not None:
            yield from find_smallest(_differentiate, LENGTH, subject, module, decodes, because)
            judged = True
        memory = memory_read(module) if isinstance(module, Attention) else None
        if memory is not None:
            yield from findings(_check_memory, subject, module, memory)
    if not judged:
        raise Unjudged("the part may read ahead: it has no decoding state, and its pattern reads ahead or is unknown")


@torch.no_grad()
def _check_forecast(subject: TrainingSubject, model: Any) -> None:
    batch = subject.ragged(LENGTH).x
    forecast, foretold = model.forecast(batch), torch.arange(batch.values.shape[1]) >= model.context
    for change, values in (("redrawing", batch.values.flip(0, 1)), ("a large change of", GARBAGE * batch.values)):
        changed = batch._replace(values=torch.where(foretold[:, None], values, batch.values))
        sentence = f"{change} the rows to forecast changes the forecast"
        agree(model.forecast(changed), forecast, sentence, bound=1e-12)


def _promise(subject: Subject, module: Any) -> str:
    """Return why the part must not read ahead, or "" if it may."""
    if subject.no_state(module) is None:
        return "it has a state for decoding"
    if getattr(module, "predicts_next", False):
        return "it learns to predict the next token"
    patterns = list(_patterns(module))
    if not patterns or any(p is None or p.reach()[1] > 0 for p in patterns):
        return ""
    return "" if subject.also is None and _is_widened(subject, module) else "its pattern reaches 0 ahead"


@torch.no_grad()
def _is_widened(subject: Subject, module: Any) -> bool:
    """True if a layer lets its mechanisms read beyond their patterns, as random keys do by ctx.also."""
    widened: list[bool] = []

    def look(part: nn.Module, inputs: tuple) -> None:
        widened.extend(argument.also is not None for argument in inputs if isinstance(argument, Context))

    hooks = [part.register_forward_pre_hook(look) for part in module.modules() if isinstance(part, Mechanism)]
    try:
        subject.call(module, subject.ragged(LENGTH))
    finally:
        for hook in hooks:
            hook.remove()
    return any(widened)


def _patterns(module: nn.Module) -> Iterator[Pattern | None]:
    """Yield the patterns of every mechanism of self-attention, and None for a mechanism without a pattern."""
    across = {
        part
        for module_part in module.modules()
        if isinstance(module_part, Attention) and module_part.cross
        for part in module_part.modules()
    }
    for part in module.modules():
        if isinstance(part, Mechanism) and part not in across:
            inside = [
                value
                for module_part in part.modules()
                for value in vars(module_part).values()
                if isinstance(value, Pattern)
            ]
            yield from inside
            if not inside:
                yield None


@torch.no_grad()
def _redraw(length: int, subject: Subject, module: Any, seed: int, because: str) -> None:
    """Redraw, in copy t of the rows, everything after column t, for every column but the last."""
    batch = subject.ragged(length, seed=seed)
    rows = len(batch.pos)
    copies = batch.rows([*range(rows)] * (length - 1))
    after_column = torch.arange(length - 1).repeat_interleave(rows)[:, None]
    later = torch.arange(length) > after_column
    before = _call_seeded(subject, module, copies)
    mode = " in train mode" if module.training else ""
    for change, changed in _changes(subject, copies, later, seed):
        after = _call_seeded(subject, module, changed)
        for t in range(length - 1):
            pos = torch.where(later | (after_column != t), -1, copies.pos)
            sentence = f"{because}, but {change} the columns after column {t} of {length} changes the output{mode}"
            agree(after.y, before.y, sentence, pos=pos, bound=1e-12)
            agree_names(after.aux, before.aux, sentence)
            for name, value in before.aux.items():
                if value.dim():
                    agree(after.aux[name], value, f"{sentence} (aux {name!r})", pos=pos, bound=1e-12)


def _call_seeded(subject: Subject, module: Any, batch: InputBatch) -> Out:
    """Call the part with a fixed seed, so that calls with equally many rows draw the same numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return subject.call(module, batch)


def _changes(subject: Subject, batch: InputBatch, later: Tensor, seed: int) -> Iterator[tuple[str, InputBatch]]:
    """Yield variants of the batch with later columns redrawn, redrawn large, or changed to padding."""
    rows, columns = batch.size
    redrawn = subject.content(rows, columns, seed + 1000)
    large = subject.content(rows, columns, seed + 2000) * (1 if subject.vocab else int(HUGE))
    for change, x in (("redrawing", redrawn), ("a large change of", large)):
        yield change, dataclasses.replace(batch, x=torch.where(_column(later & batch.is_real, x), x, batch.x))
    removed = torch.where(_column(later & batch.is_real, batch.x), torch.full_like(batch.x, -1), batch.x)
    yield "removing", dataclasses.replace(batch, x=removed, pos=torch.where(later, -1, batch.pos))


def _column(mark: Tensor, x: Tensor) -> Tensor:
    return mark if x.dim() == 2 else mark[..., None]


def _differentiate(length: int, subject: Subject, module: Any, decodes: bool, because: str) -> None:
    batch = subject.ragged(length)
    read = dependences(subject, module, batch)
    ahead = beyond_rounding(read).triu(1)
    if because and ahead.any():
        r, t, s = ahead.nonzero()[0].tolist()
        query, key = int(batch.pos[r, t]), int(batch.pos[r, s])
        raise Broken(
            f"position {query} of {length} reads position {key}, but the part must not read ahead because {because}"
        )
    if subject.pattern is not None:
        _check_pattern(subject.pattern, module.projection.heads, batch, read)
    elif not subject.source and (read[batch.is_real].sum(-1) == 0).all():
        raise Broken(f"the output depends on none of {length} tokens, so this law cannot test if it reads later tokens")
    elif decodes and length > 2 and not subject.source and _has_content(subject, module):
        if not (read.tril(-1) > 0).any():
            raise Broken(f"the part has a state, but none of {length} positions depends on an earlier one")


@torch.no_grad()
def _check_memory(subject: Subject, module: Any, memory: Memory) -> None:
    """Change one token in each row and check which positions depend on it, also through summaries."""
    reach = memory.receptive_field
    back = reach.reach()[0]
    if back == math.inf:
        return  # the memory declares no bound
    length, choices = int(back) + 2 * memory.length, Choices()
    # tokens around the edge of the field of the last segment, and some from everywhere
    edge = torch.arange(memory.length - CHANGED // 4, memory.length + CHANGED // 4)
    at = torch.cat([edge, torch.linspace(0, length - 1, CHANGED).long()]).clamp(0, length - 1).unique()
    batch = subject.batch([length] * len(at))
    same = subject.content(1, length, 0).repeat(len(at), 1, 1)
    changed = same.clone()
    changed[torch.arange(len(at)), at] = subject.content(1, length, 1)[0, at]
    with choices.record():
        before = subject.call(module, dataclasses.replace(batch, x=same)).y
    with choices.replay():  # the choice of the states to keep may depend on the changed token
        after = subject.call(module, dataclasses.replace(batch, x=changed)).y
    receptive_field = ((after - before).abs().amax(-1) > HEARD).T  # [query, changed token]
    wrong = receptive_field & ~reach.matrix(length)[:, at]
    if wrong.any():
        t, s = wrong.nonzero()[0].tolist()
        sentence = f"position {t} of {length} depends on position {int(at[s])}, outside of receptive_field={reach}"
        raise Broken(f"{sentence}; if the part chooses states to keep, choose with kinformer.core.choice.choice")


def _has_content(subject: Subject, module: Any) -> bool:
    """Return True if the state holds anything besides the next position."""
    return any(name != "now" for name, _ in leaves(subject.start(module, ROWS, 4)))


def _check_pattern(pattern: Pattern, heads: int, batch: InputBatch, read: Tensor) -> None:
    pos = batch.pos[:, None]
    may = pair_mask(narrow_pattern(pattern, batch.only, batch.also), pos, pos, range(heads)).any(1).expand_as(read)
    other = batch.is_real[:, :, None] & batch.is_real[:, None, :] & ~torch.eye(read.shape[1], dtype=torch.bool)
    wrong = other & torch.where(may, read == 0, beyond_rounding(read))
    if wrong.any():
        r, t, s = wrong.nonzero()[0].tolist()
        verb = "does not read" if may[r, t, s] else "reads"
        allows = "allows" if may[r, t, s] else "does not allow"
        query, key = int(batch.pos[r, t]), int(batch.pos[r, s])
        raise Broken(f"position {query} {verb} position {key}, but its pattern {allows} it: {pattern}")

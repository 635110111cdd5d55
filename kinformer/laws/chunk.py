"""Law chunk: cut a row anywhere and carry the state; outputs, aux and the last state are those of one call."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from kinformer.core.layer import Out, State
from kinformer.laws.support.batch import Batch
from kinformer.laws.support.compare import agree_out, agree_states, entries, joined
from kinformer.laws.support.finding import Broken, Unjudged, smallest
from kinformer.laws.support.subject import EFFORT, Subject

SAYS = "cut anywhere, the state carried on, it gives what one call gives"
OVER = "layer"
LENGTH = 13


def judge(subject: Subject) -> Iterator[str]:
    """Uneven cuts, longer and shorter than the cache; rows padded differently; rows longer than `start` was told."""
    module = subject.build()
    stateless = ""
    for _ in subject.modes(module):
        text = subject.no_state(module)
        if text is None:
            for seed in range(2 * EFFORT):
                yield from smallest(_cut, LENGTH + 5 * (seed // 2), subject, module, seed)
        elif "use " not in text:
            yield f"start() says that there is no state but not what to do instead: {text!r}"
        else:
            stateless = text
    if stateless:
        raise Unjudged(f"no state to judge: {stateless}")


def _cut(length: int, subject: Subject, module: Any, seed: int) -> None:
    batch = subject.ragged(length, seed=seed) if seed % 2 else subject.batch([length] * 3, seed=seed)
    whole = subject.call(module, batch, subject.start(module, 3, length))
    if whole.state is None:
        raise Broken("a state went in and none came out, so the next chunk cannot go on")
    plain = subject.call(module, batch)
    agree_out(whole, plain, "a call with a fresh state differs from one without", batch.pos)
    if plain.state is not None:
        raise Broken("no state went in and one came out: training would pay for a cache")
    even = ((length, [1] * length), (length // 3 + 1, _primes(length)))
    odd = ((2 * length, _drawn(length, seed)), (length // 3 + 1, [1] * length))
    for told, sizes in odd if seed % 2 else even:
        sentence = f"cut into chunks of {sizes}, {length} tokens give another result than in one call"
        out = chunked(subject, module, batch, sizes, subject.start(module, 3, told))
        agree_out(out, whole, sentence, batch.pos)
        agree_states(out.state, whole.state, sentence)
        if told >= length and not subject.source and subject.also is None:
            _no_growth(subject.start(module, 3, told), out.state, f"{told} tokens announced and {length} read")


def _no_growth(start: State, end: State, sentence: str) -> None:
    after = dict(entries(end))
    for name, (before, _) in entries(start):
        if name in after and after[name][0].numel() > before.numel():
            shapes = f"from {list(before.shape)} to {list(after[name][0].shape)}"
            raise Broken(f"with {sentence}, the state's {name} grew {shapes}: start() made too little room")


def chunked(subject: Subject, module: Any, batch: Batch, sizes: list[int], state: State) -> Out:
    """One call for each chunk, the state carried on."""
    outs = []
    for hi, size in zip(itertools.accumulate(sizes), sizes, strict=True):
        outs.append(subject.call(module, batch.columns(hi - size, hi), state))
        state = outs[-1].state
    return joined(outs)


def _drawn(length: int, seed: int) -> list[int]:
    rng = random.Random(1000 * length + seed)
    sizes: list[int] = []
    while sum(sizes) < length:
        sizes.append(min(rng.choice((1, 2, 4, 9)), length - sum(sizes)))
    return sizes


def _primes(length: int) -> list[int]:
    sizes: list[int] = []
    for prime in itertools.cycle((7, 2, 5, 3)):
        if sum(sizes) == length:
            return sizes
        sizes.append(min(prime, length - sum(sizes)))
    return sizes

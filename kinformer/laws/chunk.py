"""Law chunk: a row in chunks, with a state carried between them, gives the result of one call.

The law compares outputs, further results (`Out.aux`), the log-sum-exp of every attention call, and the last decoding
state. It computes chunks without gradients, as in decoding. The law `gradients` tests their gradients.
"""

import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kinformer.core.layer import Out, State
from kinformer.core.mechanism import NoState
from kinformer.laws.support.comparisons import agree, agree_out, agree_states, entries, join_outs
from kinformer.laws.support.findings import Broken, Unjudged, find_smallest
from kinformer.laws.support.input_batch import InputBatch
from kinformer.laws.support.lse_record import agree_lse, record_lse
from kinformer.laws.support.subject import EFFORT, ROWS, Subject, TrainingSubject

SAYS = "a row in chunks with a carried state gives the result of one call"
OVER = ("layer", "model")
LENGTH = 13


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Compare rows in chunks, with a carried decoding state, with one call; yield each difference.

    subject: a layer or model with the part to test.

    Rows are cut and padded in several ways. Chunks are uneven, and longer or shorter than the cache. Some rows are
    longer than the length given to `start`. A call with `ctx.remember`, which only updates the state, must leave the
    same state as a full call. For a language model, the losses of consecutive pieces that share a token must add up to
    the loss of the row. The same holds for its measures.
    """
    module = subject.build()
    if isinstance(subject, TrainingSubject):
        if not module.predicts_next or not isinstance(subject.ragged(2).x, Tensor):
            raise Unjudged("the model's batches are not rows of text that can be cut into chunks")
        try:
            module.start(1, LENGTH)
        except NoState as error:
            raise Unjudged(f"no decoding state to test: {error}") from error
        yield from find_smallest(_check_losses, LENGTH, subject, module)
        return
    stateless = ""
    for _ in subject.modes(module):
        text = subject.no_state(module)
        if text is None:
            for seed in range(2 * EFFORT):
                yield from find_smallest(_check_cuts, LENGTH + 5 * (seed // 2), subject, module, seed)
            if not subject.vocab:
                yield from find_smallest(_check_remembering, LENGTH, subject, module)
        elif not re.search(r"\buse ", text, re.IGNORECASE):  # "because " is no advice
            yield f"NoState from start() does not say what to use instead (write 'use ...'): {text!r}"
        else:
            stateless = text
    if stateless:
        raise Unjudged(f"no decoding state to test: {stateless}")


def _check_cuts(length: int, subject: Subject, module: Any, seed: int) -> None:
    batch = subject.ragged(length, seed=seed) if seed % 2 else subject.batch([length] * 3, seed=seed)
    with record_lse(module) as reads:
        whole = subject.call(module, batch, subject.start(module, 3, length))
    if whole.state is None:
        raise Broken("a call with a state returns no state, so the next chunk cannot continue")
    with record_lse(module) as lse_records:
        plain = subject.call(module, batch)
    sentence = "a call with a fresh state gives a different result than a call without a state"
    agree_out(whole, plain, sentence, batch.pos)
    agree_lse(reads, lse_records, sentence, batch.pos)
    if plain.state is not None:
        raise Broken("a call without a state returns a state, so training would build a cache that it does not need")
    even = ((length, [1] * length), (length // 3 + 1, _primes(length)))
    odd = ((2 * length, _draw_sizes(length, seed)), (length // 3 + 1, [1] * length))
    for announced, sizes in odd if seed % 2 else even:
        sentence = f"{length} tokens in chunks of {sizes} give a different result than one call"
        with torch.no_grad(), record_lse(module) as lse_records:
            out = call_in_chunks(subject, module, batch, sizes, subject.start(module, 3, announced))
        agree_out(out, whole, sentence, batch.pos)
        agree_lse(lse_records, reads, sentence, batch.pos)
        agree_states(out.state, whole.state, sentence)
        if announced >= length and not subject.source and subject.also is None:
            _no_growth(
                subject.start(module, 3, announced),
                out.state,
                f"start() for {announced} tokens and {length} tokens read",
            )


@torch.no_grad()
def _check_remembering(length: int, subject: Subject, module: Any) -> None:
    batch, ends_as = subject.batch([length, length - 1, length]), []
    ends = (length // 2, length - 1, length)
    for remember in (False, True):
        state = subject.start(module, 3, length)
        for lo, hi in itertools.pairwise((0, *ends)):
            piece = batch.columns(lo, hi)
            state = module(piece.x, state, piece.context().replace(remember=remember and hi < length)).state
        ends_as.append(state)
    agree_states(
        ends_as[1],
        ends_as[0],
        f"calls with ctx.remember up to columns {ends[:2]} leave a different state than full calls",
    )


def _check_losses(length: int, subject: TrainingSubject, model: Any) -> None:
    x = subject.ragged(length).x
    for ask, quantity in ((_losses, "the loss"), (_measures, "a measure")):
        whole, _ = ask(model, x, model.start(ROWS, length))
        for cut in (1, length // 2):
            first, state = ask(model, x[:, : cut + 1], model.start(ROWS, length))
            second, _ = ask(model, x[:, cut:], state)
            for n, (first_part, second_part, total) in enumerate(zip(first, second, whole, strict=True)):
                sentence = (
                    f"{quantity} of {length} tokens differs from the sum over two pieces that share token {cut} "
                    f"(number {n})"
                )
                agree(first_part + second_part, total, sentence)


def _losses(model: Any, x: Tensor, state: State) -> tuple[list[Tensor], State]:
    loss = model(x, state)
    return [torch.as_tensor(loss.count), loss.parts["nll"] * loss.count] if "nll" in loss.parts else [], loss.state


def _measures(model: Any, x: Tensor, state: State) -> tuple[list[Tensor], State]:
    judged = model.judge(x, state)
    return [number for pair in judged.totals.values() for number in pair], judged.state


def _no_growth(start: State, end: State, sentence: str) -> None:
    after = dict(entries(end))
    for name, (before, _) in entries(start):
        if name in after and after[name][0].numel() > before.numel():
            shapes = f"from {list(before.shape)} to {list(after[name][0].shape)}"
            raise Broken(f"with {sentence}, {name} of the state grew {shapes}; start() must make it large enough")


def call_in_chunks(subject: Subject, module: Any, batch: InputBatch, sizes: list[int], state: State) -> Out:
    """Call a module once for each chunk of some rows and join the outputs.

    subject: the layer or model under test, which knows how to call the module.
    module: the module to call, built by `subject`.
    batch: the whole rows.
    sizes: length of each chunk in tokens, padding included.
    state: decoding state before the first chunk; each later chunk gets the state of the chunk before it.
    """
    outs = []
    for hi, size in zip(itertools.accumulate(sizes), sizes, strict=True):
        outs.append(subject.call(module, batch.columns(hi - size, hi), state))
        state = outs[-1].state
    return join_outs(outs)


def _draw_sizes(length: int, seed: int) -> list[int]:
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

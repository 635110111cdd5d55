"""Blocks that use the attention weights of a block beneath again: times as fast as blocks that share nothing."""

import torch
from interleave import Contender, format_interval, middle, race, ready, setup_with_words
from jaxtyping import Int
from torch import Tensor

from kinformer.members.lazyformer import lazyformer
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM

D, DEPTH, HEADS = 256, 4, 4
LENGTHS = {16: 64, 128: 8, 512: 4, 1024: 2, 2048: 1}  # rows of each length
FORMS = ("encoder", "decoder")


def passing(model: LM | MLM, tokens: Int[Tensor, "B T"], training: bool) -> Contender:
    """Forward, and backward in training."""

    def run() -> None:
        with torch.set_grad_enabled(training):
            loss = model(tokens).total
        if training:
            model.zero_grad()
            loss.backward()

    return ready(run)


def measure(form: str, training: bool, rounds: int) -> None:
    print(f"| {form}, {'forward and backward' if training else 'forward'} | ms, every=1 | every=2 | every=4 |")
    print("|---" * 4 + "|")
    for length, batch in LENGTHS.items():
        tokens = torch.randint(256, (batch, length))
        models = {
            every: lazyformer(d=D, depth=DEPTH, heads=HEADS, every=every, form=form, length=length)  # type: ignore[arg-type]
            for every in (1, 2, 4)
        }
        seconds = race({str(every): passing(model, tokens, training) for every, model in models.items()}, rounds)
        took = middle(duration * 1e3 for duration in seconds["1"])
        speeds = [
            format_interval(middle(a / b for a, b in zip(seconds["1"], seconds[every], strict=True)))
            for every in ("2", "4")
        ]
        print(f"| {batch} x {length} | {format_interval(took)} | {' | '.join(speeds)} |", flush=True)
    print()


if __name__ == "__main__":
    rounds, forms = setup_with_words(f"{__doc__} Width {D}, {DEPTH} blocks.", "encoder or decoder (default both)")
    for form in forms or FORMS:
        for training in (True, False):
            measure(form, training, rounds)

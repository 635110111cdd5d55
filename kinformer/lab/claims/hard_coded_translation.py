"""Hard-coding self-attention loses less translation quality than hard-coding cross-attention."""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.batches import Batches
from kinformer.lab.plot import by_category
from kinformer.lab.train.fit import fit
from kinformer.members.hard_coded_gaussian import hard_coded_gaussian
from kinformer.members.transformer import transformer
from kinformer.models.seq2seq import Seq2Seq

WORDS, LENGTH, ROWS, STEPS, RATE = 8, 8, 32, 300, 3e-3
MINUTES = 1.5  # of a default run with three seeds
SMALL = 0.25  # largest share of the whole increase that counts as small
SIZES: dict[str, Any] = {"d": 32, "depth": 2, "heads": 4, "hidden": 64, "norm": "pre", "vocab": WORDS}
SAYS = "hard-coded self-attention costs a translation less than hard-coded cross-attention"
SOURCE = "You et al., 2020, arXiv:2005.00742, abstract and section 4: small losses of BLEU, and large ones"
FORMS: dict[str, Callable[[], Seq2Seq]] = {
    "learned": lambda: transformer(**SIZES, dropout=0.0, smoothing=0.0),
    "hard-coded self-attention": lambda: _hard_coded(across="learned"),
    "hard-coded self- and cross-attention": lambda: _hard_coded(across="hard_coded"),
}


def _hard_coded(**across: Any) -> Seq2Seq:
    model = hard_coded_gaussian(**SIZES, **across)
    assert isinstance(model, Seq2Seq)
    return model


def pairs(rows: int, seed: int) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Return sentences of random words with their translations.

    A translation replaces each word by another one and reverses the order.

    rows: number of sentences.
    seed: seed of the sentences; the dictionary is always the same.
    """
    source = torch.randint(WORDS, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    words = torch.randperm(WORDS, generator=torch.Generator().manual_seed(0))
    return source, words[source].flip(1)


def bits(form: str, seed: int, steps: int) -> float:
    """Train a translation model and return its bits per token on new sentences.

    form: key of `FORMS`, which says if self-attention or cross-attention is hard-coded.
    seed: seed of the weights and of the sentences.
    steps: number of training steps.
    """
    with seeded(seed):
        data = Batches(lambda step: pairs(ROWS, 10_000 * (seed + 1) + step), [pairs(8 * ROWS, 9_999)])
        return fit(FORMS[form](), data, steps=steps, lr=RATE, seed=seed).points[-1].valid


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Compare the bits per token of three translation models after equal trainings.

    The first has learned attention, the second hard-coded self-attention, the third hard-coded self- and
    cross-attention. A hard-coded head weighs tokens by a Gaussian around a fixed offset.

    The claim holds if two conditions are met. The third model needs more bits per token than the second. The additional
    bits of the second model over the first are at most 0.25 of the third's.

    seeds: seeds of the trainings.
    steps: number of training steps.
    """
    bits_by_form = {form: [bits(form, seed, steps) for seed in seeds] for form in FORMS}
    learned, within, across = bits_by_form.values()
    differences = [far - near for near, far in zip(within, across, strict=True)]
    share = [(near - mid) / (far - mid) for mid, near, far in zip(learned, within, across, strict=True)]
    measures = (
        Measure("additional bits per token if cross-attention is hard-coded too", differences, "least", 0),
        Measure(
            "bits that hard-coded self-attention costs, divided by the bits that both cost",
            share,
            "most",
            SMALL,
            no_effect=1.0,
        ),
    )
    facts = {f"bits per token, {form}": f"{mean(of):.3f}" for form, of in bits_by_form.items()}
    facts["steps of training"] = f"{steps} of {ROWS} sentences of {LENGTH} words"
    plot = by_category("translation of words, in reverse order", "bits per token", bits_by_form, ylim=(0, None))
    return Claim(SAYS, SOURCE, measures, facts, (plot,))

"""Strided sets of keys suit pictures, fixed sets suit text, and a summary of one position costs bits."""

from collections.abc import Mapping, Sequence
from typing import Any

from kinformer.lab.claims.support.byte_models import (
    BitsCurve,
    TrainingSizes,
    describe_training,
    describe_values,
    last_bits,
    train_for_bits,
)
from kinformer.lab.claims.support.claim_models import patterns
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.claims.support.wave_pictures import wave_data
from kinformer.lab.data.images import ImageData
from kinformer.lab.data.text import read as read_text
from kinformer.lab.plot import by_category
from kinformer.members.sparse_transformer import sparse_transformer
from kinformer.models.image import ImageModel
from kinformer.models.lm import LM

SIDE, STEPS = 16, 250
MINUTES = 5.8  # of a default run with three seeds
TRAINING = TrainingSizes(length=SIDE * SIDE, rows=1, rate=3e-3, valid=8192)
SIZES: dict[str, Any] = {"d": 64, "depth": 2, "heads": 2, "stride": SIDE}
EQUAL = 2  # positions of a summary with which fixed sets have as many pairs as strided ones
SUMMARIES = (1, 4, 8)
SETS: dict[str, dict[str, Any]] = {
    "strided": {"attention": "strided"},
    "fixed": {"attention": "fixed", "summary": EQUAL},
}
SAYS = "strided sets of keys suit pictures, fixed sets suit text, and a summary of one position costs bits"
SOURCE = "Child et al., 2019, arXiv:1904.10509, section 4.3"
SCALE = (
    "fixed sets with a stride of 128 and summaries of 32 for enwik8 (12,288 bytes a row, 30 layers), strided ones for "
    "CIFAR-10 (3,072 values, 128 layers); summaries of 8 to 32 positions"
)


def build(keywords: Mapping[str, Any], form: str) -> LM | ImageModel:
    """Build a `sparse_transformer` for texts or pictures of 256 steps, with a stride of 16.

    keywords: its sets of keys.
    form: "text" or "images".
    """
    sizes: dict[str, Any] = {"shape": (1, SIDE, SIDE)} if form == "images" else {"length": SIDE * SIDE}
    return sparse_transformer(form=form, **sizes, **SIZES, **keywords)  # type: ignore[arg-type]


def pairs(keywords: Mapping[str, Any]) -> int:
    """Return the number of (query, key) pairs of a layer in a row of 256 steps.

    keywords: the sets of keys of a `sparse_transformer`.
    """
    return int(patterns(build(keywords, "text"))[0].matrix(SIDE * SIDE).sum())


def train_on_pictures(keywords: Mapping[str, Any], seed: int, steps: int, pictures: ImageData) -> BitsCurve:
    """Train a model of pictures, and return its validation bits per dimension at four times.

    keywords: the sets of keys of a `sparse_transformer`.
    seed: seed of the weights and of the batches.
    steps: number of training steps.
    pictures: data to learn from.
    """
    return train_for_bits(lambda: build(keywords, "images"), seed, steps, pictures, TRAINING._replace(length=None))


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Compare strided and fixed sets of keys on text and pictures, and three sizes of summaries.

    Texts and pictures have 256 steps, and the stride is 16. A picture has 16 x 16 pixels and is a sum of three waves in
    random directions, so a strided set reads the pixels above. Every layer uses both sets. Fixed sets with a summary of
    2 positions have about as many pairs as strided ones; the numbers are reported. All models have equal weights at the
    start, equal batches and steps. The claim holds if four conditions are met, each by more than two standard errors.
    On pictures, fixed sets need more bits than strided ones. On text, strided sets need more than fixed ones. On text,
    a summary of 1 position needs more bits than one of 4, and more than one of 8.

    Measured with three seeds, no order is resolved after 250 steps. All models of text need 4.7 to 4.8 bits per byte,
    with differences between seeds of up to 0.5 bits. The entropy of single bytes is 4.79 bits, so the models have
    learned little beyond the frequencies of bytes. Longer training is needed before their keys can matter.

    Larger summaries also read more pairs, as in the paper.

    seeds: seeds of the weights and of the trainings.
    steps: number of training steps.
    """
    text, pictures = read_text("stdlib"), wave_data(SIDE)
    by_summary = {f"fixed, summary of {count}": {"attention": "fixed", "summary": count} for count in SUMMARIES}

    def on_text(keywords: Mapping[str, Any]) -> list[BitsCurve]:
        return [train_for_bits(lambda: build(keywords, "text"), seed, steps, text, TRAINING) for seed in seeds]

    written = last_bits({name: on_text(keywords) for name, keywords in {**SETS, **by_summary}.items()})
    drawn = last_bits(
        {name: [train_on_pictures(sets, seed, steps, pictures) for seed in seeds] for name, sets in SETS.items()}
    )
    one, four, eight = (written[name] for name in by_summary)
    compared = (
        ("on pictures, fixed minus strided", drawn["fixed"], drawn["strided"]),
        ("on text, strided minus fixed", written["strided"], written["fixed"]),
        ("on text, a summary of 1 minus of 4", one, four),
        ("on text, a summary of 1 minus of 8", one, eight),
    )
    measures = tuple(
        Measure(f"validation bits {name}", [a - b for a, b in zip(more, less, strict=True)], "least", 0)
        for name, more, less in compared
    )
    facts = {f"bits per byte of text, {name}": describe_values(values) for name, values in written.items()}
    facts |= {f"bits per pixel of pictures, {name}": describe_values(values) for name, values in drawn.items()}
    facts |= {f"pairs of a layer, {name}": f"{pairs(sets):,}" for name, sets in {**SETS, **by_summary}.items()}
    facts["bits of guessing"] = "8 for a byte, 4 for a pixel of 16 levels"
    facts["training"] = describe_training(steps, TRAINING) + ", or as many pictures"
    facts["the paper's scale"] = SCALE
    plots = (
        by_category("text", "validation bits per byte", written, horizontal=True),
        by_category("pictures", "validation bits per pixel", drawn),
    )
    return Claim(SAYS, SOURCE, measures, facts, plots)

"""Consistency of early exits: distance of each generated text from the text of the full model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from kinformer.core.checks import check_option
from kinformer.decoding.generate import generate
from kinformer.decoding.layers_used import record_layers_used
from kinformer.decoding.pad_sequences import pad_sequences
from kinformer.decoding.prompts import Prompts
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.exits.exit_rule import ExitRule

ROWS = 32  # texts in a batch
By = Literal["textual", "risk"]
Text = Sequence[int]


class GeneratedTexts(NamedTuple):
    """Generated texts with the number of layers that their tokens used.

    texts: tokens of each text.
    layers_by_place: number of layers used at each position of a text, summed over the texts.
    counts: number of texts that have a token at each position.
    """

    texts: list[Text]
    layers_by_place: list[float]
    counts: list[int]

    @property
    def layers(self) -> float:
        """Mean number of layers per token."""
        return sum(self.layers_by_place) / max(sum(self.counts), 1)

    @property
    def mean_layers_by_place(self) -> list[float]:
        """Mean number of layers per token, at each position of the texts."""
        return [layers / max(count, 1) for layers, count in zip(self.layers_by_place, self.counts, strict=True)]


def losses(by: By, prompts: Prompts, early: Sequence[Text], full: Sequence[Text]) -> list[float]:
    """Return the quality loss, in [0, 1], of each text written with early exits.

    by: "textual" for the distance between both texts. "risk" for the increase of the distance from the reference.
        It is the early text's distance minus the full text's distance, or 0 if negative.
    prompts: prompts with their references.
    early: texts written with exits.
    full: texts written by the full model.

    The distance between two texts is 1 - ROUGE-L, or with `prompts.by_place` the fraction of positions that differ.
    Source: Schuster et al., 2022, arXiv:2207.07061, section 4.1.
    """
    apart = differing_places if prompts.by_place else rouge_loss
    if check_option("consistency", by, By) == "textual":
        return [apart(text, other) for text, other in zip(early, full, strict=True)]
    triples = zip(early, full, prompts.references, strict=True)
    return [max(0.0, apart(text, reference) - apart(other, reference)) for text, other, reference in triples]


def write_texts(
    model: Any, prompted: Prompts, on_progress: Callable[[int], None] = lambda count: None
) -> GeneratedTexts:
    """Generate a text for each prompt by greedy decoding, and count the layers used.

    model: model to generate with.
    prompted: prompts and the number of tokens to generate.
    on_progress: called after each batch with the number of texts so far.
    """
    texts: list[Text] = []
    layers, counts, total = [0.0] * prompted.tokens, [0] * prompted.tokens, len(prompted.prompts)
    device = next(model.parameters()).device
    for first in range(0, total, ROWS):
        rows_of_batch = slice(first, first + ROWS)
        source = (
            None if prompted.sources is None else pad_sequences(prompted.sources[rows_of_batch], front=True).to(device)
        )
        prompts = prompted.prompts[rows_of_batch]
        tokens = None if source is not None else pad_sequences(prompts, front=True).to(device)
        with record_layers_used(model) as took:
            rows = generate(model, tokens, prompted.tokens, temperature=0, source=source)
        new = rows if tokens is None else rows[:, tokens.shape[1] :]
        end = getattr(model, "end", None)
        texts += [[token for token in row if token >= 0 and token != end] for row in new.tolist()]
        for step, left in enumerate(took):
            real = new[:, step] >= 0
            layers[step] += float(left[real].sum())
            counts[step] += int(real.sum())
        on_progress(len(texts))
    return GeneratedTexts(texts, layers, counts)


@contextmanager
def use_rule(body: EarlyExit, rule: ExitRule) -> Iterator[None]:
    """Replace the exit rule of some layers within a `with` block.

    body: layers with early exits.
    rule: exit rule that they use in the block.
    """
    old_rule, body.rule = body.rule, rule
    try:
        yield
    finally:
        body.rule = old_rule


def differing_places(text: Text, other: Text) -> float:
    """Return the number of positions at which two texts differ, divided by the longer length.

    text, other: tokens of the texts.
    """
    same = sum(a == b for a, b in zip(text, other, strict=False))
    return 1 - same / max(len(text), len(other), 1) if text or other else 0.0


def rouge_loss(text: Text, other: Text) -> float:
    """Return 1 - ROUGE-L of two texts.

    ROUGE-L is twice the length of the longest common subsequence over the sum of both lengths.

    text, other: tokens of the texts.

    Source: Lin, 2004, "ROUGE: a package for automatic evaluation of summaries", section 3.1.
    """
    if not text and not other:
        return 0.0
    longest = [0] * (len(other) + 1)  # longest common subsequence of the text so far and each prefix of the other
    for a in text:
        diagonal = 0
        for n, b in enumerate(other, 1):
            diagonal, longest[n] = longest[n], diagonal + 1 if a == b else max(longest[n], longest[n - 1])
    return 1 - 2 * longest[-1] / (len(text) + len(other))

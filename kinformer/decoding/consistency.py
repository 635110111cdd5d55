"""Consistency: what a model that leaves early loses beside the full one, text by text."""

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

ROWS = 32  # texts that are written side by side
By = Literal["textual", "risk"]
Text = Sequence[int]


class GeneratedTexts(NamedTuple):
    """Texts, and how many layers their tokens took: in all by place, and of how many tokens."""

    texts: list[Text]
    layers_by_place: list[float]
    counts: list[int]

    @property
    def layers(self) -> float:
        """Of a token, in the mean."""
        return sum(self.layers_by_place) / max(sum(self.counts), 1)

    @property
    def mean_layers_by_place(self) -> list[float]:
        """Of a token at each place, in the mean."""
        return [layers / max(count, 1) for layers, count in zip(self.layers_by_place, self.counts, strict=True)]


def losses(by: By, prompts: Prompts, early: Sequence[Text], full: Sequence[Text]) -> list[float]:
    """In [0, 1], of each text that was written with exits, beside that of the full model.

    "textual": how far the two are apart. "risk": how much farther the early one is from what the data says than the
    full one, 0 where it is not. Far apart is 1 - ROUGE-L; of answers that are right place by place, the share of places
    that differ.

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
    """What a model writes, token by token the likeliest; `on_progress` gets the number of texts after each batch."""
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
    """The layers with another rule for a while."""
    old_rule, body.rule = body.rule, rule
    try:
        yield
    finally:
        body.rule = old_rule


def differing_places(text: Text, other: Text) -> float:
    """The share of places at which two texts differ, of the longer one's."""
    same = sum(a == b for a, b in zip(text, other, strict=False))
    return 1 - same / max(len(text), len(other), 1) if text or other else 0.0


def rouge_loss(text: Text, other: Text) -> float:
    """1 - ROUGE-L: twice the longest common subsequence over both lengths, taken from 1.

    Source: Lin, 2004, "ROUGE: a package for automatic evaluation of summaries", section 3.1.
    """
    if not text and not other:
        return 0.0
    longest = [0] * (len(other) + 1)  # common subsequences of what was read of one and each begin of the other
    for a in text:
        diagonal = 0
        for n, b in enumerate(other, 1):
            diagonal, longest[n] = longest[n], diagonal + 1 if a == b else max(longest[n], longest[n - 1])
    return 1 - 2 * longest[-1] / (len(text) + len(other))

"""Consistency: what a model that leaves early loses beside the full one, text by text."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from kinformer.core.checks import one_of
from kinformer.decoding.generate import generate
from kinformer.decoding.layers_used import layers_used
from kinformer.decoding.padded import padded
from kinformer.decoding.prompts import Prompts
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.exits.rules import Rule

ROWS = 32  # texts that are written side by side
By = Literal["textual", "risk"]
Text = Sequence[int]


class Written(NamedTuple):
    """Texts, and how many layers their tokens took: in all by place, and of how many tokens."""

    texts: list[Text]
    taken: list[float]
    counts: list[int]

    @property
    def layers(self) -> float:
        """Of a token, in the mean."""
        return sum(self.taken) / max(sum(self.counts), 1)

    @property
    def places(self) -> list[float]:
        """Of a token at each place, in the mean."""
        return [taken / max(count, 1) for taken, count in zip(self.taken, self.counts, strict=True)]


def losses(by: By, given: Prompts, early: Sequence[Text], full: Sequence[Text]) -> list[float]:
    """In [0, 1], of each text that was written with exits, beside that of the full model.

    "textual": how far the two are apart. "risk": how much farther the early one is from what the data says than the
    full one, 0 where it is not. Far apart is 1 - ROUGE-L; of answers that are right place by place, the share of places
    that differ.

    Source: Schuster et al., 2022, arXiv:2207.07061, section 4.1.
    """
    apart = misplaced if given.by_place else unlike
    if one_of("consistency", by, By) == "textual":
        return [apart(one, other) for one, other in zip(early, full, strict=True)]
    lost = zip(early, full, given.references, strict=True)
    return [max(0.0, apart(one, wanted) - apart(other, wanted)) for one, other, wanted in lost]


def written(model: Any, given: Prompts, hear: Callable[[int], None] = lambda count: None) -> Written:
    """What a model writes, token by token the likeliest; `hear` is told after each batch how many texts there are."""
    texts: list[Text] = []
    taken, counts, total = [0.0] * given.tokens, [0] * given.tokens, len(given.prompts)
    device = next(model.parameters()).device
    for first in range(0, total, ROWS):
        some = slice(first, first + ROWS)
        source = None if given.sources is None else padded(given.sources[some], front=True).to(device)
        prompts = given.prompts[some]
        tokens = None if source is not None else padded(prompts, front=True).to(device)
        with layers_used(model) as took:
            rows = generate(model, tokens, given.tokens, temperature=0, source=source)
        new = rows if tokens is None else rows[:, tokens.shape[1] :]
        end = getattr(model, "end", None)
        texts += [[token for token in row if token >= 0 and token != end] for row in new.tolist()]
        for step, left in enumerate(took):
            real = new[:, step] >= 0
            taken[step] += float(left[real].sum())
            counts[step] += int(real.sum())
        hear(len(texts))
    return Written(texts, taken, counts)


@contextmanager
def ruled(body: EarlyExit, rule: Rule) -> Iterator[None]:
    """The layers with another rule for a while."""
    own, body.rule = body.rule, rule
    try:
        yield
    finally:
        body.rule = own


def misplaced(one: Text, other: Text) -> float:
    """The share of places at which two texts differ, of the longer one's."""
    same = sum(a == b for a, b in zip(one, other, strict=False))
    return 1 - same / max(len(one), len(other), 1) if one or other else 0.0


def unlike(one: Text, other: Text) -> float:
    """1 - ROUGE-L: twice the longest common subsequence over both lengths, taken from 1.

    Source: Lin, 2004, "ROUGE: a package for automatic evaluation of summaries", section 3.1.
    """
    if not one and not other:
        return 0.0
    longest = [0] * (len(other) + 1)  # common subsequences of what was read of one and each begin of the other
    for a in one:
        beside = 0
        for n, b in enumerate(other, 1):
            beside, longest[n] = longest[n], beside + 1 if a == b else max(longest[n], longest[n - 1])
    return 1 - 2 * longest[-1] / (len(one) + len(other))

"""The cases of `test_every_part.py`: which laws judge which examples."""

import os
from collections.abc import Iterator, Sequence
from itertools import cycle

from kinformer.core.discover import kinds
from kinformer.laws.support.verdicts import JudgedPart, kinds_judged, kinds_of, laws
from tests.discovered import EXECUTORS, discovered, discovered_in

PROVE = os.environ.get("KINFORMER_PROVE") == "1"
COSTLY = ("compiles", "learns")
# A member learns by parts of these folders. A member without a new class of them is trained in the long run alone.
# So are mechanisms and stacks, because other laws judge their gradients.
LEARNT_BY = ("memories", "mixers", "models")
# One of five parts of these folders is compiled. The long run also compiles parts of few operations, which lie inside
# of these, and the losses of all models but the plainest.
COMPILED = ("depth", "executors", "mechanisms", "members", "memories", "mixers", "models.lm")
PLAINEST = ("members.gpt", "members.bert", "members.transformer")  # trained before all others, judged by all laws
# Parts that each keep all laws may still break these laws together. The long run judges members by the others too.
TOGETHER = ("runs", "chunk", "padding", "peek", "gradients", "save_load", "own_weights", *COSTLY)
# These laws judge one of six parts in turn, and all parts in the long run.
SAMPLED = ("any_length", "autocast", "batch_mates", "dtype", "gradients", "mutation", "neighbours", "save_load")
IN_TURN = ("runs", "peek")  # the cheapest; one of them judges each further example of a member


def cases(*parts: str) -> list[tuple[str, str]]:
    """Pairs of a law and the name of an example; the law is "" for an example that no law judges.

    parts: files, each "kind.file". All laws judge all examples of these files. Without `parts` the pairs are a sample
        of all files, in the long run every pair.
    """
    chosen = list(_all_laws(parts) if parts else _sampled_laws())
    pairs = [(law, example.name) for example, names in chosen for law in laws() if law in names]
    return pairs + [("", example.name) for example, names in chosen if not names]


def _all_laws(parts: Sequence[str]) -> Iterator[tuple[JudgedPart, set[str]]]:
    for part in parts:
        for example in discovered_in(*part.split(".")):
            yield example, _laws_over(kinds_of(example))


def _sampled_laws() -> Iterator[tuple[JudgedPart, set[str]]]:
    """Examples with the laws that judge them: the first example of each part, in the long run every example.

    Some laws judge one of six parts, and one of five parts is compiled, in folders whose parts are more than a few
    operations. A member is judged by the laws that parts may break together. It is trained if it learns by a part that
    no member before it has. One law in turn judges each further example of a member. Every pattern is judged by what
    it says of itself, which is cheap.
    """
    law_in_turn, skips, count = cycle(IN_TURN), cycle((False, True, True, True, True)), 0
    parts: set[tuple[str, str]] = set()
    files: set[str] = set()
    trained_classes: set[type] = set()
    every = [example for kind in (*kinds(), EXECUTORS) for example in discovered(kind)]
    for example in sorted(every, key=lambda example: example.name.rpartition(".")[0] not in PLAINEST):
        file = example.name.rpartition(".")[0]
        part = (file, type(example.part).__name__)
        if PROVE:
            yield example, _laws_over(kinds_of(example))
        elif part not in parts:
            names = _laws_over(kinds_of(example))
            if not example.name.startswith(tuple(f"{place}." for place in COMPILED)):
                names = names.difference(("compiles",))
            if "compiles" in names and file not in PLAINEST and next(skips):
                names = names.difference(("compiles",))
            if file in files:
                names = names.difference(COSTLY)
            elif example.kind == "member":
                new_classes = _learnt_by(example).difference(trained_classes)
                names = names.difference(("compiles",) if new_classes else COSTLY)
                trained_classes |= new_classes
            if example.kind == "member" and file not in PLAINEST:
                names = names.intersection(TOGETHER)
            if file not in PLAINEST:
                count += 1
                names = names.difference(law for n, law in enumerate(SAMPLED) if (n + count) % 6)
            yield example, names
        elif example.kind == "pattern":
            yield example, _laws_over({"pattern"})
        elif example.kind == "member":
            yield example, {next(law_in_turn)} & _laws_over(kinds_of(example)) or {"runs"}
        parts.add(part)
        files.add(file)


def _learnt_by(example: JudgedPart) -> set[type]:
    """The classes by which a model learns."""
    classes = {type(part) for part in example.part.modules()}
    return {kind for kind in classes if not set(LEARNT_BY).isdisjoint(kind.__module__.split("."))}


def _laws_over(subjects: set[str]) -> set[str]:
    """The names of the laws that judge such subjects."""
    return {name for name, law in laws().items() if kinds_judged(law) & subjects}

"""A law and an example by name, as the process without checks is asked about them."""

import dataclasses
import functools
import warnings
from typing import Any

from kinformer.laws.support.judging import JudgedPart, laws, verdict
from tests.discovered import discovered


@functools.cache
def examples(kind: str) -> dict[str, JudgedPart]:
    """Those of a folder, by name."""
    return {one.name: one for one in discovered(kind)}


def judged(law: str, name: str) -> tuple[Any, ...]:
    """The verdict's fields."""
    with warnings.catch_warnings():
        if law == "compiles":
            warnings.simplefilter("default")  # the compiler's own
        said = verdict(law, laws()[law], examples(name.partition(".")[0])[name])
    assert said is not None, "the law does not speak of it"
    return dataclasses.astuple(said)

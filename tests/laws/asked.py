"""A law and an example by name, as the process without checks is asked about them."""

import dataclasses
import functools
import warnings
from typing import Any

from kinformer.laws.support.verdicts import JudgedPart, laws, verdict
from tests.discovered import discovered_in


@functools.cache
def examples(kind: str, file: str) -> dict[str, JudgedPart]:
    """The examples of a file, by name."""
    return {example.name: example for example in discovered_in(kind, file)}


def example(name: str) -> JudgedPart:
    """The example called "kind.file.n", or the executor called "executors.file"."""
    return examples(*name.split(".")[:2])[name]


def judged(law: str, name: str) -> tuple[Any, ...]:
    """The verdict's fields."""
    with warnings.catch_warnings():
        if law == "compiles":
            warnings.simplefilter("default")  # the compiler's own
        result = verdict(law, laws()[law], example(name))
    assert result is not None, "the law does not speak of it"
    return dataclasses.astuple(result)

"""Which files of parts a command line asks about, so that pytest collects the laws over these files alone."""

import re
from collections.abc import Iterator
from importlib.metadata import entry_points

import pytest
from _pytest.mark.expression import Expression

from kinformer.core.discover import kinds, part_files
from tests.discovered import EXECUTORS

ID = re.compile(r"\[(?:\w+-)?(\w+\.\w+)(?:\.\d+)?\]$")


def requested_parts(config: pytest.Config, test_file: str) -> list[str]:
    """The files, each "kind.file", that node ids or `-k` name; [] if the command line does not choose among files.

    `-k "peek and softmax"` chooses the files with "softmax" in their name. An expression with `not` chooses none.
    """
    paths = [argument for argument in config.args if "::" not in argument or test_file in argument]
    matches = [ID.search(path) for path in paths]
    if all(matches):
        return sorted({match[1] for match in matches if match})
    every = list(_files())
    keyword = config.option.keyword
    if not keyword or re.search(r"\bnot\b", keyword):
        return []
    laws = tuple(part_files("laws"))
    chosen = [part for part in every if _may_match(keyword, test_file, laws, part)]
    return chosen if len(chosen) < len(every) else []


def _files() -> Iterator[str]:
    for kind in (*kinds(), EXECUTORS):
        plugins = {point.name for point in entry_points(group=f"kinformer.{kind}")}
        for file in sorted({*part_files(kind), *plugins}):
            yield f"{kind}.{file}"


def _may_match(keyword: str, test_file: str, laws: tuple[str, ...], part: str) -> bool:
    """May an expression without `not` select any case of a file? It may also be true of a file without such a case."""
    ids = [f"tests/laws/{test_file}::test_law[{law}-{part}." for law in laws]

    def contains(name: str, /, **keywords: object) -> bool:
        # numbers of examples are unknown before the file is imported
        text = re.sub(r"\d+\]?$", "", name).lower()
        return any(text in case.lower() for case in ids)

    return Expression.compile(keyword).evaluate(contains)

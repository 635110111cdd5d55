"""Everything that the folders and plugins hold, for laws to judge."""

from collections.abc import Iterator
from functools import partial
from types import ModuleType

from kinformer.core.discover import examples, modules
from kinformer.laws.support.judging import JudgedPart


def discovered(kind: str) -> Iterator[JudgedPart]:
    """Every example of a folder and its plugins, called "kind.file.n"; of `execute`, every executor."""
    if kind == "executors":
        yield from (JudgedPart(f"execute.{name}", partial(_itself, module)) for name, module in modules(kind).items())
        return
    count: dict[str, int] = {}
    for file, example in examples(kind):
        n = count[file] = count.get(file, -1) + 1
        yield JudgedPart.of(f"{kind}.{file}.{n}", example)


def _itself(module: ModuleType) -> ModuleType:
    return module

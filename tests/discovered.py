"""Everything that the folders and plugins hold, for laws to judge."""

from collections.abc import Iterator
from functools import partial
from types import ModuleType

from kinformer.core.discover import load_plugins, modules, part_files
from kinformer.core.example import Example
from kinformer.core.module_import import load_user_module
from kinformer.laws.support.verdicts import JudgedPart

EXECUTORS = "executors"  # their examples are the modules themselves, called "executors.file"


def discovered(kind: str) -> Iterator[JudgedPart]:
    """Every example of a folder and its plugins, called "kind.file.n"; of `executors`, every executor."""
    for file, module in modules(kind).items():
        yield from _examples(kind, file, module)


def discovered_in(kind: str, file: str) -> Iterator[JudgedPart]:
    """The examples of one file or plugin of a kind. No other file of the kind is imported for them."""
    files = part_files(kind)
    module = load_user_module(str(files[file])) if file in files else load_plugins(kind)[file]
    yield from _examples(kind, file, module)


def _examples(kind: str, file: str, module: ModuleType) -> Iterator[JudgedPart]:
    if kind == EXECUTORS:
        yield JudgedPart(f"executors.{file}", partial(_itself, module))
        return
    for n, entry in enumerate(getattr(module, "EXAMPLES", ())):
        yield JudgedPart.from_example(f"{kind}.{file}.{n}", Example.from_entry(entry))


def _itself(module: ModuleType) -> ModuleType:
    return module

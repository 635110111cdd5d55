"""Count the names in the code that say nothing, and the public class names that mean several things.

    python bench/words.py                 # the share by folder
    python bench/words.py --list 40       # and the most frequent names with a place of each

A bound name is a function, a class, a parameter or a variable that is assigned. A vague name is a word that could stand
for anything, such as `one` or `found`. `make test` holds the share of vague names at `MOST` and the number of repeated
class names at 0.
"""

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("kinformer", "tests", "bench")
MOST = 0.01
VAGUE = frozenset(
    """one ones some others found told there here those these that them they what whose which who how way ways both
    none such said kept held taken made given seen met moved came gone put got heard lost meant known shown
    drawn wanted asked two three it its beside beneath under again""".split()
)


class Binding(NamedTuple):
    """A name, and the line that binds it."""

    name: str
    path: Path
    line: int


def source_files(folders: Iterable[str] = FOLDERS) -> list[Path]:
    """The Python files of some folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def bound_names(path: Path) -> Iterator[Binding]:
    """Every function, class, parameter and assigned variable of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Binding(node.name, path, node.lineno)
        elif isinstance(node, ast.arg):
            yield Binding(node.arg, path, node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Binding(node.id, path, node.lineno)


def repeated_classes(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Public top-level classes whose name occurs in several files."""
    places = defaultdict(list)
    for path in files:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def vague_share(bindings: Iterable[Binding]) -> tuple[int, int]:
    """The number of vague names, and of all names."""
    names = [binding.name for binding in bindings]
    return sum(name in VAGUE for name in names), len(names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", type=int, default=0, metavar="N", help="list the N most frequent vague names")
    count = parser.parse_args().list
    bindings = [binding for path in source_files() for binding in bound_names(path)]
    folders = defaultdict(list)
    for binding in bindings:
        parts = binding.path.relative_to(ROOT).parts
        folders["/".join(parts[: 2 if len(parts) > 2 else 1])].append(binding)
    for folder, inside in sorted(folders.items()):
        vague, total = vague_share(inside)
        print(f"{folder:24} {vague:6,} of {total:7,}  {vague / total:6.1%}")
    vague, total = vague_share(bindings)
    print(f"{'all':24} {vague:6,} of {total:7,}  {vague / total:6.1%}")
    repeated = repeated_classes(source_files(("kinformer",)))
    print(f"public class names that occur more than once: {len(repeated)}")
    for name, paths in repeated.items():
        print(f"  {name}: {', '.join(str(path.relative_to(ROOT)) for path in paths)}")
    frequent = Counter(binding.name for binding in bindings if binding.name in VAGUE).most_common(count)
    for name, times in frequent:
        place = next(binding for binding in bindings if binding.name == name)
        print(f"  {name:12} {times:5,}  {place.path.relative_to(ROOT)}:{place.line}")


if __name__ == "__main__":
    main()

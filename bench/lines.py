"""Lines of signatures and lines of code in the source of kinformer; files named on the command line are counted too."""

import ast
import io
import os
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kinformer"
CORE = (*sorted(PACKAGE.glob("core/*.py")), PACKAGE / "attend/executors/reference.py", PACKAGE / "nn/attention.py")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function
LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def signature_lines(source: str) -> int:
    """The lines from each `def` to the first one of its body, at least 1."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    return sum(max(1, function.body[0].lineno - function.lineno) for function in functions)


def filled_lines(source: str) -> int:
    """All lines but blank ones."""
    return sum(bool(line.strip()) for line in source.splitlines())


def code_lines(source: str) -> int:
    """The lines that hold something other than comments and docstrings."""
    docstrings = _docstrings(ast.parse(source))
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*LAYOUT, tokenize.COMMENT) and token.start not in docstrings:
            numbers.update(range(token.start[0], token.end[0] + 1))
    lines = source.splitlines()
    return sum(bool(lines[n - 1].strip()) for n in numbers)


def _docstrings(tree: ast.Module) -> set[tuple[int, int]]:
    """Where docstrings begin."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, Documented) and ast.get_docstring(node) is not None]
    return {(node.body[0].lineno, node.body[0].col_offset) for node in nodes}


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def signatures() -> None:
    """Signature lines as a share of all filled lines, by folder."""
    counts: dict[str, list[int]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        source, folder = path.read_text(), path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "."
        for name in (folder, "all"):
            signature, filled = counts.get(name, [0, 0])
            counts[name] = [signature + signature_lines(source), filled + filled_lines(source)]
    counts["all"] = counts.pop("all")  # last
    rows = [
        (name, f"{signature_count:,}", f"{line_count:,}", f"{signature_count / line_count:.1%}")
        for name, (signature_count, line_count) in counts.items()
    ]
    table(("kinformer/", "signature lines", "lines", "share"), rows)


def code(paths: Iterable[Path]) -> None:
    """Code lines of each file and of all."""
    counts = {os.path.relpath(path, ROOT): code_lines(path.read_text()) for path in paths}
    counts["all"] = sum(counts.values())
    table(("file", "code lines"), [(name, f"{count:,}") for name, count in counts.items()])


if __name__ == "__main__":
    signatures()
    code(dict.fromkeys([*CORE, *(Path(name).resolve() for name in sys.argv[1:])]))

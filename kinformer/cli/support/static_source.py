"""Names, signatures and docstrings of library files, read without importing the files or torch."""

import ast
import builtins
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from kinformer.cli.errors import print_warnings
from kinformer.core.discover import load_plugins, part_files
from kinformer.pages import module_docs
from kinformer.pages.module_docs import sentence

PACKAGE = Path(__file__).parents[2]
DOC = re.compile(r'\s*r?"""(?P<text>.*?)"""', re.DOTALL)


def first_sentence(file: Path) -> str:
    """Return the first sentence of a file's docstring, or else of the first public docstring in it.

    file: the Python file.
    """
    text = file.read_text(encoding="utf-8")
    if match := DOC.match(text):
        return sentence(match["text"])
    inside = (
        ast.get_docstring(node) or "" for node in ast.parse(text).body if isinstance(node, _NAMED) and _is_public(node)
    )
    return sentence(next(filter(None, inside), ""))


def first_sentences(kind: str, function: str = "") -> dict[str, str]:
    """Return the first sentence of every file of a kind by name; no file is run except plugins.

    kind: the folder, such as "members".
    function: if given, only files that define this function are included.
    """
    files = {name: file for name, file in part_files(kind).items() if not function or defines(file, function)}
    with print_warnings():
        plugins = {
            name: part for name, part in load_plugins(kind, files).items() if not function or hasattr(part, function)
        }
    sentences = {name: first_sentence(file) for name, file in files.items()}
    return sentences | {name: module_docs.first_sentence(module) for name, module in plugins.items()}


def defines(file: Path, name: str) -> bool:
    """True if a line of a Python file begins with the definition of a function with this name.

    file: the Python file.
    name: name of the function.
    """
    return re.search(rf"^def\s+{re.escape(name)}\b", file.read_text(encoding="utf-8"), re.MULTILINE) is not None


def arguments(file: Path, name: str) -> list[str] | None:
    """Return the argument names of a function in a file, in order; None if it takes any keyword.

    file: the Python file that defines it.
    name: name of the function.
    """
    (function,) = (node for node in _parse(file).body if isinstance(node, ast.FunctionDef) and node.name == name)
    return None if function.args.kwarg else [node.arg for node in (*function.args.args, *function.args.kwonlyargs)]


def member_names() -> list[str]:
    """Return the names of all members of the library."""
    return [function.name for file in part_files("members").values() for function in _member_functions(_parse(file))]


def member_stub(name: str) -> Callable[..., Any] | None:
    """Return a function that does nothing, with the name and signature of a member.

    name: the member; None is returned if the library has no such member.

    The function stands in for the member to check keywords without an import. A keyword accepts any text if its
    annotation or default cannot be read from the file.
    """
    files = part_files("members")
    for file in [files[name]] if name in files else files.values() if name.isidentifier() else ():
        tree = _parse(file)
        for function in _member_functions(tree):
            if function.name == name:
                return _stub(function, _Names(tree))
    return None


def member_cost(file: Path, name: str) -> str | None:
    """Return the order of cost that a member declares, such as "L * window"; None if it declares none.

    file: the Python file that defines the member.
    name: name of the member.
    """
    (function,) = (node for node in _member_functions(_parse(file)) if node.name == name)
    calls = [decorator for decorator in function.decorator_list if isinstance(decorator, ast.Call)]
    values = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "cost"]
    return ast.literal_eval(values[0]) if values else None


def constant(file: Path, name: str) -> Any:
    """Return the literal value that a file, or a class in it, assigns to a name; None without one.

    file: the Python file.
    name: the name.

    Errors: ValueError if the value is not a literal.
    """
    for node in ast.walk(_parse(file)):
        if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for names, value in _pairs(targets[0], node.value):
                if names == name:
                    return ast.literal_eval(value)
    return None


_NAMED = (ast.FunctionDef, ast.ClassDef)


def _is_public(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return not node.name.startswith("_")


@functools.cache  # a command that names several members reads the files of all members for each of them
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _member_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(
            ast.unparse(decorator).partition("(")[0] == "member" for decorator in node.decorator_list
        ):
            yield node


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The names of an assignment with their values: `A, B = 1, 2` yields two pairs."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, element in zip(target.elts, value.elts, strict=False):
            yield from _pairs(name, element)
    elif isinstance(target, ast.Name):
        yield target.id, value


class _Names(dict[str, Any]):
    """Lookup of the names in a file: built-in names, its assignments, and those of imported library files.

    tree: the parsed file.
    """

    def __init__(self, tree: ast.Module):
        super().__init__(Literal=Literal)
        self.tree = tree

    def __missing__(self, name: str) -> Any:
        for node in self.tree.body:
            if isinstance(node, ast.Assign):
                for target, value in _pairs(node.targets[0], node.value):
                    if target == name:
                        return _value(value, self)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kinformer."):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        file = PACKAGE.parent.joinpath(*(node.module or "").split(".")).with_suffix(".py")
                        return _Names(_parse(file))[alias.name]
        return getattr(builtins, name)


def _value(node: ast.expr, names: _Names) -> Any:
    return eval(compile(ast.Expression(node), "<annotation>", "eval"), {"__builtins__": {}}, names)


def _stub(function: ast.FunctionDef, names: _Names) -> Callable[..., Any]:
    every = [*function.args.args, *function.args.kwonlyargs]
    defaults = [*function.args.defaults, *function.args.kw_defaults]
    parameters = []
    for argument, default in zip(every, defaults, strict=True):
        try:
            assert argument.annotation is not None and default is not None
            kind, value = _value(argument.annotation, names), _value(default, names)
        except Exception:  # the annotation or default is not readable without running the file
            kind, value = str, ""
        parameters.append(
            inspect.Parameter(argument.arg, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind)
        )

    def stand_in(**keywords: Any) -> None:
        """Do nothing."""

    stand_in.__name__ = function.name
    stand_in.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return stand_in

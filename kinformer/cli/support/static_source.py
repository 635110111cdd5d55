"""What files of the library say of themselves, read and not run: names and signatures are told without torch."""

import ast
import builtins
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from kinformer.cli.errors import print_warnings
from kinformer.cli.support import module_docs
from kinformer.cli.support.module_docs import sentence
from kinformer.core.discover import load_plugins, part_files

PACKAGE = Path(__file__).parents[2]
DOC = re.compile(r'\s*r?"""(?P<text>.*?)"""', re.DOTALL)


def first_sentence(file: Path) -> str:
    """The first sentence of a file's docstring, or of the first thing in it that has one."""
    text = file.read_text(encoding="utf-8")
    if match := DOC.match(text):
        return sentence(match["text"])
    inside = (
        ast.get_docstring(node) or "" for node in ast.parse(text).body if isinstance(node, _NAMED) and _is_public(node)
    )
    return sentence(next(filter(None, inside), ""))


def first_sentences(kind: str, function: str = "") -> dict[str, str]:
    """The first sentence of every file of a kind, or of those that define a function; only plugins are run for it."""
    files = {name: file for name, file in part_files(kind).items() if not function or defines(file, function)}
    with print_warnings():
        plugins = {
            name: part for name, part in load_plugins(kind, files).items() if not function or hasattr(part, function)
        }
    sentences = {name: first_sentence(file) for name, file in files.items()}
    return sentences | {name: module_docs.first_sentence(module) for name, module in plugins.items()}


def defines(file: Path, name: str) -> bool:
    """Does a file define a function of a name?"""
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in _parse(file).body)


def arguments(file: Path, name: str) -> list[str] | None:
    """The arguments of a function of a file, in order; None where it takes any, by name."""
    (function,) = (node for node in _parse(file).body if isinstance(node, ast.FunctionDef) and node.name == name)
    return None if function.args.kwarg else [node.arg for node in (*function.args.args, *function.args.kwonlyargs)]


def member_names() -> list[str]:
    """Every member of the folder."""
    return [function.name for file in part_files("members").values() for function in _member_functions(_parse(file))]


def member_stub(name: str) -> Callable[..., Any] | None:
    """What has the name and the signature of a member of the folder, and does nothing; None where there is none.

    A keyword whose annotation or default the file alone does not tell takes any text.
    """
    files = part_files("members")
    for file in [files[name]] if name in files else files.values() if name.isidentifier() else ():
        tree = _parse(file)
        for function in _member_functions(tree):
            if function.name == name:
                return _stub(function, _Names(tree))
    return None


def constant(file: Path, name: str) -> Any:
    """What a file or a class in it calls a name, where that is plain text or numbers; None where it is not."""
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


def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _member_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(
            ast.unparse(decorator).partition("(")[0] == "member" for decorator in node.decorator_list
        ):
            yield node


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Names with what they are assigned: `A, B = 1, 2` has two."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, element in zip(target.elts, value.elts, strict=False):
            yield from _pairs(name, element)
    elif isinstance(target, ast.Name):
        yield target.id, value


class _Names(dict[str, Any]):
    """What the names in a file mean, as far as the library's files spell it out: built-in types, aliases, numbers."""

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
        except Exception:  # whatever a file spells in another way
            kind, value = str, ""
        parameters.append(
            inspect.Parameter(argument.arg, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind)
        )

    def stand_in(**keywords: Any) -> None:
        """Nothing."""

    stand_in.__name__ = function.name
    stand_in.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return stand_in

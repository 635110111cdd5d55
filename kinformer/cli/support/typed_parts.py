"""Pages of `kinformer show` for typed text: expressions, calls such as LSH(2, 8), and own files."""

import ast
import functools
import importlib
import inspect
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import kinformer
from kinformer.cli.support.page import (
    Page,
    building,
    example_maker,
    has_instance,
    has_keywords,
    keyword_builder,
    nearest_names,
)
from kinformer.core.discover import modules, part_names
from kinformer.core.module_import import load_user_module
from kinformer.core.public_names import CONTRACTS
from kinformer.lab.errors import UserError, from_user
from kinformer.pages.module_docs import defined_in, first_sentence, public_parts

OWN = re.compile(r"(?P<file>[\w./~+-]+\.py):(?P<name>[A-Za-z_]\w*)")
CALL = re.compile(r"(?P<name>[A-Z]\w*)\(.*\)", re.DOTALL)
BUILT = ("nn.", "core.bias", "core.pattern", "core.residual_block")  # files of public classes that a call may build
files_of_parts = functools.cache(part_names)  # reads every file of the library, so once in a command
OPERATORS: dict[type, Callable[..., Any]] = {
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Invert: operator.inv,
}


def expression_page(text: str) -> Page:
    """Return the page of a pattern expression, whose names may also be FILE.py:Name.

    text: the expression, such as "Causal() & Band(8)".

    Errors: UserError for an expression that is not understood.
    """
    from kinformer.core.pattern_parser import parse
    from kinformer.pages.pictures.support.short_repr import short_repr

    own_patterns: dict[str, Any] = {}

    def load_name(match: re.Match[str]) -> str:
        with from_user(LookupError, ImportError):
            module = load_user_module(match["file"])
        if not callable(getattr(module, match["name"], None)):
            raise UserError(
                f"{match['file']} has no {match['name']!r}{nearest_names(match['name'], dict(defined_in(module)))}"
            )
        own_patterns[match["name"]] = getattr(module, match["name"])
        return match["name"]

    with from_user(ValueError):
        pattern = parse(OWN.sub(load_name, text), own_patterns)
    return Page(short_repr(pattern), examples=(lambda: pattern,))


def called_class(text: str) -> str | None:
    """Return the name of the class that a text calls, such as "LSH" in "LSH(2, 8, 4, 2)".

    text: the text that the user typed.

    The result is None for an expression of patterns, and for anything else that is no call of a class of the library.
    """
    match = CALL.fullmatch(text)
    if match is None or not _is_one_call(text):
        return None
    file = _built_classes().get(match["name"], "")
    return match["name"] if file and ".patterns." not in f".{file}." else None


def _built_classes() -> dict[str, str]:
    """The file of each class that a call may build: all parts, and public classes such as Attention."""
    return files_of_parts() | {name: file for name, file in CONTRACTS.items() if file.startswith(BUILT)}


def words_as_call(name: str, keywords: tuple[str, ...]) -> str | None:
    """Return the call that words such as "band 8", or "band" with the keyword "left=8", stand for.

    name: the name of a part's file or class, and numbers after it.
    keywords: keywords, such as "left=8".

    The result is None without arguments, and if no part has this name. Errors: UserError if several parts have it.
    """
    title, *values = name.replace(",", " ").split()
    literals = (*values, *keywords)
    if not literals or not all(map(_is_literal, values)):
        return None
    classes = [
        cls
        for kind, file, cls in _classes_with_arguments()
        if title in (file, f"{kind}/{file}", cls) or title.lower() == cls.lower()
    ]
    title = title.rpartition("/")[2]
    classes = [cls for cls in classes if cls.lower() == title.lower().replace("_", "")] or classes
    if len(classes) > 1:
        calls = ", ".join(f"{cls}({', '.join(literals)})" for cls in classes)
        raise UserError(f"several parts are called {title!r}; write one of {calls}")
    return f"{classes[0]}({', '.join(literals)})" if classes else None


def call_page(text: str, name: str) -> Page:
    """Return the page of a class with the example that a call builds.

    text: the call, such as "LSH(2, 8, 4, 2)".
    name: the name of the class.

    Errors: UserError for arguments that are not understood or that the class refuses.
    """
    cls = getattr(kinformer, name)
    place = cls.__module__.split(".")[-2:]

    def build() -> Any:
        with building(text):
            return build_part(text)

    build()  # refuses wrong arguments before anything is printed
    if name in CONTRACTS:
        return Page(f"kinformer.{name}", ((name, cls),), examples=(build,), public=True)
    module = importlib.import_module(cls.__module__)
    return Page("/".join(place), ((name, cls),), examples=(build,), says=first_sentence(module))


def build_part(text: str) -> Any:
    """Build a part from a call of library classes with literal arguments; no other code is run.

    text: the call, such as "Softmax(Causal() & Band(8))".

    Errors: ValueError for anything else; the errors of the class.
    """
    try:
        return _build(ast.parse(text, mode="eval").body, text)
    except SyntaxError as error:
        raise ValueError(f"{text!r} does not parse: {error.msg}; write for example LSH(2, 8, 4, 2)") from None


def _build(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if name not in (classes := _built_classes()):
                raise ValueError(f"{name} in {text!r} is no part of the library{nearest_names(name, classes)}")
            cls = getattr(kinformer, name)
            values = [_build(value, text) for value in args]
            named = {word.arg: _build(word.value, text) for word in keywords if word.arg}
            try:
                inspect.signature(cls).bind(*values, **named)
            except TypeError as error:
                usage = f"{name}({', '.join(map(str, inspect.signature(cls).parameters))})"
                raise ValueError(f"wrong arguments in {ast.unparse(node)}: {error}. Write {usage}") from None
            return cls(*values, **named)
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() as sign, right=right):
            return OPERATORS[type(sign)](_build(left, text), _build(right, text))
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return operator.inv(_build(operand, text))
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{ast.unparse(node)!r} in {text!r} is not understood; write numbers, texts and parts, as in "
            "LSH(2, 8, 4, 2)"
        ) from None


def own_pages(file: str, name: str, keywords: tuple[str, ...]) -> Iterator[Page]:
    """Yield the pages of a name in a user's file, or of all its names.

    file: the Python file.
    name: the class or function; all of them if empty.
    keywords: keywords of a member, task or environment.

    Errors: UserError for a file or name that does not exist.
    """
    with from_user(LookupError, ImportError):
        module = load_user_module(file)
    names = dict(defined_in(module))
    if not names:
        raise UserError(f"{file} defines no public class or function to show")
    if name and name not in names:
        raise UserError(f"{file} has no {name!r}{nearest_names(name, names)}; it defines {', '.join(sorted(names))}")
    examples = tuple(example_maker(entry) for entry in getattr(module, "EXAMPLES", ()))
    chosen = {name: names[name]} if name else names
    for title, subject in chosen.items():
        if has_keywords(subject):
            yield Page(f"{file}:{title}", ((title, subject),), examples=(keyword_builder(subject, keywords),))
        else:
            examples_of_it = tuple(make for make in examples if has_instance(make(), subject))
            yield Page(f"{file}:{title}", ((title, subject),), examples=examples_of_it or _own_example(subject))


def _own_example(cls: Any) -> tuple[Callable[[], Any], ...]:
    """The class itself as the only example if it is a pattern without required arguments; otherwise empty."""
    from kinformer.core.pattern import Pattern

    if not (inspect.isclass(cls) and issubclass(cls, Pattern)):
        return ()
    required = [p for p in inspect.signature(cls).parameters.values() if p.default is p.empty]
    return () if required else (cls,)


def _is_one_call(text: str) -> bool:
    try:
        return isinstance(ast.parse(text, mode="eval").body, ast.Call)
    except SyntaxError:
        return False


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _classes_with_arguments() -> Iterator[tuple[str, str, str]]:
    """Kind, file and name of every public class of a part; members, tasks and environments take keywords instead."""
    for name, file in files_of_parts().items():
        *_, kind, stem = file.split(".")
        if kind not in ("members", "models", "tasks", "environments", "laws"):
            yield kind, stem, name


def patterns_in_expression(pattern: Any) -> dict[str, str]:
    """Return the first sentence of each pattern class in an expression, by the name of its file.

    pattern: the pattern.
    """
    from kinformer.pages.module_docs import sentence
    from kinformer.pages.pictures.support.short_repr import subpatterns

    used = {type(part) for part in subpatterns(pattern)}
    return {
        file: sentence(inspect.getdoc(cls) or "")
        for file, module in modules("patterns").items()
        for _, cls in public_parts(module)
        if cls in used
    }

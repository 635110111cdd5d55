"""Entries of the reference: the docstring of one class or function as Markdown."""

import ast
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from kinformer.pages.docstrings import Doc, arguments, doc, heading
from kinformer.pages.module_docs import public_methods, sentence
from kinformer.pages.site.markdown import code_block, prose

MOST = 3  # examples of an entry
FORM = re.compile(r"^\d\. ")
WIDE = 100  # characters of a signature that stands on one line


class DeclaredExample(NamedTuple):
    """An example of a part, as its file writes it.

    source: the expression that builds the part.
    breaks: the laws that the part breaks by definition, each with the reason.
    """

    source: str
    breaks: dict[str, str]


def entry(name: str, subject: Any, *, has_methods: bool = False, examples: list[DeclaredExample] | None = None) -> str:
    """Return the entry of a class or function: heading, signature, and its docstring as Markdown.

    name: the name, which becomes the heading.
    subject: the class or function.
    has_methods: True lists the public methods of a class.
    examples: calls that build the part.
    """
    blocks = [f"## {name}", code_block(_wrapped(heading(name, subject)), "python"), *description(subject)]
    if has_methods and inspect.isclass(subject):
        blocks += list(_methods(subject))
    if examples:
        blocks += ["**Examples**", code_block("\n".join(example.source for example in examples[:MOST]), "python")]
        broken = {law: reason for example in examples for law, reason in example.breaks.items()}
        if broken:
            rows = [f"- `{law}`: {prose(reason)}" for law, reason in broken.items()]
            blocks += ["**Laws that it breaks by definition**", "\n".join(rows)]
    return "\n\n".join(blocks)


def _wrapped(signature: str) -> str:
    """A signature with one argument on each line, if it is too long for one line."""
    if len(signature) <= WIDE:
        return signature
    name, _, rest = signature.partition("(")
    pieces, depth = [""], 0
    for sign in rest.removesuffix(")"):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += sign
    return "\n".join([f"{name}(", *(f"    {piece.strip()}," for piece in pieces), ")"])


def description(subject: Any) -> Iterator[str]:
    """Yield the blocks of a docstring: first line, equations, prose, arguments, errors and source.

    subject: the class or function.
    """
    parsed: Doc = doc(subject)
    if parsed.first:
        yield prose(parsed.first)
    if parsed.equations:
        yield code_block("\n".join(parsed.equations))
    for text in parsed.prose:
        yield indented_block(text) if text.startswith("    ") else prose(text)
    rows = [_item(name, text) for name, text in arguments(subject, parsed)]
    if rows:
        yield "**Arguments**"
        yield "\n".join(rows)
    if parsed.errors:
        yield f"**Errors:** {prose(parsed.errors)}"
    if parsed.source:
        yield f"**Source:** {prose(parsed.source)}"


def _item(name: str, text: str) -> str:
    """An argument as an item of a list; each form of a numbered list in its text is an item of its own."""
    first, *forms = re.split(r"(?<=[.:]) (?=\d\. )", text)
    head = f"- `{name}`: {prose(first)}" if first else f"- `{name}`"
    return "\n".join([head, *(f"  - {prose(re.sub(FORM, '', form))}" for form in forms)])


def indented_block(text: str) -> str:
    """Return an indented block of a docstring as a code block; Python code gets the colours of Python.

    text: the lines, all of them indented.
    """
    lines = inspect.cleandoc("\n" + text)
    try:
        tree = ast.parse(lines)
    except SyntaxError:
        return code_block(lines)
    is_code = any(isinstance(node, ast.Assign | ast.Call | ast.ImportFrom) for node in ast.walk(tree))
    return code_block(lines, "python" if is_code else "text")


def _methods(cls: type) -> Iterator[str]:
    """The public methods that the library adds to a class, each with its signature and its description."""
    members = public_methods(cls)
    if not members:
        return
    yield "**Methods**"
    rows = []
    for name, method in members.items():
        title = name if isinstance(method, property) else heading(name, method)
        rows.append(f"- `{title}`: {prose(sentence(inspect.getdoc(method) or ''))}")
        rows += [f"  - `{argument}`: {prose(text)}" for argument, text in arguments(method, doc(method)) if text]
    yield "\n".join(rows)


def declared_examples(module: types.ModuleType) -> dict[str, list[DeclaredExample]]:
    """Return the examples in EXAMPLES of a part's file, by the class or function that each calls.

    module: the module of the part. Examples that use private names are left out, because a reader cannot write them.
    """
    examples: dict[str, list[DeclaredExample]] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXAMPLES"):
            continue
        for item in getattr(node.value, "elts", ()):
            expression, breaks = _parts_of(item)
            called = expression.func if isinstance(expression, ast.Call) else None
            if isinstance(called, ast.Name) and not _has_private_names(expression):
                examples.setdefault(called.id, []).append(DeclaredExample(ast.unparse(expression), breaks))
    return examples


def _parts_of(item: ast.expr) -> tuple[ast.expr, dict[str, str]]:
    """The expression of an example without `lambda` and `Example`, and the laws that it breaks."""
    breaks: dict[str, str] = {}
    if isinstance(item, ast.Call) and ast.unparse(item.func).endswith("Example"):
        declared = next((keyword.value for keyword in item.keywords if keyword.arg == "breaks"), None)
        if isinstance(declared, ast.Dict):
            pairs = zip(declared.keys, declared.values, strict=True)
            breaks = {_text(key): _text(value) for key, value in pairs if key is not None}
        item = item.args[0]
    return (item.body if isinstance(item, ast.Lambda) else item), breaks


def _text(node: ast.expr) -> str:
    """The text of a string literal; the source of another expression."""
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


def _has_private_names(expression: ast.expr) -> bool:
    names = [node.id for node in ast.walk(expression) if isinstance(node, ast.Name)]
    return any(name.startswith("_") or name.isupper() for name in names)

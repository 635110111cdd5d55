"""Docstrings and signatures, parsed into the parts that `kinformer show` prints."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from kinformer.core.discover import Origin
from kinformer.core.keywords import describe

NAMES = re.compile(r"(?P<names>[a-z_]\w*(, [a-z_]\w*)*): (?P<text>.*)")
EQUATION = re.compile(r"^[\w().|~, ]{1,40}( (//|[-+*/%|]) [\w().|]+)* (=|<=|>=) ")


class Doc(NamedTuple):
    """The parts of a parsed docstring, which `doc` returns.

    first: the first line.
    equations: the equations, one per line of the docstring.
    prose: the other paragraphs; indented blocks keep their lines.
    arguments: the description of each argument; arguments that share a description are one entry.
    errors: the text after `Errors:`.
    source: the text after `Source:`.
    """

    first: str
    equations: list[str]
    prose: list[str]
    arguments: dict[tuple[str, ...], str]
    errors: str
    source: str


def doc(subject: Any) -> Doc:
    """Parse the docstring of a class or function into its parts.

    subject: the class or function; without a docstring all parts are empty.
    """
    names = set(parameters(subject))
    parsed = Doc("", [], [], {}, "", "")
    text = inspect.getdoc(subject) or ""
    for paragraph in re.split(r"\n\s*\n", text):
        body, errors, source = _tail(paragraph)
        parsed = parsed._replace(errors=parsed.errors or errors, source=parsed.source or source)
        arguments = _arguments(body, names)
        if arguments:
            parsed.arguments.update(arguments)
        elif not body:
            continue
        elif not parsed.first:
            parsed = parsed._replace(first=_flat(body))
        elif EQUATION.match(body) and not body.startswith("    "):
            parsed.equations.append(_flat(body))
        else:
            parsed.prose.append(
                textwrap.indent(textwrap.dedent(body), "    ") if body.startswith("    ") else _flat(body)
            )
    return parsed


def heading(title: str, subject: Any) -> str:
    """Return a call signature with defaults and without types, such as `Band(left, right=None)`.

    title: the name to print before the brackets.
    subject: the class or function; anything that cannot be called gives only the title.
    """
    pieces, star = [], False
    for name, parameter in parameters(subject).items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            pieces.append(f"{'*' if parameter.kind is parameter.VAR_POSITIONAL else '**'}{name}")
            star = True
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            pieces.append("*")
            star = True
        empty = parameter.default is parameter.empty
        pieces.append(name if empty else f"{name}={_value(parameter.default)}")
    return f"{title}({', '.join(pieces)})" if callable(subject) else title


def arguments(subject: Any, docstring: Doc) -> Iterator[tuple[str, str]]:
    """Yield each argument of a class or function as a heading with type and default, and its description.

    subject: the class or function.
    docstring: the parsed docstring of the subject. Arguments that share a description there are yielded as one pair.
    """
    declared, groups = parameters(subject), {name: names for names in docstring.arguments for name in names}
    listed: set[str] = set()
    for name in declared:
        if name in listed:
            continue
        names = [other for other in groups.get(name, (name,)) if other in declared]
        listed.update(names)
        yield (
            ", ".join(_format_argument(declared[other]) for other in names),
            docstring.arguments.get(groups.get(name, ()), ""),
        )


def _format_argument(parameter: inspect.Parameter) -> str:
    """An argument with its type and default, such as `left: int = 3`."""
    kind = annotation(parameter.annotation)
    default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
    return f"{parameter.name}{f': {kind}' if kind else ''}{default}"


def parameters(subject: Any) -> dict[str, inspect.Parameter]:
    """Return the arguments of a class or function by name, without `self` and `cls`.

    subject: the class or function; the result is empty if Python cannot find its signature.
    """
    try:
        declared = inspect.signature(subject, eval_str=isinstance(getattr(subject, "origin", None), Origin)).parameters
    except (TypeError, ValueError, NameError):
        return {}
    inherited = inspect.isclass(subject) and "__init__" not in vars(subject)  # from nn.Module
    untold = ("args", "kwargs") if inherited else ()
    return {name: parameter for name, parameter in declared.items() if name not in ("self", "cls", *untold)}


def annotation(kind: Any) -> str:
    """Return a type annotation as readable text, such as `Float [B T D]` for a jaxtyping tensor.

    kind: the annotation, as a type or as text; "" is returned for a missing annotation.
    """
    if kind is inspect.Parameter.empty:
        return ""
    text = kind if isinstance(kind, str) else describe(kind)
    text = re.sub(r"ForwardRef\('(\w+)'\)", r"\1", text)
    text = re.sub(r"(?:jaxtyping\.)?(\w+)\[Tensor, ['\"]\s*([^'\"]*)['\"]\]", r"\1 [\2]", text)
    return re.sub(r"\b(?:[a-z_]\w*\.)+([A-Za-z]\w*)", r"\1", text)


def _tail(paragraph: str) -> tuple[str, str, str]:
    """Split a paragraph into its body, the text after `Errors:` and the text after `Source:`."""
    body, *rest = re.split(r"(?:^|(?<=\s))(Errors|Source): ", paragraph)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    return body.rstrip(), _flat(sections.get("Errors", "")), _flat(sections.get("Source", ""))


def _arguments(body: str, names_known: set[str]) -> dict[tuple[str, ...], str]:
    """The descriptions of arguments in a paragraph; empty unless its first line is known names and a colon."""
    texts: dict[tuple[str, ...], str] = {}
    last: tuple[str, ...] | None = None
    for line in body.splitlines():
        match = NAMES.fullmatch(line)
        names = tuple(match["names"].split(", ")) if match else ()
        if match and names_known.issuperset(names):
            last = names
            texts[last] = match["text"]
        elif last is None:
            return {}
        else:
            texts[last] += f" {line.strip()}"
    return texts


def _flat(text: str) -> str:
    return " ".join(text.split())


def _value(value: Any) -> str:
    text = repr(value)
    if text.startswith("<"):
        name = getattr(value, "__name__", "...")
        return "..." if name == "<lambda>" else name
    return text if len(text) <= 40 else "..."

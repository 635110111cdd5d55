"""What a class or function says of itself, in the order in which a reader wants it."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from kinformer.core.discover import Origin
from kinformer.core.keywords import describe

NAMES = re.compile(r"(?P<names>[a-z_]\w*(, [a-z_]\w*)*): (?P<text>.*)")
EQUATION = re.compile(r"^[\w().|~, ]{1,40}( [-+*/%|] [\w().|]+)* (=|<=|>=) ")


class Doc(NamedTuple):
    """A docstring in its parts. `prose` are paragraphs, `arguments` what is said of names that stand together."""

    first: str
    equations: list[str]
    prose: list[str]
    arguments: dict[tuple[str, ...], str]
    errors: str
    source: str


def doc(one: Any) -> Doc:
    """The docstring of a class or function, taken apart."""
    known = set(parameters(one))
    found = Doc("", [], [], {}, "", "")
    text = inspect.getdoc(one) or ""
    for paragraph in re.split(r"\n\s*\n", text):
        body, errors, source = _tail(paragraph)
        found = found._replace(errors=found.errors or errors, source=found.source or source)
        arguments = _arguments(body, known)
        if arguments:
            found.arguments.update(arguments)
        elif not body:
            continue
        elif not found.first:
            found = found._replace(first=_flat(body))
        elif EQUATION.match(body) and not body.startswith("    "):
            found.equations.append(_flat(body))
        else:
            found.prose.append(
                textwrap.indent(textwrap.dedent(body), "    ") if body.startswith("    ") else _flat(body)
            )
    return found


def heading(title: str, one: Any) -> str:
    """Names and defaults of arguments, without types: `Band(left, right=None)`."""
    pieces, star = [], False
    for name, parameter in parameters(one).items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            pieces.append(f"{'*' if parameter.kind is parameter.VAR_POSITIONAL else '**'}{name}")
            star = True
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            pieces.append("*")
            star = True
        empty = parameter.default is parameter.empty
        pieces.append(name if empty else f"{name}={_value(parameter.default)}")
    return f"{title}({', '.join(pieces)})" if callable(one) else title


def arguments(one: Any, told: Doc) -> Iterator[tuple[str, str]]:
    """Each argument with its type and default, and what it means; those that the docstring tells of together, so."""
    known, said = parameters(one), {name: names for names in told.arguments for name in names}
    seen: set[str] = set()
    for name in known:
        if name in seen:
            continue
        names = [other for other in said.get(name, (name,)) if other in known]
        seen.update(names)
        yield ", ".join(_typed(known[other]) for other in names), told.arguments.get(said.get(name, ()), "")


def _typed(parameter: inspect.Parameter) -> str:
    """An argument with its type and default."""
    kind = annotation(parameter.annotation)
    default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
    return f"{parameter.name}{f': {kind}' if kind else ''}{default}"


def parameters(one: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a class or function by name, itself left out; none where Python cannot tell."""
    try:
        found = inspect.signature(one, eval_str=isinstance(getattr(one, "origin", None), Origin)).parameters
    except (TypeError, ValueError, NameError):
        return {}
    untold = ("args", "kwargs") if inspect.isclass(one) and "__init__" not in vars(one) else ()  # of nn.Module itself
    return {name: parameter for name, parameter in found.items() if name not in ("self", "cls", *untold)}


def annotation(kind: Any) -> str:
    """A type as a reader would write it: `Tensor [B T D]` where the library says more of a tensor."""
    if kind is inspect.Parameter.empty:
        return ""
    text = kind if isinstance(kind, str) else describe(kind)
    text = re.sub(r"ForwardRef\('(\w+)'\)", r"\1", text)
    text = re.sub(r"(?:jaxtyping\.)?(\w+)\[Tensor, ['\"]\s*([^'\"]*)['\"]\]", r"\1 [\2]", text)
    return re.sub(r"\b(?:[a-z_]\w*\.)+([A-Za-z]\w*)", r"\1", text)


def first_sentence(one: Any) -> str:
    """The first sentence of what it says of itself."""
    text = " ".join((inspect.getdoc(one) or "").split())
    found = re.match(r".+?[.](?=\s+[A-Z`]|$)", text)
    return found[0] if found else text


def _tail(paragraph: str) -> tuple[str, str, str]:
    """A paragraph without its sentences of errors and sources, and these."""
    body, *rest = re.split(r"(?:^|(?<=\s))(Errors|Source): ", paragraph)
    told = dict(zip(rest[::2], rest[1::2], strict=True))
    return body.rstrip(), _flat(told.get("Errors", "")), _flat(told.get("Source", ""))


def _arguments(body: str, known: set[str]) -> dict[tuple[str, ...], str]:
    """What is said of names, where a paragraph is such a list: a line begins with arguments and a colon."""
    found: dict[tuple[str, ...], str] = {}
    last: tuple[str, ...] | None = None
    for line in body.splitlines():
        match = NAMES.fullmatch(line)
        names = tuple(match["names"].split(", ")) if match else ()
        if match and known.issuperset(names):
            last = names
            found[last] = match["text"]
        elif last is None:
            return {}
        else:
            found[last] += f" {line.strip()}"
    return found


def _flat(text: str) -> str:
    return " ".join(text.split())


def _value(value: Any) -> str:
    text = repr(value)
    if text.startswith("<"):
        return getattr(value, "__name__", "...")
    return text if len(text) <= 40 else "..."

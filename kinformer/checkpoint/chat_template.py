"""Chats as one text. The Jinja template that writes them is foreign code, so it runs in a sandbox."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib.metadata import version
from typing import Any, NoReturn

import jinja2  # torch needs it too
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kinformer.core.quote import quote, shorten

SAFE = (3, 1, 6)  # older versions of Jinja have known ways out of the sandbox
UNUSED = ("lipsum", "cycler", "joiner")  # functions of Jinja that no chat needs


def render_chat(template: str, messages: Iterable[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
    """Return the text of a chat, as `apply_chat_template` of transformers gives it.

    template: the Jinja template.
    messages: the messages, each with a "role" and a "content".
    variables: further variables of the template, such as "bos_token".

    Errors: ImportError for an old Jinja; ValueError, in one line, for messages that the template does not take, and for
    a template that fails.
    """
    if tuple(int(part) for part in version("jinja2").split(".")[:3] if part.isdecimal()) < SAFE:
        raise ImportError("a chat needs jinja2 3.1.6 or later, whose sandbox is safe; pip install -U jinja2")
    try:
        # apply_chat_template leaves out empty fields too, which some templates would write as "None"
        rows = [{key: value for key, value in message.items() if value is not None} for message in messages]
        plain = json.loads(json.dumps({"messages": rows, "tools": None, "documents": None, **variables}))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f'cannot format the chat: expected a list of dicts such as {{"role": "user", "content": "Hello"}}: {error}'
        ) from error
    if not rows:
        raise ValueError("the chat is empty: got 0 messages, expected 1 or more")

    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    for name in UNUSED:
        del sandbox.globals[name]
    sandbox.filters["tojson"] = _to_json
    sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    try:
        return sandbox.from_string(template).render(plain)
    except Exception as error:  # a template raises what its own faults lead to
        raise ValueError(f"the chat template failed on {quote(rows)}: {shorten(str(error))}") from error


class Generation(Extension):
    """Block of a template that marks the answers of an assistant, and changes no text."""

    tags = {"generation"}

    def parse(self, parser: Any) -> jinja2.nodes.Node:
        """Return the content of the block.

        parser: the parser, at the name of the block.
        """
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)

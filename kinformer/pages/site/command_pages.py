"""Reference pages of commands: help text, arguments and options of each command of the command line."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kinformer.pages.module_docs import sentence
from kinformer.pages.site.markdown import code_block, prose, table

PAGE = "reference/command_line.md"


def page_of_command(name: str) -> str:
    """Return the path of a command's page.

    name: the command, such as "train".
    """
    return f"reference/commands/{name}.md"


def command_pages(commands: Mapping[str, Any]) -> dict[str, str]:
    """Return the list of all commands and the page of each command, by path.

    commands: the commands by name, as Typer makes them. Commands of a group stand on the page of the group.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    pages = {}
    for name, command in commands.items():
        title = " ".join(("kinformer", name))
        row = (f"[`{title}`](commands/{name}.md)", prose(sentence(_without_marks(command.help or ""))))
        groups.setdefault(command.rich_help_panel, []).append(row)
        pages[page_of_command(name)] = "\n\n".join(_command(title, command, 1)) + "\n"
    tables = [f"## {panel}\n\n{table(('command', 'what it does'), rows)}" for panel, rows in groups.items()]
    intro = "The option `--help` after a command prints its page, such as `kinformer train --help`."
    return {PAGE: "\n\n".join(["# Command line", intro, *tables]) + "\n", **pages}


def _command(title: str, command: Any, level: int) -> Iterator[str]:
    """The blocks of a command: heading, usage, help text, arguments and options, then the commands of a group."""
    context = command.context_class(command, info_name=title)
    yield f"{'#' * level} {title}"
    usage = " ".join(command.collect_usage_pieces(context))
    yield code_block(f"{title} {usage}", "text")
    yield from help_blocks(command.help or "")
    for kind, heading in (("argument", "Arguments"), ("option", "Options")):
        parameters = [parameter for parameter in command.params if parameter.param_type_name == kind]
        rows = [_parameter(parameter, context) for parameter in parameters if parameter.name != "help"]
        if rows:
            yield f"**{heading}**"
            yield "\n".join(rows)
    for name, inner in getattr(command, "commands", {}).items():
        yield from _command(f"{title} {name}", inner, level + 1)


def _parameter(parameter: Any, context: Any) -> str:
    """An argument or an option with its type and its help text, as an item of a list."""
    record = parameter.get_help_record(context)
    name, text = record if record else (parameter.make_metavar(context), getattr(parameter, "help", "") or "")
    return f"- `{name}`: {prose(' '.join(text.split()))}"


def help_blocks(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text as Markdown; lines that Click must not wrap become code.

    text: the help text, in which a line with a backspace begins a paragraph that is not wrapped.
    """
    paragraphs = re.split(r"\n\s*\n", text.replace("\b\n", "\b"))
    for paragraph in paragraphs:
        if not paragraph.startswith("\b"):
            yield prose(" ".join(paragraph.split()))
            continue
        first, _, rest = paragraph.removeprefix("\b").partition("\n")
        if rest.startswith("    "):
            yield f"**{first.rstrip(':')}**" if first.startswith("Examples") else prose(first)
            yield code_block(inspect.cleandoc(f"\n{rest}"), "sh" if first.startswith("Examples") else "text")
        else:
            yield prose(" ".join(paragraph.removeprefix("\b").split()))


def _without_marks(text: str) -> str:
    return text.replace("\b", "")

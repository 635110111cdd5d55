"""The command `kinformer show`: explain a part, member, function, expression or topic, with pictures."""

from pathlib import Path
from typing import Annotated, Any

import typer

from kinformer.cli.errors import refuse_no_folder, refuse_useless
from kinformer.cli.options import Device, RunPrecision, count, flag
from kinformer.core.public_names import CONTRACTS
from kinformer.lab.errors import UserError

MOST, MOST_QUERIED = 2048, 16384  # positions that are drawn, and among which the keys of a query are found
KINDS = (".png", ".svg", ".pdf")
TOPICS, DATA = ("topics", "topic"), ("data", "kinds of data", "data sets", "datasets", "dataset", "--data")
GLOSSARY, WORDS = ("part", "parts", "member", "members"), ("words", "word", "glossary", "terms", "term")
COMMANDS = ("commands", "command", "cli", "command line", "help")


def show(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="WORDS...",
            help="Name of a member or part, with keywords or numbers if you like; a topic such as sparse; a pattern "
            "such as 'Causal() & Band(64)'; data; a command, claim, law or public function; or file.py:Name.",
        ),
    ],
    length: Annotated[
        int | None,
        count("Number of token positions to draw; default: enough to show the attention pattern.", MOST_QUERIED),
    ] = None,
    figure: Annotated[bool, flag("figure", "Print only the figures and pictures, without the text.")] = False,
    query: Annotated[
        int | None,
        count(
            "Position of a query: print the keys that it reads, and the positions that reach it through several "
            "layers.",
            MOST_QUERIED - 1,
            0,
        ),
    ] = None,
    cost: Annotated[
        bool,
        flag("cost", "Also measure the time and memory of the part or member at several row lengths, on this machine."),
    ] = False,
    device: Device = None,
    precision: RunPrecision = "float32",
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the pictures: .png, .svg or .pdf, which is replaced if it exists; default: they are only "
            "drawn with characters in the terminal."
        ),
    ] = None,
) -> None:
    """Explain a member, part, topic, data or command, with drawings.

    \b
    Examples:
        kinformer show llama
        # A part with numbers, and a member with other keywords than the defaults
        kinformer show band 8
        kinformer show longformer window=8
        # An expression of patterns, also as a picture
        kinformer show 'Causal() & (Band(8) | Strided(8))' --out pattern.png
        # The figures of an idea as a file, and the keys of one query
        kinformer show lsh --figure --out lsh.png
        kinformer show 'Causal() & (Band(8) | Strided(8))' --query 37
        # A topic of the field, all topics, and the kinds of data
        kinformer show sparse
        kinformer show topics
        kinformer show data

    A part is a building block of models, and a member is a named model. The page explains the idea with a worked
    example and figures. Then come the arguments and pictures of the keys that each query attends to.
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.name_lookup import refuse_unknown
    from kinformer.cli.support.page import Topic
    from kinformer.pages.idea import find_idea

    first = next((n for n, word in enumerate(words) if n and _is_keyword(word)), len(words))
    name, keywords = _without_quotes(" ".join(words[:first])), tuple(words[first:])
    if _print_list(ctx, name) and name not in CONTRACTS:  # some commands are functions too
        return
    if not cost:
        refuse_useless(ctx, "without --cost", "device", "precision")
    if query is None and length is not None and length > MOST:
        raise UserError(f"--length {length} is above the {MOST:,} positions that can be drawn. Give a smaller number")
    if out is not None:
        _check(out)
    name = _recipe_name(name)
    idea = None if keywords else find_idea(name)
    if idea is None:
        refuse_unknown(name)

    from kinformer.cli.support.show_page import idea_and_pages, print_pages, print_queries, save_pictures

    measured_on = None
    if cost:
        from kinformer.cli.support.load_model import device_and_autocast

        measured_on = device_and_autocast(device, precision)
    idea, pages = idea_and_pages(name, keywords, idea)
    if isinstance(pages, Topic):
        refuse_useless(ctx, f"on the topic {name!r}", "cost", instead="name one of its parts")
    if query is not None:
        refuse_useless(ctx, "with --query", "out", "figure", "cost")
        print_queries(idea, pages, query, length)
        return
    if figure and idea is not None:
        refuse_useless(ctx, f"with --figure on the idea {name!r}", "cost", "device", "precision")
        if not idea.pattern:
            refuse_useless(ctx, f"with --figure on {name!r}, whose figures have their own length", "length")
    try:
        images = print_pages(pages, length, measured_on, idea, is_text=not figure)
    except OverflowError as error:
        raise UserError(f"cannot draw {name!r}: {error}. Give smaller numbers") from error
    if not images:
        refuse_useless(ctx, f"on {name!r}, which has no picture", "length", "figure")
    if out is not None:
        save_pictures(" ".join(words), images, out)
        print(f"\nthe pictures are in {out}")


def _print_list(ctx: typer.Context, name: str) -> bool:
    """Print topics, kinds of data, a command, a claim or a law if the name stands for it; else return False."""
    from kinformer.cli.support import topic_list
    from kinformer.cli.support.console import plain_console
    from kinformer.cli.support.topics import topic_name

    command: Any = ctx.find_root().command
    for word in name.split():
        command = getattr(command, "commands", {}).get(word)
    is_list = name in (*TOPICS, *DATA, *COMMANDS, *GLOSSARY, *WORDS) or topic_name(name) == "laws"
    if command is None and not is_list and not topic_list.is_claim_or_law(name):
        return False
    refuse_useless(ctx, f"on {name!r}", "cost", "length", "out", "query", "figure", instead="name a part or a member")
    console = plain_console(soft_wrap=True)
    if command is not None:
        topic_list.print_command(name, command, console)
    elif topic_name(name) == "laws":
        topic_list.print_laws(console)
    elif name in GLOSSARY:
        topic_list.print_part_and_member(console)
    elif name in WORDS:
        topic_list.print_words(console)
    elif name in TOPICS:
        topic_list.print_topics(console)
    elif name in DATA:
        topic_list.print_kinds_of_data(console)
    elif name in COMMANDS:
        print(ctx.find_root().get_help())
    else:
        topic_list.print_claim_or_law(name, console)
    return True


def _without_quotes(name: str) -> str:
    """Return a name without quotes around it, which a shell may have kept."""
    name = name.strip()
    quoted = len(name) > 2 and name[0] == name[-1] and name[0] in "'\"`"
    return name[1:-1].strip() if quoted else name


def _recipe_name(name: str) -> str:
    """Return the name of a recipe's page for another spelling of the recipe, such as convert/mqa."""
    folder, _, spelling = name.partition("/")
    if folder != "convert" or not spelling:
        return name
    from kinformer.convert.support.conversion_plan import find_recipe

    try:
        return f"convert/{find_recipe(spelling)[0].recipe_name()}"
    except ValueError:
        return name


def _is_keyword(word: str) -> bool:
    """Return True if a word has the form `name=value`, unlike an expression."""
    before, equals, _ = word.partition("=")
    return bool(equals) and before.strip().isidentifier()


def _check(out: Path) -> None:
    """Raise UserError for a picture file that cannot be written, before anything is computed."""
    if out.suffix.lower() not in KINDS:
        raise UserError(
            f"--out {out} is not a picture; give a file that ends in {', '.join(KINDS[:-1])} or {KINDS[-1]}"
        )
    refuse_no_folder(out)

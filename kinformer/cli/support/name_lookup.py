"""Lookup of names for `kinformer show`: parts, members, the public API, user files and topics."""

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import kinformer
from kinformer.cli.support.page import (
    Page,
    Topic,
    TopicEntry,
    example_maker,
    has_instance,
    has_keywords,
    is_member,
    keyword_builder,
    nearest_names,
)
from kinformer.cli.support.topics import TOPICS, topic_name
from kinformer.cli.support.typed_parts import (
    call_page,
    called_class,
    expression_page,
    files_of_parts,
    own_pages,
    words_as_call,
)
from kinformer.core.did_you_mean import ADVICE, find_synonym, suggest_names
from kinformer.core.discover import has_plugins, import_part_file, kinds, modules, part_files
from kinformer.core.keywords import split
from kinformer.core.public_names import CONTRACTS
from kinformer.core.quote import quote, shorten
from kinformer.lab.environments.support.make_environment import environment_folder
from kinformer.lab.errors import UserError, from_user
from kinformer.pages.module_docs import first_sentence, public_parts

EXPRESSION = re.compile(r"[(&|~]")
OWN_PATH = re.compile(r"(?P<file>[^&|(]*\.py)(:(?P<name>[A-Za-z_]\w*))?|(?P<strange>.*\.py)")  # may hold spaces
FOLDERS = ("exits", "losses", "data", "executors", "scalings", "search", "convert")  # without EXAMPLES in their files
LISTS = ("topics", "data", "commands", "words", "laws")  # names of lists that `kinformer show` prints
MENTIONS = 8  # files that are listed because they mention a word
_named = functools.cache(public_parts)


def find_pages(name: str, keywords: tuple[str, ...] = ()) -> list[Page] | Topic:
    """Return the pages that `kinformer show` prints for a name, or its topic if no part has the name.

    name: a part, a member, a contract (base class of parts), a part with numbers such as "band 8", a call, an
        expression of patterns, FILE.py:NAME or a topic. A topic comes before a part of its name, but after a member.
    keywords: keywords of a member, task, environment or part, such as "depth=2".

    Errors: UserError with the nearest names for an unknown name.
    """
    member = re.fullmatch(r"(?P<name>[a-z]\w*)\((?P<words>.*)\)", name)
    if member and any(True for _ in _files_with(member["name"], str)):
        return find_pages(member["name"], tuple(word for word in split(member["words"]) if word))
    match = OWN_PATH.fullmatch(name)
    if match:
        return [*own_pages(match["file"] or match["strange"], match["name"] or "", keywords)]
    is_name_of_member = name.removeprefix("members/") in _member_names()
    _refuse_numbers_of_member(name)
    call = name if called_class(name) else None if is_name_of_member else words_as_call(name, keywords)
    if call is not None:
        return [call_page(call, call.partition("(")[0])]
    if EXPRESSION.search(name):
        return [expression_page(name)]
    is_name_of_file = "_" in name or "/" in name or name != name.lower()
    if not (is_name_of_member or is_name_of_file or keywords) and (word := topic_name(name)):
        return make_topic(name, word)
    pages = list(_exact_pages(name, keywords)) or list(_exact_pages("_".join(name.split()), keywords))
    if pages:
        return sorted(pages, key=lambda page: not page.heading.startswith("members/"))
    if keywords:
        raise UserError(
            f"cannot use keywords such as {keywords[0]!r} with {name!r}: no part or member of this name takes keywords"
        )
    if word := topic_name(name):
        return make_topic(name, word)
    pages = list(_exact_pages(name, keywords, str.lower))
    if pages:
        return pages
    mentions = _find_mentions(name)
    if mentions:
        return Topic(name, "No part has this name, but these pages mention it.", mentions)
    raise _unknown(name, _offered_titles())


def has_page(name: str) -> bool:
    """Return True if a part, a member, a public name or a topic has a name, in any case and spelling.

    name: the name.
    """
    return topic_name(name) is not None or any(
        True for spelling in (name, "_".join(name.split())) for _ in _exact_pages(spelling, (), str.lower)
    )


def _member_names() -> set[str]:
    """The names of all members, of plugins too."""
    plugins = [] if not has_plugins("members") else [module for kind, _, module in _files() if kind == "members"]
    by_file = {name for name, file in files_of_parts().items() if file.startswith("members.")}
    return {*part_files("members"), *by_file, *(name for module in plugins for name in dict(_named(module)))}


def _refuse_numbers_of_member(name: str) -> None:
    """Refuse a member with numbers after it, such as "gpt 4"."""
    first, *rest = name.split()
    if first in part_files("members") and rest and all(word.isdecimal() for word in rest):
        raise UserError(
            f"the member {first!r} takes keywords and no bare numbers; write for example `kinformer show {first} "
            f"depth={rest[0]}`"
        )


def refuse_unknown(name: str) -> None:
    """Refuse a name that no part or topic has and no file mentions, before any library file is run.

    name: the name. Expressions, paths and user files are not refused here, and neither is any name if there are
        plugins; `find_pages` checks them.

    Errors: UserError with the nearest names.
    """
    name = re.sub(r"(\s+-?\d+)+$", "", name)  # numbers after a name, as in "band 8", are its arguments
    if topic_name(name) is not None or any(map(has_plugins, _folders())):
        return
    if not re.fullmatch(r"[\w\s-]+", name):
        _refuse_unknown_patterns(name)
        return
    texts = {file: _text_of_file(path) for _, file, path in _paths()}
    defined = [title for text in texts.values() for title in re.findall(r"^(?:class|def) ([A-Za-z]\w*)", text, re.M)]
    titles = {*texts, *defined, *CONTRACTS}
    every_word = dict.fromkeys(filter(None, re.split(r"[\s_-]+", name)))
    words = [re.compile(rf"\b{re.escape(word)}", re.IGNORECASE) for word in every_word]
    if {name.lower(), "_".join(name.split()).lower()}.isdisjoint(map(str.lower, titles)) and not any(
        all(word.search(text) for word in words) for text in texts.values()
    ):
        parts_with_examples = {
            title
            for text in texts.values()
            for title in re.findall(r"^class ([A-Za-z]\w*)", text, re.M)
            if re.search(rf"\b{title}\b", text.partition("\nEXAMPLES")[2])
        }
        # helpers are not suggested
        raise _unknown(name, {*texts, *parts_with_examples, *CONTRACTS, *TOPICS, *LISTS})


def _refuse_unknown_patterns(text: str) -> None:
    """Refuse an expression of patterns with an unknown name; paths and calls of other parts are not refused."""
    if ".py" in text or not EXPRESSION.search(text) or re.match(r"[a-z]\w*\(", text) or called_class(text):
        return
    names = {"Heads", *(name for name, file in files_of_parts().items() if ".patterns." in f".{file}.")}
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return  # `parse` says what is wrong
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name not in names:
                raise UserError(f"{shorten(name)} in {quote(text)} is not a pattern{suggest_names(name, names)}")


def _unknown(name: str, offered: Iterable[str]) -> UserError:
    if (synonym := find_synonym(name)) in CONTRACTS:
        return UserError(f"there is no part or member {name!r}; use {synonym!r} instead: `kinformer show {synonym}`")
    nearest = f"; {ADVICE[name]}" if name in ADVICE else nearest_names(name, offered)
    return UserError(f"there is no part or member {name!r}{nearest}. `kinformer list` prints all")


# Parts, members, the public API --------------------------------------------------------------------------------------


def _exact_pages(name: str, keywords: tuple[str, ...], fold: Callable[[str], str] = str) -> Iterator[Page]:
    """The pages of files and classes with a name, and of names that `kinformer` itself exports."""
    kind, slash, file_name = name.rpartition("/")
    listed: set[int] = set()
    for folder, file, module in _files_with(file_name if slash else name, fold):
        if slash and kind != folder:
            continue
        title = fold(file_name) if slash else fold(name)
        page = _page_of_module(f"{folder}/{file}", module, title, file, fold, keywords)
        if page:
            listed.update(id(subject) for _, subject in page.main)
            yield page
    if not slash and not keywords:
        for title, subject in _public_names(name, fold):
            if id(subject) not in listed:
                yield Page(f"kinformer.{title}", ((title.rpartition(".")[2], subject),), public=True)


def _page_of_module(
    place: str, module: ModuleType, name: str, file: str, fold: Callable[[str], str], keywords: tuple[str, ...]
) -> Page | None:
    """The page of a whole file if the file has the name, or of the class or function in it that has it."""
    everything = _named(module)
    examples = tuple(example_maker(entry) for entry in getattr(module, "EXAMPLES", ()))
    if fold(file) == name:
        has_class = any(inspect.isclass(subject) for _, subject in everything)
        kinds = {type(make()) for make in examples} if has_class else set()
        chosen = [pair for pair in everything if is_member(pair[1]) or pair[1] in kinds]
        chosen = chosen or [pair for pair in everything if pair[0] in files_of_parts()] or everything
    else:
        chosen = [pair for pair in everything if fold(pair[0]) == name]
    form = getattr(module, "FORM", "") if place.startswith("data/") and fold(file) == name else ""
    if form:
        chosen = [pair for pair in everything if pair[0] == "read"]
    if not chosen:
        return None
    helpers = [pair for pair in everything if pair not in chosen] if fold(file) == name else []
    members = [subject for _, subject in chosen if has_keywords(subject)]
    toys = examples[:1] if members and is_member(members[0]) and not keywords else ()
    if members:
        examples = tuple(keyword_builder(subject, keywords) for subject in members)
    elif keywords:
        return None  # only members, tasks and environments have keywords
    elif fold(file) != name:
        examples = tuple(make for make in examples if has_instance(make(), chosen[0][1]))
    return Page(
        place,
        tuple(chosen),
        _worth_listing(chosen, helpers),
        examples,
        form=form,
        says=first_sentence(module),
        toys=toys,
    )


def _worth_listing(
    chosen: Iterable[tuple[str, Any]], helpers: Iterable[tuple[str, Any]]
) -> tuple[tuple[str, Any], ...]:
    """The helpers of a page that are classes, or that the text of the page names."""
    text = " ".join(inspect.getdoc(subject) or "" for _, subject in chosen)
    return tuple((title, part) for title, part in helpers if inspect.isclass(part) or f"`{title}`" in text)


def _public_names(name: str, fold: Callable[[str], str]) -> Iterator[tuple[str, Any]]:
    """The contract or public function with a name, or a method such as "Context.of_sequence"."""
    first, _, rest = name.partition(".")
    for title in CONTRACTS:
        if fold(title) == fold(first) and callable(subject := getattr(kinformer, title)):
            if not rest:
                yield title, subject
            elif rest in _methods(subject):
                yield f"{title}.{rest}", getattr(subject, rest)
            else:
                raise UserError(f"{title} has no {rest!r}{nearest_names(rest, _methods(subject))}")


def _methods(cls: Any) -> list[str]:
    return [name for name, _ in inspect.getmembers(cls, callable) if not name.startswith("_")]


def _files_with(name: str, fold: Callable[[str], str]) -> Iterator[tuple[str, str, ModuleType]]:
    """Yield the files that have a name or define it, as kind, name and module; no other file is imported."""
    if any(map(has_plugins, _folders())):
        yield from _files()
        return
    flags = re.MULTILINE | (re.IGNORECASE if fold is str.lower else 0)
    definition = re.compile(rf"^(?:class |def |async def )?{re.escape(name)}\b", flags)
    for kind, file, path in _paths():
        if fold(file) == fold(name) or definition.search(_text_of_file(path)):
            with from_user(ImportError):
                yield kind, file, import_part_file(path)


@functools.cache
def _folders() -> tuple[str, ...]:
    return (*kinds(), *FOLDERS, *filter(None, [environment_folder()]))


@functools.cache
def _paths() -> tuple[tuple[str, str, Path], ...]:
    """Every file of every folder, as kind, name and path."""
    return tuple((kind, file, path) for kind in _folders() for file, path in part_files(kind).items())


@functools.cache
def _text_of_file(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def _files() -> tuple[tuple[str, str, ModuleType], ...]:
    """Every file of every folder, as kind, name and module; cached for the whole command."""
    with from_user(ImportError):
        return tuple((kind, file, module) for kind in _folders() for file, module in modules(kind).items())


@functools.cache
def _text_of(module: ModuleType) -> str:
    """The name and all docstrings of a file as one text."""
    name = module.__name__.rpartition(".")[2]
    return " ".join([name, module.__doc__ or "", *(inspect.getdoc(subject) or "" for _, subject in _named(module))])


def _offered_titles() -> set[str]:
    """The names to suggest for an unknown name: parts, members, topics and the public API, without helpers."""
    parts = {title for _, _, module in _files() for title, subject in _named(module) if _is_part(subject)}
    return {file for _, file, _ in _files()} | parts | {*TOPICS, *CONTRACTS, *LISTS}


def _is_part(subject: Any) -> bool:
    """True for a class that implements a contract of `kinformer.core`."""
    return inspect.isclass(subject) and any(base.__module__.startswith("kinformer.core.") for base in subject.__mro__)


# Topics --------------------------------------------------------------------------------------------------------------


def make_topic(word: str, name: str) -> Topic:
    """Return a topic with the first sentence of each of its files.

    word: the word that the user typed.
    name: the name of the topic.
    """
    text = TOPICS[name]
    files = {f"{kind}/{file}": path for kind, file, path in _paths()}
    with from_user(ImportError):
        modules_of_places = {place: import_part_file(files[place]) for place in text.places if place in files}
    entries = (TopicEntry(place, first_sentence(module)) for place, module in modules_of_places.items())
    return Topic(word, text.says, tuple(entries), text.commands, text.draws)


def page_of(place: str) -> Page:
    """Return the page of a file.

    place: kind and name of the file, such as "patterns/band".
    """
    return next(_exact_pages(place, ()))


def _find_mentions(words: str) -> tuple[TopicEntry, ...]:
    """The files that mention every word, those with most mentions first."""
    every = dict.fromkeys(filter(None, re.split(r"[\s_/-]+", words)))
    expressions = [re.compile(rf"\b{re.escape(word)}", re.IGNORECASE) for word in every]
    counted: list[tuple[int, str, str]] = []
    for kind, file, module in _files():
        text = _text_of(module)
        counts = [len(word.findall(text)) for word in expressions]
        if counts and all(counts):
            counted.append((-sum(counts), f"{kind}/{file}", first_sentence(module)))
    return tuple(TopicEntry(place, sentence) for _, place, sentence in sorted(counted)[:MENTIONS])

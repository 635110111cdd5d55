"""Lookup of names for `kinformer show`: parts, members, the public API, user files and topics."""

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import kinformer
from kinformer.cli.support.module_docs import defined_in, first_sentence, public_parts
from kinformer.cli.support.topics import TOPICS, topic
from kinformer.core.discover import Origin, has_plugins, kinds, modules, part_files
from kinformer.core.keywords import parse_keywords, split
from kinformer.core.module_import import load_user_module
from kinformer.core.public_names import CONTRACTS
from kinformer.lab.environments.support.make_environment import environment_folder
from kinformer.lab.errors import UserError, from_user

OWN = re.compile(r"(?P<file>[\w./~+-]+\.py):(?P<name>[A-Za-z_]\w*)")
EXPRESSION = re.compile(r"[(&|~]")
FOLDERS = ("exits", "losses", "data", "executors", "search")  # folders whose files have no EXAMPLES
NEAR, CLOSE, TALKED = 3, 0.6, 8
_named = functools.cache(public_parts)


class Page(NamedTuple):
    """Content of one page of `kinformer show`; `find_pages` returns it.

    heading: the title: kind and file, such as "patterns/band".
    main: the classes or functions that the page explains, with their names.
    helpers: further classes and functions of the same file, with their names.
    examples: functions that build the examples to draw.
    public: True for a name that `kinformer` itself exports.
    """

    heading: str
    main: tuple[tuple[str, Any], ...] = ()
    helpers: tuple[tuple[str, Any], ...] = ()
    examples: tuple[Callable[[], Any], ...] = ()
    public: bool = False


class TopicEntry(NamedTuple):
    """One file that belongs to a topic of `kinformer show`.

    place: kind and name of the file, such as "patterns/band".
    sentence: the first sentence of the file's documentation.
    """

    place: str
    sentence: str


class Topic(NamedTuple):
    """Topic of `kinformer show`: a word of the field, such as sparse, and the files that belong to it.

    word: the word.
    says: a sentence about it.
    places: the files, the most important first.
    """

    word: str
    says: str
    places: tuple[TopicEntry, ...]


def find_pages(name: str, keywords: tuple[str, ...] = ()) -> list[Page] | Topic:
    """Return the pages that `kinformer show` prints for a name, or its topic if no part has the name.

    name: a part, a member, a contract (base class of parts), an expression of patterns, FILE.py:NAME or a topic.
    keywords: keywords of a member, task or environment, such as "depth=2".

    Errors: UserError with the nearest names for an unknown name.
    """
    name = name.strip()
    member = re.fullmatch(r"(?P<name>[a-z]\w*)\((?P<words>.*)\)", name)
    if member and member["name"] in _all_titles():
        return find_pages(member["name"], tuple(word for word in split(member["words"]) if word))
    match = OWN.fullmatch(name) or (name.endswith(".py") and re.fullmatch(r"(?P<file>.*\.py)(?P<name>)", name))
    if match:
        return [*_own_pages(match["file"], match["name"], keywords)]
    if EXPRESSION.search(name):
        return [_expression(name)]
    pages = list(_exact_pages(name, keywords)) or list(_exact_pages("_".join(name.split()), keywords))
    if pages:
        return pages
    if keywords:
        kinds = "members, tasks and environments"
        raise UserError(
            f"cannot use keywords such as {keywords[0]!r} with {name!r}: only {kinds} have keywords, and none of them "
            "has this name"
        )
    if named_topic := topic(name):
        return _topic_with_more(name, named_topic.says, named_topic.places)
    pages = list(_exact_pages(name, keywords, str.lower))
    if pages:
        return pages
    talked = _find_mentions(name)
    if talked:
        return Topic(name, "No part has this name, but these pages mention it.", talked)
    raise _unknown(name, _offered_titles())


def refuse_unknown(name: str) -> None:
    """Refuse a name that no part or topic has and no file mentions, before any library file is run.

    name: the name. Expressions, paths and user files are not refused here, and neither is any name if there are
        plugins; `find_pages` checks them.

    Errors: UserError with the nearest names.
    """
    folders = (*kinds(), *FOLDERS, *filter(None, [environment_folder()]))
    if not re.fullmatch(r"[\w\s-]+", name) or topic(name) is not None or any(map(has_plugins, folders)):
        return
    texts = {file: path.read_text(encoding="utf-8") for kind in folders for file, path in part_files(kind).items()}
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
        raise _unknown(name, {*texts, *parts_with_examples, *CONTRACTS, *TOPICS})


def _unknown(name: str, offered: Iterable[str]) -> UserError:
    return UserError(f"there is no part or member {name!r}{nearest_names(name, offered)}. `kinformer list` prints all")


def nearest_names(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message that suggests the nearest names; "" if no name is near.

    name: the unknown name.
    names: the names to suggest from.
    """
    by_lower = {title.lower(): title for title in sorted(names, reverse=True)}
    close = [by_lower[title] for title in difflib.get_close_matches(name.lower(), by_lower, n=NEAR, cutoff=CLOSE)]
    if not close:
        return ""
    *before, last = (repr(title) for title in close)
    return f"; the nearest are {', '.join(before)} and {last}" if before else f"; the nearest is {last}"


# Parts, members, the public API --------------------------------------------------------------------------------------


def _exact_pages(name: str, keywords: tuple[str, ...], fold: Callable[[str], str] = str) -> Iterator[Page]:
    """The pages of files and classes with a name, and of names that `kinformer` itself exports."""
    kind, slash, file_name = name.rpartition("/")
    listed: set[int] = set()
    for folder, file, module in _files():
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
    examples = tuple(_maker(entry) for entry in getattr(module, "EXAMPLES", ()))
    if fold(file) == name:
        has_class = any(inspect.isclass(subject) for _, subject in everything)
        kinds = {type(make()) for make in examples} if has_class else set()
        chosen = [pair for pair in everything if _is_member(pair[1]) or pair[1] in kinds] or everything
    else:
        chosen = [pair for pair in everything if fold(pair[0]) == name]
    if not chosen:
        return None
    helpers = [pair for pair in everything if pair not in chosen] if fold(file) == name else []
    members = [subject for _, subject in chosen if _has_keywords(subject)]
    if members:
        examples = tuple(_builder(subject, keywords) for subject in members)
    elif keywords:
        return None  # only members, tasks and environments have keywords
    elif fold(file) != name:
        examples = tuple(make for make in examples if _has_instance(make(), chosen[0][1]))
    return Page(place, tuple(chosen), tuple(helpers), examples)


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


@functools.cache
def _files() -> tuple[tuple[str, str, ModuleType], ...]:
    """Every file of every folder, as kind, name and module; cached for the whole command."""
    with from_user(ImportError):
        folders = (*kinds(), *FOLDERS, *filter(None, [environment_folder()]))
        return tuple((kind, file, module) for kind in folders for file, module in modules(kind).items())


@functools.cache
def _text_of(module: ModuleType) -> str:
    """The name and all docstrings of a file as one text."""
    name = module.__name__.rpartition(".")[2]
    return " ".join([name, module.__doc__ or "", *(inspect.getdoc(subject) or "" for _, subject in _named(module))])


def _all_titles() -> set[str]:
    """Every name that has a page."""
    inside = {title for _, _, module in _files() for title, _ in _named(module)}
    return {file for _, file, _ in _files()} | inside | set(CONTRACTS)


def _offered_titles() -> set[str]:
    """The names to suggest for an unknown name: parts, members, topics and the public API, without helpers."""
    parts = {title for _, _, module in _files() for title, subject in _named(module) if _is_part(subject)}
    return {file for _, file, _ in _files()} | parts | set(TOPICS) | set(CONTRACTS)


def _is_part(subject: Any) -> bool:
    """True for a class that implements a contract of `kinformer.core`."""
    return inspect.isclass(subject) and any(base.__module__.startswith("kinformer.core.") for base in subject.__mro__)


def _maker(entry: Any) -> Callable[[], Any]:
    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.core.example import Example

    return Example.from_entry(entry).make


def _builder(function: Callable[..., Any], texts: tuple[str, ...]) -> Callable[[], Any]:
    with from_user(TypeError):
        keywords = parse_keywords(function, texts)

    def build() -> Any:
        with from_user(ValueError, TypeError, LookupError):
            return function(**keywords)

    return build


def _is_member(subject: Any) -> bool:
    return isinstance(getattr(subject, "origin", None), Origin)


def _has_keywords(subject: Any) -> bool:
    """True for a member, a task or an environment."""
    kind = getattr(subject, "kind", None) if inspect.isclass(subject) else None
    return _is_member(subject) or kind in ("task", "environment")


def _has_instance(example: Any, cls: Any) -> bool:
    """True if an example, or one of its submodules, is an instance of a class."""
    if not inspect.isclass(cls):
        return False
    inside = example.modules() if hasattr(example, "modules") else ()
    return isinstance(example, cls) or any(isinstance(module, cls) for module in inside)


# Expressions and own files -------------------------------------------------------------------------------------------


def _expression(text: str) -> Page:
    """The page of a pattern expression, whose names may also be FILE.py:Name."""
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


def _own_pages(file: str, name: str, keywords: tuple[str, ...]) -> Iterator[Page]:
    """The pages of a name in a user's file, or of all its names if the name is empty."""
    with from_user(LookupError, ImportError):
        module = load_user_module(file)
    names = dict(defined_in(module))
    if not names:
        raise UserError(f"{file} defines no public class or function to show")
    if name and name not in names:
        raise UserError(f"{file} has no {name!r}{nearest_names(name, names)}; it defines {', '.join(sorted(names))}")
    examples = tuple(_maker(entry) for entry in getattr(module, "EXAMPLES", ()))
    chosen = {name: names[name]} if name else names
    for title, subject in chosen.items():
        if _has_keywords(subject):
            yield Page(f"{file}:{title}", ((title, subject),), examples=(_builder(subject, keywords),))
        else:
            examples_of_it = tuple(make for make in examples if _has_instance(make(), subject))
            yield Page(f"{file}:{title}", ((title, subject),), examples=examples_of_it or _own_example(subject))


def _own_example(cls: Any) -> tuple[Callable[[], Any], ...]:
    """The class itself as the only example if it is a pattern without required arguments; otherwise empty."""
    from kinformer.core.pattern import Pattern

    if not (inspect.isclass(cls) and issubclass(cls, Pattern)):
        return ()
    required = [p for p in inspect.signature(cls).parameters.values() if p.default is p.empty]
    return () if required else (cls,)


# Topics --------------------------------------------------------------------------------------------------------------


def _topic_with_more(word: str, says: str, places: Iterable[str]) -> Topic:
    """A topic with its places in order, followed by other files that mention the word."""
    files = {f"{kind}/{file}": module for kind, file, module in _files()}
    chosen = [TopicEntry(place, first_sentence(files[place])) for place in places if place in files]
    further_mentions = [entry for entry in _find_mentions(word) if entry.place not in places]
    return Topic(word, says, (*chosen, *further_mentions[: max(0, TALKED - len(chosen))]))


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
    return tuple(TopicEntry(place, sentence) for _, place, sentence in sorted(counted)[:TALKED])

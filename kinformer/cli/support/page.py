"""Pages of `kinformer show` as data, and what their examples are built from."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kinformer.core.discover import Origin
from kinformer.core.keywords import name_of, parse_keywords
from kinformer.lab.errors import UserError, from_user

NEAR, CLOSE = 3, 0.6  # names that a message suggests, and difflib's ratio from which a name is near


class Page(NamedTuple):
    """Content of one page of `kinformer show`; `find_pages` returns it.

    heading: the title: kind and file, such as "patterns/band".
    main: the classes or functions that the page explains, with their names.
    helpers: further classes and functions of the same file, with their names.
    examples: functions that build the examples to draw.
    public: True for a name that `kinformer` itself exports.
    form: for a kind of data, how --data names it, such as "text=PATH"; "" for other pages.
    says: the first sentence of the file's documentation; "" for a page without a file.
    toys: functions that build small examples of a member, which are drawn in place of `examples`.
    """

    heading: str
    main: tuple[tuple[str, Any], ...] = ()
    helpers: tuple[tuple[str, Any], ...] = ()
    examples: tuple[Callable[[], Any], ...] = ()
    public: bool = False
    form: str = ""
    says: str = ""
    toys: tuple[Callable[[], Any], ...] = ()


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
    says: sentences about it.
    places: the files, the most important first.
    commands: commands to try.
    draws: an expression of patterns to draw; "" draws the patterns among `places`.
    """

    word: str
    says: str
    places: tuple[TopicEntry, ...]
    commands: tuple[str, ...] = ()
    draws: str = ""


@contextmanager
def building(what: str) -> Iterator[None]:
    """Enter a context in which a part or member is built; its refusals become UserErrors of one line.

    what: the call that builds it, for the message about sizes that do not fit into the memory.
    """
    try:
        with from_user(ValueError, TypeError, LookupError):
            yield
    except (RuntimeError, MemoryError, OverflowError) as error:
        raise UserError(f"cannot build {what}: {str(error):.80}... Give smaller numbers") from error


def example_maker(entry: Any) -> Callable[[], Any]:
    """Return the function that builds an entry of EXAMPLES.

    entry: the entry: a pattern, a function, or an `Example`.
    """
    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.core.example import Example

    return Example.from_entry(entry).make


def keyword_builder(function: Callable[..., Any], texts: tuple[str, ...]) -> Callable[[], Any]:
    """Return a function that builds a member, a task or an environment with keywords.

    function: the member, or the class of the task or environment.
    texts: the keywords, such as "depth=2".

    Errors: UserError for unknown keywords; the returned function raises UserError for values that are refused.
    """
    with from_user(TypeError):
        keywords = parse_keywords(function, texts)

    def build() -> Any:
        with building(f"{name_of(function)} {' '.join(texts)}".strip()):
            return function(**keywords)

    return build


def is_member(subject: Any) -> bool:
    """Return True for the function of a member, which is a named model.

    subject: a class or function.
    """
    return isinstance(getattr(subject, "origin", None), Origin)


def has_keywords(subject: Any) -> bool:
    """Return True for a member, a task or an environment.

    subject: a class or function.
    """
    kind = getattr(subject, "kind", None) if inspect.isclass(subject) else None
    return is_member(subject) or kind in ("task", "environment")


def has_instance(example: Any, cls: Any) -> bool:
    """Return True if an example, or one of its submodules, is an instance of a class.

    example: the example.
    cls: the class; for a function the result is False.
    """
    if not inspect.isclass(cls):
        return False
    inside = example.modules() if hasattr(example, "modules") else ()
    return isinstance(example, cls) or any(isinstance(module, cls) for module in inside)


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

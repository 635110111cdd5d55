"""Choice of a member (a named model) and its keywords on the command line, checked before building it."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kinformer.core.change import Change
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import Origin, find_member
from kinformer.core.keywords import describe_callable, name_of, parse_keywords, signature, split
from kinformer.core.module_import import load_user_module
from kinformer.lab.errors import UserError, from_user

WRITTEN = re.compile(r"(?P<name>[^()=]+)(\((?P<keywords>.*)\))?", re.DOTALL)  # a member with keywords in brackets


@dataclass(frozen=True)
class MemberChoice:
    """A member (a named model of the library, or a function in a file) and its keywords.

    text: the member as the command line gives it, such as "gpt(depth=2)".
    function: the member function.
    keywords: the parsed keywords.
    name: the text without keywords.
    changes: conversions that change the layers of the model, if its weights come from a converted model.
    """

    text: str
    function: Callable[..., Any]
    keywords: Mapping[str, Any]
    name: str
    changes: tuple[Change, ...] = ()

    def build(self, seed: int) -> Any:
        """Build the model with seeded random weights; UserError if its parts refuse the keywords."""
        import torch

        torch.manual_seed(seed)
        with from_user(ValueError, TypeError, LookupError):
            if not self.changes:
                return self.function(**self.keywords)
            from kinformer.convert.support.changed_model import build_changed  # imported here because it needs torch

            return build_changed(self.function, self.keywords, self.changes)


def find_member_function(name: str) -> Callable[..., Any]:
    """Return the function of a member (a named model), or the function "path/file.py:function".

    name: the name.

    Errors: UserError if there is no such member, or if its file cannot be imported.
    """
    with from_user(LookupError, ImportError):
        if not name.endswith(".py"):
            return find_member(name)
        module = load_user_module(name)
    names = [
        name_in_file
        for name_in_file, value in vars(module).items()
        if _is_member(value) and value.__module__ == module.__name__
    ]
    if not names:
        raise UserError(f"{name} has no member; put @member (from kinformer import member) above a function in it")
    raise UserError(f"{name} is a file; add a member in it, such as {name}:{names[0]} (it has {', '.join(names)})")


def _is_member(value: Any) -> bool:
    return isinstance(getattr(value, "origin", None), Origin)


def parse_member(name: str, texts: Iterable[str]) -> MemberChoice:
    """Return the choice of a member (a named model) or of "path/file.py:function", with parsed keywords.

    name: the name.
    texts: keywords such as "window=128".
    """
    texts = tuple(texts)
    function = find_member_function(name)
    with from_user(TypeError):
        keywords = parse_keywords(function, texts)
    return MemberChoice(with_keywords(name, texts), function, keywords, name)


def with_keywords(name: str, texts: Collection[str]) -> str:
    """Join a member and the texts of its keywords into one text, such as "gpt(depth=2, heads=4)".

    `parse_member_text` parses it back.

    name: the name of the member.
    texts: keywords such as "window=128".
    """
    return f"{name}({', '.join(texts)})" if texts else name


def split_keywords(
    function: Callable[..., Any], host: Callable[..., Any], texts: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Split texts into keywords of a member and keywords of a second one, the host, that takes its layers.

    Both members are named models; the host is built around layers of the first.

    function: the member function.
    host: the member function that takes the layers.
    texts: keywords such as "window=128".

    Errors: TypeError for a keyword that neither function has.
    """
    mine, theirs = signature(function).parameters, signature(host).parameters.keys() - {"stack"}
    member_texts, host_texts = list[str](), list[str]()
    for text in texts:
        name, equals, _ = (piece.strip() for piece in text.partition("="))
        if equals and name not in mine and name not in theirs:
            nor = f"nor has {name_of(host)!r}, which takes its layers"
            raise TypeError(
                f"{describe_callable(function)} has no keyword {name!r}, {nor}{suggest_names(name, {*mine, *theirs})}"
            )
        (host_texts if name in theirs and name not in mine else member_texts).append(text)
    return member_texts, host_texts


def parse_member_text(text: str, make: Callable[[str, list[str]], MemberChoice] | None = None) -> MemberChoice:
    """Parse a member (a named model) from a text such as "gpt" or "gpt(depth=2, heads=4)".

    text: the text.
    make: builds the choice from the name and the keywords; `parse_member` by default.
    """
    match = WRITTEN.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{text!r} is not a member; write gpt, or 'gpt(depth=2, heads=4)' in quotes")
    return (make or parse_member)(match["name"].strip(), keyword_texts(text))


def keyword_texts(text: str) -> list[str]:
    """Return the keywords in the text of a member (a named model), such as "depth=2" of "gpt(depth=2)".

    text: the text.
    """
    match = WRITTEN.fullmatch(text.strip())
    return [] if match is None else [piece for piece in split(match["keywords"] or "") if piece]


def titles(members: Iterable[MemberChoice]) -> list[str]:
    """Return a title for each member of a comparison, such as "gpt(depth=2)".

    It is the member's text without the path of a file, and with a number if it is repeated.

    members: the members.
    """
    plain = [choice.text.rpartition(".py:")[2] for choice in members]
    counts = [plain[:place].count(text) for place, text in enumerate(plain)]
    return [f"{text}#{count + 1}" if count else text for text, count in zip(plain, counts, strict=True)]


def folder_name(title: str) -> str:
    """Turn the title of a member into the name of a folder, without special characters.

    title: the title.
    """
    return re.sub(r"[^\w.=+#-]+", "-", title).strip("-")

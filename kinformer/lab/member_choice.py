"""What a command's words name: a member with its keywords, checked before anything is built."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import Origin, find_member, parse_keywords
from kinformer.core.keywords import describe_callable, name_of, signature, split
from kinformer.core.module_import import load_user_module
from kinformer.lab.errors import UserError, from_user


@dataclass(frozen=True)
class MemberChoice:
    """A member and its keywords; `text` is the text of the command line, and `name` the text without keywords."""

    text: str
    function: Callable[..., Any]
    keywords: Mapping[str, Any]
    name: str

    def build(self, seed: int) -> Any:
        """The model, its weights drawn by the seed; UserError where its parts refuse their keywords."""
        import torch

        torch.manual_seed(seed)
        with from_user(ValueError, TypeError, LookupError):
            return self.function(**self.keywords)


def find_member_function(name: str) -> Callable[..., Any]:
    """The member of a name, or of a "path/file.py:function"; UserError where there is none or no import of it."""
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
    raise UserError(f"{name} is a file; name a member in it too, like {name}:{names[0]} (it has {', '.join(names)})")


def _is_member(value: Any) -> bool:
    return isinstance(getattr(value, "origin", None), Origin)


def parse_member(name: str, texts: Iterable[str]) -> MemberChoice:
    """The member of a name, or of a "path/file.py:function", with keywords like "window=128"."""
    texts = tuple(texts)
    function = find_member_function(name)
    with from_user(TypeError):
        keywords = parse_keywords(function, texts)
    return MemberChoice(with_keywords(name, texts), function, keywords, name)


def with_keywords(name: str, texts: Collection[str]) -> str:
    """Join a member and the texts of its keywords into one text, which `parse_member_text` parses back."""
    return f"{name}({', '.join(texts)})" if texts else name


def split_keywords(
    function: Callable[..., Any], host: Callable[..., Any], texts: Iterable[str]
) -> tuple[list[str], list[str]]:
    """The texts that are keywords of a member, and those of what takes its layers; TypeError for one of neither."""
    mine, theirs = signature(function).parameters, signature(host).parameters.keys() - {"stack"}
    member_texts, host_texts = list[str](), list[str]()
    for text in texts:
        name, equals, _ = (piece.strip() for piece in text.partition("="))
        if equals and name not in mine and name not in theirs:
            nor = f"nor has {name_of(host)!r}, which learns over its layers"
            raise TypeError(
                f"{describe_callable(function)} has no keyword {name!r}, {nor}{suggest_names(name, {*mine, *theirs})}"
            )
        (host_texts if name in theirs and name not in mine else member_texts).append(text)
    return member_texts, host_texts


def parse_member_text(text: str, make: Callable[[str, list[str]], MemberChoice] | None = None) -> MemberChoice:
    """The member of a text like "gpt" or "gpt(depth=2, heads=4)"; `make` makes it of the name and the keywords."""
    match = re.fullmatch(r"(?P<name>[^()=]+)(\((?P<keywords>.*)\))?", text.strip(), re.DOTALL)
    if match is None:
        raise UserError(f"{text!r} is no member; write gpt, or 'gpt(depth=2, heads=4)' in quotes")
    return (make or parse_member)(match["name"].strip(), [piece for piece in split(match["keywords"] or "") if piece])


def titles(members: Iterable[MemberChoice]) -> list[str]:
    """A title for each member: as it was written, a file's path left out, and a number where it comes again."""
    plain = [choice.text.rpartition(".py:")[2] for choice in members]
    counts = [plain[:place].count(text) for place, text in enumerate(plain)]
    return [f"{text}#{count + 1}" if count else text for text, count in zip(plain, counts, strict=True)]


def folder_name(title: str) -> str:
    """A title as the name of a folder."""
    return re.sub(r"[^\w.=+#-]+", "-", title).strip("-")

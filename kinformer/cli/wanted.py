"""What a command's words name: a member with its keywords, checked before anything is built."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinformer.cli.errors import UserError, from_user
from kinformer.discover import find_member, parse_keywords
from kinformer.keywords import split


@dataclass(frozen=True)
class Wanted:
    """A member and the keywords that were given; `text` is how it was written."""

    text: str
    function: Callable[..., Any]
    keywords: Mapping[str, Any]

    def build(self, seed: int) -> Any:
        """The model, its weights drawn by the seed; UserError where its parts refuse their keywords."""
        import torch

        torch.manual_seed(seed)
        with from_user(ValueError, TypeError, LookupError):
            model = self.function(**self.keywords)
        if not hasattr(model, "logits"):
            raise UserError(f"{self.text!r} builds a {type(model).__name__}; a language model is needed")
        return model


def wanted(name: str, texts: Iterable[str]) -> Wanted:
    """The member of a name, or of a "path/file.py:function", with keywords like "window=128"."""
    texts = tuple(texts)
    with from_user(LookupError, ImportError):
        function = find_member(name)
    with from_user(TypeError):
        keywords = parse_keywords(function, texts)
    return Wanted(f"{name}({', '.join(texts)})" if texts else name, function, keywords)


def spelled(text: str) -> Wanted:
    """The member of a text like "gpt" or "gpt(depth=2, heads=4)"."""
    found = re.fullmatch(r"(?P<name>[^()=]+)(\((?P<keywords>.*)\))?", text.strip(), re.DOTALL)
    if found is None:
        raise UserError(f"{text!r} is no member; write gpt, or 'gpt(depth=2, heads=4)' in quotes")
    return wanted(found["name"].strip(), [piece for piece in split(found["keywords"] or "") if piece])


def folder_names(members: Iterable[Wanted]) -> list[str]:
    """A folder name for each member, as it was written; a number where two would be the same."""
    names: list[str] = []
    for one in members:
        plain = re.sub(r"[^\w.=+-]+", "-", Path(one.text).name.partition(".py:")[2] or one.text).strip("-")
        same = sum(name == plain or re.fullmatch(rf"{re.escape(plain)}-\d+", name) is not None for name in names)
        names.append(f"{plain}-{same + 1}" if same else plain)
    return names

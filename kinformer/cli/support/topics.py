"""Topics: words of the field that are no part's name, and what a reader means by them."""

import tomllib
from pathlib import Path
from typing import NamedTuple


class TopicText(NamedTuple):
    """A sentence on a topic, where to look, members first and then parts, and other words for it."""

    says: str
    places: tuple[str, ...]
    also: tuple[str, ...]


def _read_topics() -> dict[str, TopicText]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        name: TopicText(table["says"], tuple(table["places"]), tuple(table["also"])) for name, table in tables.items()
    }


TOPICS = _read_topics()


def topic(words: str) -> TopicText | None:
    """The topic that some words name, in whatever case and with - or _ for a space."""
    plain = " ".join(words.lower().replace("_", " ").replace("-", " ").split())
    for name, entry in TOPICS.items():
        if plain in (name, *(word.replace("-", " ") for word in entry.also)):
            return entry
    return None

"""Topics: words of the field that name no part, and the files that belong to them."""

import tomllib
from pathlib import Path
from typing import NamedTuple


class TopicText(NamedTuple):
    """One topic of `kinformer show`: a word of the field that names no part.

    says: a sentence about the topic.
    places: the files that belong to it, such as "patterns/band": members first and then parts.
    also: other words for the topic.
    """

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
    """Return the topic of `kinformer show` with a name; None if there is none.

    words: the name, in any case and with "-", "_" or a space between words.
    """
    plain = " ".join(words.lower().replace("_", " ").replace("-", " ").split())
    for name, entry in TOPICS.items():
        if plain in (name, *(word.replace("-", " ") for word in entry.also)):
            return entry
    return None

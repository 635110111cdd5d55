"""Topics: words of the field, and the files that belong to them."""

import tomllib
from pathlib import Path
from typing import NamedTuple


class TopicText(NamedTuple):
    """One topic of `kinformer show`: a word of the field, such as sparse.

    group: the group in which `kinformer show topics` lists it.
    says: one or two sentences about the topic.
    places: the files that belong to it, such as "patterns/band": members first and then parts.
    also: other words for the topic.
    commands: commands to try, with placeholders such as RUN for the folder of a trained model.
    draws: an expression of patterns to draw; "" draws the patterns among `places`.
    """

    group: str
    says: str
    places: tuple[str, ...]
    also: tuple[str, ...]
    commands: tuple[str, ...]
    draws: str = ""


def _read_topics() -> dict[str, TopicText]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        name: TopicText(
            table["group"],
            table["says"],
            tuple(table["places"]),
            tuple(table["also"]),
            tuple(table.get("commands", ())),
            table.get("draws", ""),
        )
        for name, table in tables.items()
    }


TOPICS = _read_topics()


def topic_name(words: str) -> str | None:
    """Return the name of the topic that some words stand for; None if there is none.

    words: the name of a topic or another word for it, in any case and with "-", "_" or a space between words.
    """
    plain = _plain(words)
    return next((name for name, entry in TOPICS.items() if plain in (_plain(name), *map(_plain, entry.also))), None)


def topics_of(place: str) -> list[str]:
    """Return the names of the topics that a file belongs to.

    place: kind and name of the file, such as "patterns/band".

    A topic comes first if the file stands early among the members, or among the parts, of its list.
    """
    is_member = place.startswith("members/")
    names = [name for name, entry in TOPICS.items() if place in entry.places]
    alike = {name: [x for x in TOPICS[name].places if x.startswith("members/") == is_member] for name in names}
    return sorted(names, key=lambda name: alike[name].index(place))


def _plain(words: str) -> str:
    return " ".join(words.lower().replace("_", " ").replace("-", " ").split())

"""Reference pages of topics and papers, with the parts that belong to each."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from kinformer.pages.site.kind_pages import link_to_file
from kinformer.pages.site.markdown import anchor, code_block, prose, table

TOPICS, PAPERS = "reference/topics.md", "reference/papers.md"


@runtime_checkable
class TopicEntryText(Protocol):
    """A topic of `kinformer show`: group, sentences, files, other words, and commands to try."""

    @property
    def group(self) -> str:
        """The group of the topic."""

    @property
    def says(self) -> str:
        """One or two sentences about the topic."""

    @property
    def places(self) -> tuple[str, ...]:
        """The files that belong to the topic, such as "patterns/band"."""

    @property
    def also(self) -> tuple[str, ...]:
        """Other words for the topic."""

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands to try."""


def topic_page(topics: Mapping[str, TopicEntryText]) -> str:
    """Return the page of all topics, in their groups.

    topics: the topics by name.
    """
    blocks = ["# Topics", "Words of the field, and the members and parts that belong to each of them."]
    for group in dict.fromkeys(topic.group for topic in topics.values()):
        blocks.append(f"## {group[:1].upper()}{group[1:]}")
        for name, topic in topics.items():
            if topic.group != group:
                continue
            blocks += [f"### {name}", prose(topic.says)]
            if topic.places:
                blocks.append(f"Parts and members: {', '.join(link_to_file(place, TOPICS) for place in topic.places)}.")
            if topic.also:
                blocks.append(f"Other words: {prose(', '.join(topic.also))}.")
            if topic.commands:
                blocks.append(code_block("\n".join(topic.commands), "sh"))
    return "\n\n".join(blocks) + "\n"


def topics_of_places(topics: Mapping[str, TopicEntryText]) -> dict[str, list[tuple[str, str]]]:
    """Return the topics of each file, by its place such as "members/gpt", each as its name and its anchor.

    topics: the topics by name.
    """
    places: dict[str, list[tuple[str, str]]] = {}
    for name, topic in topics.items():
        for place in topic.places:
            places.setdefault(place, []).append((name, anchor(name)))
    return places


def paper_page(papers: Sequence[Any]) -> str:
    """Return the page of all cited papers, the oldest first, each with its members and parts.

    papers: the papers, each with a `citation` (authors, year, url), `parts` and `members`.
    """
    rows = []
    for paper in papers:
        cited = paper.citation
        name = f"[{prose(cited.authors)}]({cited.url})" if cited.url else prose(cited.authors)
        places = [*(f"members/{member}" for member in paper.members), *paper.parts]
        rows.append((str(cited.year), name, ", ".join(link_to_file(place, PAPERS) for place in places)))
    intro = "Every paper that a member or a part comes from. `kinformer list papers` prints the same list."
    return f"# Papers\n\n{intro}\n\n{table(('year', 'paper', 'members and parts'), rows)}\n"

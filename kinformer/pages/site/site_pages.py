"""All generated pages of the documentation, from facts that the command line collects."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kinformer.pages.glossary import glossary_page
from kinformer.pages.site.command_pages import command_pages
from kinformer.pages.site.idea_pages import idea_pages
from kinformer.pages.site.kind_pages import (
    FILES,
    PARTS,
    contract_pages,
    file_page,
    kind_page,
    link_to_file,
    page_of_kind,
)
from kinformer.pages.site.member_pages import member_pages
from kinformer.pages.site.topic_pages import PAPERS, TopicEntryText, paper_page, topic_page, topics_of_places
from kinformer.pages.site.topic_pages import TOPICS as TOPIC_PAGE

GLOSSARY = "glossary.md"


class SiteFacts(NamedTuple):
    """Facts of the command line that the documentation lists.

    commands: the commands by name, as Typer makes them.
    members: name, paper, year, url, changes, cost and claims of each member.
    papers: the papers, each with a `citation`, `parts` and `members`.
    topics: the topics of `kinformer show` by name.
    """

    commands: Mapping[str, Any]
    members: Sequence[Mapping[str, Any]]
    papers: Sequence[Any]
    topics: Mapping[str, TopicEntryText]


def site_pages(facts: SiteFacts) -> dict[str, str]:
    """Return every generated page by its path.

    facts: facts of the command line.
    """
    pages = contract_pages()
    pages |= {page_of_kind(kind): kind_page(kind) for kind in PARTS}
    pages |= {page_of_kind(kind): file_page(kind) for kind in FILES}
    pages |= member_pages(facts.members, topics_of_places(facts.topics))
    pages |= command_pages(facts.commands)
    pages |= {TOPIC_PAGE: topic_page(facts.topics), PAPERS: paper_page(facts.papers)}
    return pages | idea_pages() | {GLOSSARY: glossary_page(lambda place: link_to_file(place, GLOSSARY))}

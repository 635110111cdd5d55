"""Citations in docstrings: authors, year and link of each paper."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_NAME = r"(?:van den )?[A-Z][a-z]\w*(?:[ '’-][A-Z]\w+)?"
_PAPER = re.compile(
    rf"(?<![A-Z]\. )\b(?P<authors>{_NAME}(?: et al\.| and {_NAME})?), (?P<year>(?:19|20)\d\d)\b"
    r"(?:, (?:arXiv:(?P<arxiv>\d{4}\.\d{4,5})|doi:(?P<doi>10\.[^\s,;)]*\w)|(?P<url>https://[^\s,;)]*\w)))?"
)
_SOURCE = re.compile(r"(?:^|\s)Source:\s(.*?)(?:\n\s*\n|\Z)", re.DOTALL)


class Citation(NamedTuple):
    """A cited paper.

    authors: the authors, such as "Dai et al.".
    year: the year.
    url: its page: on arXiv, or else by DOI or elsewhere; "" if the text gives none.
    """

    authors: str
    year: int
    url: str


def citations(text: str) -> list[Citation]:
    """Return the papers that a text cites as "Authors, year, arXiv:ID", in order and once each.

    A DOI (`doi:10...`) or an address may stand in place of the arXiv ID. A paper that is cited several times gets the
    link of any of its citations.

    text: the text, such as a docstring.
    """
    found = [
        Citation(match["authors"], int(match["year"]), _url(match)) for match in _PAPER.finditer(" ".join(text.split()))
    ]
    linked = {paper[:2]: paper for paper in reversed(found) if paper.url}
    return list(dict.fromkeys(paper if paper.url else linked.get(paper[:2], paper) for paper in found))


def _url(match: re.Match[str]) -> str:
    if match["arxiv"]:
        return f"https://arxiv.org/abs/{match['arxiv']}"
    return f"https://doi.org/{match['doi']}" if match["doi"] else match["url"] or ""


def source_citations(docstring: str) -> Iterator[Citation]:
    """Yield the papers in the paragraphs of a docstring that begin with or contain `Source:`.

    docstring: the docstring.
    """
    for source in _SOURCE.findall(docstring):
        yield from citations(source)

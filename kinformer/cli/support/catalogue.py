"""The catalogue of the library: members with their papers, and papers with their parts.

Everything is read from the text of files. Nothing is imported except plugins.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kinformer.cli.support.citations import Citation, citations, source_citations
from kinformer.cli.support.static_source import constant, first_sentences, member_cost
from kinformer.core.discover import UNJUDGED, kinds, part_files
from kinformer.core.module_import import dotted_name

ENVIRONMENTS = "environments"  # their files are read as text, so gymnasium need not be installed
ABOUT = ("paper", "year", "url", "changes", "cost", "claims")  # what the entry of a member has besides its sentence


class PaperEntry(NamedTuple):
    """A paper and the files of the library that come from it.

    citation: the paper.
    parts: the parts, such as "patterns/band".
    members: the members (named models).
    """

    citation: Citation
    parts: list[str]
    members: list[str]


def list_entries(of: Iterable[str]) -> list[dict[str, Any]]:
    """Return an entry with kind, name and sentence for each part, member or kind of data of some kinds.

    of: the kinds, such as "patterns" and "members".
    """
    entries = []
    for kind in of:
        for name, sentence in first_sentences(kind).items():
            if kind == "data" and (file := part_files(kind).get(name)) and not constant(file, "FORM"):
                continue  # a helper, and not a kind of data
            entries.append({"kind": kind, "name": name, "sentence": sentence})
    return entries


def with_member_facts(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return entries with further facts about members, which take time to collect.

    The facts are the authors, year and url of the member's paper, what it changes, its order of cost, and the names of
    the claims about it. A plugin's member has None for them.

    entries: the entries, as `list_entries` returns them.
    """
    entries = list(entries)
    known = member_facts() if any(entry["kind"] == "members" for entry in entries) else {}
    return [
        {**entry, **(known.get(entry["name"], dict.fromkeys(ABOUT)) if entry["kind"] == "members" else {})}
        for entry in entries
    ]


def member_facts() -> dict[str, dict[str, Any]]:
    """Return the facts in `ABOUT` of each member of the library, by name."""
    papers = {name: _papers_of_member(file) for name, file in part_files("members").items()}
    claims = _claims_by_member({name: cited[0].url for name, cited in papers.items()})
    facts = {}
    for name, file in part_files("members").items():
        paper, sentence = papers[name][0], _docstrings(file)[0].partition("\n")[0].removesuffix(".")
        changes = sentence.partition(": ")[2] or sentence
        values = paper.authors, paper.year, paper.url, changes, member_cost(file, name), claims[name]
        facts[name] = dict(zip(ABOUT, values, strict=True))
    return facts


def list_papers() -> list[PaperEntry]:
    """Return every paper that a part or member comes from, once, the oldest first.

    The paper of a member stands in the first paragraph of its docstring, and the papers of parts after `Source:`.
    """
    entries: dict[str | Citation, PaperEntry] = {}
    for kind in dict.fromkeys((*kinds(), *UNJUDGED, ENVIRONMENTS)):
        for name, file in part_files(kind).items():
            cited = _papers_of_member(file) if kind == "members" else _papers_of_part(file)
            for paper in cited:
                entry = entries.setdefault(paper.url or paper, PaperEntry(paper, [], []))
                into = entry.members if kind == "members" else entry.parts
                label = name if kind == "members" else f"{kind}/{name}"
                if label not in into:
                    into.append(label)
    return sorted(entries.values(), key=lambda entry: (entry.citation.year, entry.citation.authors))


def _papers_of_part(file: Path) -> list[Citation]:
    return [paper for text in _docstrings(file) for paper in source_citations(text)]


def _papers_of_member(file: Path) -> list[Citation]:
    """Return the papers in the first paragraph of a member's docstring, with their links from the whole docstring."""
    text = next(text for text in _docstrings(file)[1:] if citations(text))
    first = {(paper.authors, paper.year) for paper in citations(text.partition("\n\n")[0])}
    return [paper for paper in citations(text) if (paper.authors, paper.year) in first]


def _docstrings(file: Path) -> list[str]:
    """Return the docstrings of a file, of its functions and of its classes, in order."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef))]
    return [ast.get_docstring(node) or "" for node in nodes]


def _claims_by_member(url_of_member: dict[str, str]) -> dict[str, list[str]]:
    """Return the claims about each member: those whose source is the member's paper.

    If several members have this paper, the claim is about the members that it imports, if it imports any.
    """
    claims = defaultdict(list)
    for claim, file in part_files("claims").items():
        cited = {paper.url for paper in citations(constant(file, "SOURCE"))}
        members = [name for name, url in url_of_member.items() if url and url in cited]
        text = file.read_text(encoding="utf-8")
        imported = [name for name in members if f"from {dotted_name(part_files('members')[name])} import" in text]
        for name in imported or members:
            claims[name].append(claim)
    return claims

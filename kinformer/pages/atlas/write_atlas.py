"""write_atlas: the atlas as a folder of files that a browser opens without a server."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import write
from kinformer.lab.advise.member_costs import LENGTHS, member_costs
from kinformer.pages.atlas.claim_report import ClaimReport
from kinformer.pages.atlas.idea_pages import IdeaPage, idea_articles
from kinformer.pages.atlas.lineage import lineage
from kinformer.pages.atlas.lineage_map import lineage_list, lineage_svg
from kinformer.pages.atlas.member_card import MemberCard, card_data, card_html, make_card
from kinformer.pages.atlas.pattern_entries import pattern_entries
from kinformer.pages.html_page import html_page
from kinformer.pages.pictures.support.figure_html import STYLE as FIGURES

PAGE = "index.html"
TITLE = "kinformer: the atlas"
SITE = Path(__file__).with_name("site")
SCRIPTS = (  # in the order in which they are loaded
    *("pattern_base.js", "random_blocks.js", "span_tree.js", "patterns.js", "pattern_parser.js"),
    *("pattern_numbers.js", "pattern_long_row.js", "pattern_facts.js"),
    *("members.js", "compare.js", "lineage.js", "pattern_view.js", "playground.js", "search.js", "atlas.js"),
)
SORTS = {  # what the cards are sorted by, and the heading of the choice
    "name": "name",
    "year": "year, oldest first",
    "flops": "FLOPs per token, fewest first",
    "state": "decoding state, smallest first",
    "keys": "keys per query, fewest first",
    "parameters": "parameters, fewest first",
}
EXAMPLES = {  # expressions for the playground, with what to look at
    "Causal()": "every earlier token",
    "Causal() & Band(7)": "a window of 8 keys",
    "Causal() & (Band(4) | Strided(8))": "Sparse Transformer, strided",
    "Causal() & Fixed(8, 1)": "Sparse Transformer, fixed",
    "Band(3) | Tokens(2) | Rows(2)": "Longformer: window and global tokens",
    "Block(4, 1, 1) | Tokens(4) | Rows(4) | Random(2, 4, symmetric=True)": "BigBird: window, global and random blocks",
    "Causal() & Segment(8, 8)": "Transformer-XL: segment and memory",
    "Causal() & (Band(3) | Tokens(4))": "a window and four attention sinks",
    "Heads(Causal() & Band(4), Causal() & Strided(5))": "another pattern for each head",
    "Heads(Blockwise((0, 1), 24), Blockwise((1, 0), 24))": "BlockBERT: one key block for each query block",
    "Image2D(8, (2, 4), (2, 2))": "Image Transformer, two-dimensional",
    "Axial((8, 6), 0) | Axial((8, 6), 1)": "row and column of a picture",
    "Star()": "Star-Transformer: neighbours and a relay",
    "Tree(2)": "BP-Transformer: tokens and spans in post-order",
    "Causal() & Dilated(4, 3)": "a window with gaps",
}


@dataclass(frozen=True)
class AtlasContent:
    """Facts that the atlas gets from the command line's catalogue.

    members: an entry for each member: name, sentence, paper, year, url, cost and claims.
    commands: a command that trains each member, by name.
    topics: words of the field: a sentence, other words and the members of each.
    words: words of other libraries, and the names that they stand for.
    reports: reports of claims by name.
    """

    members: Sequence[Mapping[str, Any]]
    commands: Mapping[str, str]
    topics: Sequence[Mapping[str, Any]]
    words: Mapping[str, str]
    reports: Mapping[str, ClaimReport]


def write_atlas(content: AtlasContent, folder: Path) -> Path:
    """Write the atlas into a folder, and return its first page.

    content: facts about the members, and words to search by.
    folder: the folder; it is created.

    Errors: OSError if a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [entry["name"] for entry in content.members]
    facts = zip(content.members, names, strict=True)
    cards = [make_card(entry, content.commands[name], _topics(content, name)) for entry, name in facts]
    ideas = idea_articles()
    style = (SITE / "atlas.css").read_text(encoding="utf-8") + FIGURES
    body = (SITE / "body.html").read_text(encoding="utf-8")
    for marker, html in _contents(cards, content, ideas).items():
        body = body.replace(f"<!--{marker}-->", html)
    scripts = "".join(f'<script src="{name}"></script>\n' for name in ("data.js", *SCRIPTS))
    data = json.dumps(_data(cards, content, ideas), ensure_ascii=False, separators=(",", ":"))
    for name in SCRIPTS:
        write(folder / name, (SITE / name).read_bytes())
    write(folder / "data.js", f"window.ATLAS = {data};\n".encode())
    write(folder / PAGE, html_page(TITLE, body + scripts, style))
    return folder / PAGE


def is_atlas(folder: Path) -> bool:
    """Return whether a folder holds an atlas, or the part of one that an interrupted run wrote.

    folder: the folder.
    """
    files = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    page = folder / PAGE
    if PAGE not in files:
        return bool(files) and files <= {"data.js", *SCRIPTS}
    return page.is_file() and f"<title>{TITLE}</title>".encode() in page.read_bytes()[:1000]


def _topics(content: AtlasContent, name: str) -> list[str]:
    return [topic["name"] for topic in content.topics if name in topic["members"]]


def _data(cards: Sequence[MemberCard], content: AtlasContent, ideas: Sequence[IdeaPage]) -> dict[str, Any]:
    return {
        "members": [card_data(card) for card in cards],
        "topics": list(content.topics),
        "words": dict(content.words),
        "ideas": [
            {"key": idea.key, "title": idea.title, "sentence": idea.sentence, "names": idea.names} for idea in ideas
        ],
        "patterns": pattern_entries(),
        "longest": max(LENGTHS),
    }


def _contents(cards: Sequence[MemberCard], content: AtlasContent, ideas: Sequence[IdeaPage]) -> dict[str, str]:
    """Return the HTML for each marker of body.html."""
    families = dict.fromkeys(descent.family for descent in lineage().values())
    return {
        "number": str(len(cards)),
        "sorts": _options(SORTS),
        "families": _options({family: family for family in families}),
        "kinds": _options({kind: kind for kind in sorted({card.reads for card in cards})}),
        "torch": escape(str(member_costs()["on"]["torch"])),
        "cards": "".join(_card(card, content, ideas) for card in cards),
        "map": lineage_svg({card.name: card.year for card in cards}),
        "tree": lineage_list(),
        "examples": "".join(_example(text, why) for text, why in EXAMPLES.items()),
        "ideas": "".join(_idea(idea) for idea in ideas) or "<p>No idea has a page yet.</p>\n",
    }


def _options(texts: Mapping[str, str]) -> str:
    return "".join(f'<option value="{escape(key)}">{escape(text)}</option>' for key, text in texts.items())


def _card(card: MemberCard, content: AtlasContent, ideas: Sequence[IdeaPage]) -> str:
    return card_html(card, content.reports, {idea.key: idea.title for idea in ideas if card.name in idea.members})


def _example(text: str, why: str) -> str:
    return f'<button type="button" data-text="{escape(text)}"><code>{escape(text)}</code><br>{escape(why)}</button>\n'


def _idea(idea: IdeaPage) -> str:
    links = ", ".join(f'<a href="#member/{name}">{name}</a>' for name in idea.members)
    members = f'<p class="soft">Members: {links}</p>\n' if links else ""
    return (
        f'<article class="idea" id="idea/{idea.key}"><h3><a href="#idea/{idea.key}">{escape(idea.title)}</a></h3>\n'
        f'<p class="says">{escape(idea.sentence)}</p>\n{members}<div class="more">{idea.html}</div></article>\n'
    )

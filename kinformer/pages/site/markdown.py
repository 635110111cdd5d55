"""Plain Markdown: escaped prose, code blocks, tables, links and the anchors of headings."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

CODE = re.compile(r"(?<!`)(`+)(?!`)(?P<code>.+?)(?<!`)\1(?!`)", re.DOTALL)
SPECIAL = re.compile(
    r"[\\*~$]|<(?=[\w/!?])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=\()"
)  # characters that Markdown would not print
BLOCK = re.compile(r"^(?:(?=[-+=>#])|(\d+)(?=[.)]))")  # a heading, a list, a quotation or a line
ADDRESS = re.compile(r"arXiv:(?P<arxiv>\d{4}\.\d{4,5})|doi:(?P<doi>10\.[^\s,;)]*\w)|(?P<url>https?://[^\s,;)]*[\w/])")
LINK = r"(?P<link>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\([^)]*\))"
CALL = r"\((?:[^`()]|\([^`()]*\))*\)"  # with at most one further level of brackets
NAME = re.compile(LINK + rf"|`(?P<prefix>kf\.|kinformer\.)?(?P<name>[A-Za-z_]\w*)(?P<call>{CALL})?`")
FENCE = re.compile(r"^ {0,3}(?P<fence>`{3,}).*?^ {0,3}(?P=fence)[^\n]*$", re.DOTALL | re.MULTILINE)
NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


class SitePlace(NamedTuple):
    """A place in the documentation.

    page: the file, from the root of the documentation, such as "reference/patterns.md".
    anchor: the anchor of a heading in it; "" for the page itself.
    """

    page: str
    anchor: str = ""


def prose(text: str) -> str:
    """Return text of a docstring as Markdown: signs are escaped, addresses are links, and `code` stays.

    text: a paragraph of plain text, with code in backticks.
    """
    pieces, begin = [], 0
    for code in CODE.finditer(text):
        pieces += [_plain(text[begin : code.start()]), code[0]]
        begin = code.end()
    return BLOCK.sub(r"\1\\", "".join([*pieces, _plain(text[begin:])]))


def with_addresses(text: str) -> str:
    """Return Markdown with links for arXiv numbers, DOIs and addresses; code and links stay.

    text: the Markdown.
    """
    pieces = re.split(rf"(`[^`]*`|{LINK.replace('?P<link>', '?:')}|<[^>\n]*>)", text)
    return "".join(piece if number % 2 else ADDRESS.sub(_link, piece) for number, piece in enumerate(pieces))


def _plain(text: str) -> str:
    """Escape text without code in it, and make links of its addresses."""
    pieces, begin = [], 0
    for address in ADDRESS.finditer(text):
        pieces += [_escape(text[begin : address.start()]), _link(address)]
        begin = address.end()
    return "".join([*pieces, _escape(text[begin:])])


def _escape(text: str) -> str:
    return SPECIAL.sub(r"\\\g<0>", text)


def _link(address: re.Match[str]) -> str:
    if address["arxiv"]:
        return f"[arXiv:{address['arxiv']}](https://arxiv.org/abs/{address['arxiv']})"
    if address["doi"]:
        return f"[doi:{_escape(address['doi'])}](https://doi.org/{address['doi']})"
    return f"<{address['url']}>"


def code_block(text: str, language: str = "text") -> str:
    """Return a fenced block of code.

    text: the lines.
    language: its language, for colours; "text" for equations and drawings.
    """
    fence = "````" if "```" in text else "```"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of finished Markdown; "" without rows.

    headings: one heading for each column.
    rows: the cells of each row. Line ends become spaces, and bars are escaped.
    """
    lines = [_row(row) for row in rows]
    return "\n".join([_row(headings), _row(["---"] * len(headings)), *lines]) if lines else ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in cells) + " |"


def pieces_of(text: str) -> Iterator[tuple[str, bool]]:
    """Yield a page in pieces, each with True for a fenced block of code.

    text: the page.
    """
    begin = 0
    for block in FENCE.finditer(text):
        yield text[begin : block.start()], False
        yield block[0], True
        begin = block.end()
    yield text[begin:], False


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and MyST make it.

    heading: the heading, which may hold code in backticks.
    """
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("\\", "")
    return NOT_IN_ANCHORS.sub("", plain.lower().strip()).replace(" ", "-")


def anchors(text: str) -> list[str]:
    """Return the anchors of all headings of a page in order; a repeated heading gets a number.

    text: the page.
    """
    counts: dict[str, int] = {}
    result = []
    for heading in re.findall(r"^#{1,6} (.+)$", FENCE.sub("", text), re.MULTILINE):
        name = anchor(heading)
        result.append(f"{name}-{counts[name]}" if name in counts else name)
        counts[name] = counts.get(name, 0) + 1
    return result


def relative(place: SitePlace, page: str) -> str:
    """Return the address of a place, as a page links to it.

    place: the place.
    page: the page with the link.
    """
    steps, home = place.page.split("/"), page.split("/")[:-1]
    while home and len(steps) > 1 and steps[0] == home[0]:
        steps, home = steps[1:], home[1:]
    path = "/".join([*[".."] * len(home), *steps])
    return f"{path}#{place.anchor}" if place.anchor else path


def with_links(text: str, page: str, places: Mapping[str, SitePlace]) -> str:
    """Return a page in which public names in backticks are links to their entries.

    A name is linked if it begins with `kf.`, or if it is the name of a class. Headings, code blocks, links, and the
    entry of the name itself stay as they are.

    text: the page.
    page: the path of the page.
    places: the place of each public name.
    """
    return "".join(
        piece if is_code else "".join(_linked_lines(piece, page, places)) for piece, is_code in pieces_of(text)
    )


def _linked_lines(text: str, page: str, places: Mapping[str, SitePlace]) -> Iterator[str]:
    entry = ""

    def link(code: re.Match[str]) -> str:
        place = places.get(code["name"] or "")
        is_plain_word = not code["prefix"] and not (code["name"] or "")[:1].isupper()
        if code["link"] or place is None or is_plain_word or place == SitePlace(page, entry):
            return code[0]
        return f"[{code[0]}]({relative(place, page)})"

    for line in text.splitlines(keepends=True):
        if line.startswith("#"):
            entry = anchor(line.lstrip("# ").strip())
        is_text = not line.startswith(("#", "    "))
        yield NAME.sub(link, line) if is_text else line

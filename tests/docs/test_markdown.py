"""Plain text of docstrings stays the same text as Markdown, and links are as GitHub and MyST expect them."""

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from kinformer.pages.site.markdown import (
    SitePlace,
    anchor,
    anchors,
    code_block,
    prose,
    relative,
    table,
    with_addresses,
    with_links,
)

READER = MarkdownIt("commonmark").enable("table")


def seen(markdown: str) -> str:
    """The text that a reader of the page sees."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", READER.render(markdown))).split())


@pytest.mark.parametrize(
    "text",
    [
        "y = a * b * c",
        "_private and __init__ of x_1, x_2",
        "a < b and <s> or </s>",
        "# no heading",
        "- no item",
        "1. no list",
        "(5 + n) / 6)**length_penalty",
        "[B T D](and more)",
        "costs $5 and $6, ~20 of ~30",
        "a\\b and a | b",
        "> 3",
    ],
)
def test_signs_stay(text: str) -> None:
    assert seen(prose(text)) == text
    assert READER.render(prose(text)).startswith("<p>")


@given(st.text("ab_*<>~$#-+1.)([]\\| x", min_size=1, max_size=30))
def test_any_text_stays(text: str) -> None:
    words = " ".join(text.split())
    assert seen(prose(words)) == words


def test_code_stays_code() -> None:
    assert prose("Use `a*b <c>` and d*e") == "Use `a*b <c>` and d\\*e"


def test_addresses_are_links() -> None:
    assert prose("Dai et al., 2019, arXiv:1901.02860.") == (
        "Dai et al., 2019, [arXiv:1901.02860](https://arxiv.org/abs/1901.02860)."
    )
    assert prose("doi:10.1609/aaai.v33i01.33016489, page 2") == (
        "[doi:10.1609/aaai.v33i01.33016489](https://doi.org/10.1609/aaai.v33i01.33016489), page 2"
    )
    assert prose("see https://a.org/b_c_d/, there") == "see <https://a.org/b_c_d/>, there"
    text = "[paper](https://arxiv.org/abs/1) and `arXiv:1901.02860`"
    assert with_addresses(text) == text


def test_a_bar_in_a_cell_is_no_border() -> None:
    html = READER.render(table(("a", "b"), [("`x | y`", "p | q\nr")]))
    assert re.findall(r"<td>(.*?)</td>", html) == ["<code>x | y</code>", "p | q r"]
    assert table(("a",), []) == ""


def test_a_block_of_code_may_hold_a_fence() -> None:
    tokens = READER.parse(code_block("```python\nx\n```"))
    assert [token.type for token in tokens] == ["fence"] and tokens[0].content == "```python\nx\n```\n"


def test_anchors_are_as_on_github() -> None:
    assert anchor("`kf.attend`, and more: a_b") == "kfattend-and-more-a_b"
    page = "# A\n\n## B c\n\n```\n# no heading\n```\n\n## B c\n"
    assert anchors(page) == ["a", "b-c", "b-c-1"]


@pytest.mark.parametrize(
    ("place", "page", "address"),
    [
        (SitePlace("a.md"), "b.md", "a.md"),
        (SitePlace("r/a.md", "x"), "b.md", "r/a.md#x"),
        (SitePlace("a.md"), "r/s/b.md", "../../a.md"),
        (SitePlace("r/a.md"), "r/b.md", "a.md"),
        (SitePlace("r/s/a.md"), "r/b.md", "s/a.md"),
        (SitePlace("r/a.md"), "r/s/b.md", "../a.md"),
    ],
)
def test_an_address_begins_at_the_page(place: SitePlace, page: str, address: str) -> None:
    assert relative(place, page) == address


def test_names_become_links() -> None:
    places = {"Band": SitePlace("r/p.md", "band"), "merge": SitePlace("r/f.md", "merge")}
    text = (
        "# `Band`\n\n`Band(3)`, `Band(3) | x`, `kf.merge`, `merge`, [`Band`](x.md) and [a `Band`](y.md)\n\n"
        "```\n`Band`\n```\n\n    `Band`\n"
    )
    assert with_links(text, "t/page.md", places) == (
        "# `Band`\n\n[`Band(3)`](../r/p.md#band), `Band(3) | x`, [`kf.merge`](../r/f.md#merge), `merge`, "
        "[`Band`](x.md) and [a `Band`](y.md)\n\n```\n`Band`\n```\n\n    `Band`\n"
    )
    own = "## Band\n\nUnlike `Band`.\n\n## Other\n\n`Band`\n"
    assert with_links(own, "r/p.md", places) == "## Band\n\nUnlike `Band`.\n\n## Other\n\n[`Band`](p.md#band)\n"

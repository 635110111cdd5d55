"""The atlas holds a card for every member with equal facts, loads nothing from elsewhere, and answers questions."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kinformer.cli.support.catalogue import member_facts
from kinformer.core.discover import members
from kinformer.lab.advise.member_costs import member_costs
from kinformer.lab.claims.support.claim_report import read_reports, write_report
from kinformer.pages.atlas.lineage import lineage
from kinformer.pages.atlas.member_card import write_count
from kinformer.pages.atlas.write_atlas import EXAMPLES, PAGE, SCRIPTS, is_atlas
from kinformer.pages.idea import all_ideas
from kinformer.pages.order_of_cost import formula
from tests.pages.atlas.browser import visit, wait_for_address
from tests.pages.atlas.conftest import DRAWN, REPORT

FACTS = (
    *("reads", "order of cost", "FLOPs per token", "decoding state", "keys per query", "growth of the cost"),
    *("parameters", "family", "descends from", "what it changes", "descendants", "in Python", "keywords", "train it"),
    *("claims", "measured", "ideas", "read more"),
)


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return (folder / PAGE).read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Start tags of a page with their attributes, and the tags that are open at the end."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br", "img", "link", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in ("li", "p"):  # their end tags may be left out
            self.open.pop()
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()


def cards(html: str) -> dict[str, str]:
    return dict(re.findall(r'<article class="card" id="member/(\w+)".*?>(.*?)</article>', html, re.DOTALL))


def test_the_site_is_small_and_loads_nothing_from_elsewhere(folder: Path, html: str) -> None:
    assert sum(file.stat().st_size for file in folder.iterdir()) < 10_000_000
    assert {file.name for file in folder.iterdir()} == {PAGE, "data.js", *SCRIPTS}
    for tag, attributes in Elements(html).tags:
        for name in ("src", "srcset", "data", "poster", "action", "xlink:href"):
            if value := attributes.get(name):
                assert (folder / value).is_file(), (tag, value)
        if tag != "a":
            assert "href" not in attributes, tag
    for text in (html, *(file.read_text(encoding="utf-8") for file in folder.glob("*.js"))):
        assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|import\(|importScripts", text)


def test_every_member_has_a_card_with_the_same_facts(html: str) -> None:
    texts = cards(html)
    assert sorted(texts) == sorted(members())
    facts = member_facts()
    for name, text in texts.items():
        assert tuple(re.findall(r"<dt>(.*?)</dt>", text)) == FACTS, name
        assert f"{facts[name]['paper']}, {facts[name]['year']}" in text
        assert not facts[name]["url"] or f'href="{facts[name]["url"].replace("&", "&amp;")}"' in text
        assert f"<code>kf.{name}()</code>" in text
        assert f"kinformer train {name} --data " in text
        assert f"<code>{formula(facts[name]['cost'])}</code>" in text.replace("&amp;", "&")
        for claim in facts[name]["claims"]:
            assert f"<code>kinformer claim {claim}</code>" in text, name


def test_a_report_of_a_claim_stands_on_the_card(html: str) -> None:
    texts = cards(html)
    assert (
        "<code>kinformer claim bigbird_paths</code>: <b>holds</b>: Random blocks shorten the paths" in texts["bigbird"]
    )
    assert "<code>kinformer claim blockbert_memory</code>: not measured" in texts["blockbert"]


def test_drawings_have_descriptions_and_ids_are_unique(html: str) -> None:
    texts = cards(html)
    for name in DRAWN - {"lstm"}:
        assert "<svg" in texts[name] and f'aria-label="{name}: ' in texts[name], name
    assert "No drawing" in texts["lstm"]
    tags = Elements(html).tags
    for tag, attributes in tags:
        if tag == "svg":
            assert attributes.get("aria-label"), attributes
        if tag == "img":
            assert attributes.get("alt")
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    links = {attributes["href"] for tag, attributes in tags if tag == "a"}
    inside = {link[1:].partition("?")[0] for link in links if link and link.startswith("#")}
    assert inside <= set(ids)


def test_the_map_links_every_member_and_every_parent(html: str) -> None:
    map_html = html.partition('<svg id="map"')[2].partition("</svg>")[0]
    assert sorted(re.findall(r'<a href="#member/(\w+)"', map_html)) == sorted(members())
    lines = set(re.findall(r'data-parent="(\w+)" data-child="(\w+)"', map_html))
    assert lines == {(parent, name) for name, descent in lineage().items() for parent in descent.parents}


def test_every_idea_has_a_page(html: str) -> None:
    for idea in all_ideas().values():
        assert f'id="idea/{idea.name}"' in html
        for place in idea.places:
            if place.startswith("members/"):
                assert f'href="#idea/{idea.name}"' in cards(html)[place.removeprefix("members/")]


def test_an_atlas_is_recognised(folder: Path, tmp_path: Path) -> None:
    assert is_atlas(folder)
    (tmp_path / PAGE).write_text("<title>another page</title>")
    assert not is_atlas(tmp_path)
    assert not is_atlas(tmp_path / "missing")
    part = tmp_path / "part"
    part.mkdir()
    assert not is_atlas(part)
    (part / SCRIPTS[0]).write_text("")
    assert is_atlas(part)
    (part / "notes.txt").write_text("")
    assert not is_atlas(part)


def test_files_that_are_no_reports_are_left_out(tmp_path: Path) -> None:
    write_report(REPORT, tmp_path)
    good = (tmp_path / "bigbird_paths.json").read_text()
    for name, text in {
        "latin": good.replace("Random", "Zuf\xe4llige"),
        "other_name": good,
        "verdict": good.replace("bigbird_paths", "verdict").replace("holds", "perhaps"),
        "field": good.replace("bigbird_paths", "field").replace("seconds", "hours"),
        "empty": "",
        "list": "[]",
    }.items():
        (tmp_path / f"{name}.json").write_bytes(text.encode("latin-1"))
    names = ["latin", "other_name", "verdict", "field", "empty", "list", "bigbird_paths", "missing"]
    assert read_reports(tmp_path, names) == {"bigbird_paths": replace(REPORT, measures=[])}


def test_counts_are_written_with_three_digits() -> None:
    numbers = {
        4_653_056: "4.65 M",
        43_974_656: "44 M",
        2_000_000_000: "2 G",
        12: "12",
        999: "999",
        999.6: "1 k",
        999_999: "1 M",
        999_499: "999 k",
        999_999_999: "1 G",
        2e15: "2,000 T",
    }
    assert {count: write_count(count) for count in numbers} == numbers


def shown_cards(page: Any) -> list[str]:
    return page.evaluate("[...document.querySelectorAll('.card')].filter((x) => !x.hidden).map((x) => x.dataset.name)")


def test_the_cheapest_member_at_16384_tokens_comes_first(page: Any) -> None:
    page.select_option("select[name=sort]", "flops")
    flops = {name: entry["flops"].get("16384") for name, entry in member_costs()["members"].items()}
    expected = sorted((count, name) for name, count in flops.items() if count is not None)
    assert shown_cards(page)[: len(expected)] == [name for _, name in expected]
    assert page.inner_text("#lead-sort").startswith(f"Fewest FLOPs per token at 16,384 tokens: {expected[0][1]} (")
    wait_for_address(page, "sort=flops")
    page.select_option("select[name=family]", "memory")
    assert set(shown_cards(page)) == {name for name, descent in lineage().items() if descent.family == "memory"}


def test_who_descends_from_transformer_xl(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("transformer xl")
    page.keyboard.press("Enter")
    wait_for_address(page, "#member/transformer_xl")
    assert shown_cards(page) == ["transformer_xl"]
    text = page.inner_text("[id='member/transformer_xl']")
    expected = ("adaptive_span", "compressive_transformer", "gtrxl", "spalm", "memorizing_transformer", "longformer_lm")
    assert all(name in text for name in expected)
    page.click(".card:not([hidden]) >> text=on the map")
    wait_for_address(page, "#lineage")
    page.wait_for_selector("#map.chosen")
    below = page.evaluate("[...document.querySelectorAll('#map a.below')].map((x) => x.dataset.name)")
    assert sorted(below) == sorted(expected)
    above = page.evaluate("[...document.querySelectorAll('#map a.above')].map((x) => x.dataset.name)")
    assert sorted(above) == ["al_rfou", "shaw", "transformer"]
    page.focus("#map a[data-name=bert]")
    assert "From bert descend" in page.inner_text("#descent")


def test_what_query_40_reads_under_an_own_expression(page: Any) -> None:
    page.click("nav >> text=playground")
    wait_for_address(page, "#playground")
    page.fill("#expression-left", "Causal() & (Band(2) | Tokens((0, 7)))")
    expected = "Query 40 reads 5 keys: 0, 7, 38-40."
    page.wait_for_function(f"document.querySelector('.query').textContent.includes('{expected}')")
    page.focus("canvas")
    page.keyboard.press("ArrowUp")
    assert page.inner_text(".query").startswith("Query 39 reads 5 keys: 0, 7, 37-39")
    wait_for_address(page, "query=39")
    page.fill("#expression-left", "Causal() & Bnad(2)")
    page.wait_for_selector(".view .error:not([hidden])")
    assert page.inner_text(".view .error:visible") == "There is no pattern Bnad; the nearest is 'Band'"
    page.fill("#expression-left", "Causal() & Band(9)")
    page.wait_for_function("document.querySelector('.view dl').textContent.includes('10 keys per query')")


def test_two_expressions_and_two_members_have_an_address(page: Any) -> None:
    visit(page, "playground?left=Causal()&right=Band(1)&length=16&query=3")
    queries = page.evaluate("[...document.querySelectorAll('.query')].map((x) => x.textContent)")
    assert queries[0].startswith("Query 3 reads 4 keys: 0-3") and queries[1].startswith("Query 3 reads 3 keys: 2-4")
    visit(page, "compare?left=gpt&right=longformer")
    rows = page.evaluate("[...document.querySelectorAll('#table tr')].map((x) => [...x.cells].map((y) => y.innerText))")
    assert rows[0][1:] == ["gpt", "longformer"]
    assert [row[0] for row in rows[4:]] == list(FACTS)
    page.select_option("#pair select[name=right]", "bigbird")
    wait_for_address(page, "right=bigbird")


def test_the_examples_are_expressions(page: Any) -> None:
    visit(page, "playground")
    for text in EXAMPLES:
        page.click(f".examples button[data-text={text!r}]")
        assert page.input_value("#expression-left") == text
        assert page.is_hidden(".view .error")
    for entry in page.evaluate("ATLAS.patterns.map(({ example }) => example)"):
        page.evaluate("(text) => Atlas.parsePattern(text)", entry)


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ("sliding window", "#idea/atomic_patterns"),
        ("GPT2LMHeadModel", "#member/gpt"),
        ("SlidingWindow", "Band"),
        ("streaming llm", "#idea/sinks"),
        ("attention sinks", "#idea/sinks"),
        ("hashed attention", "#idea/lsh"),
        ("longfomer", "#member/longformer"),
        ("Strided", "Strided"),
    ],
)
def test_search_finds_other_names(shared_page: Any, words: str, address: str) -> None:
    shared_page.fill("#search", words)
    links = shared_page.evaluate("[...document.querySelectorAll('#results a')].map((x) => decodeURIComponent(x.href))")
    assert address in links[0], links
    shared_page.keyboard.press("Escape")
    assert shared_page.is_hidden("#results")


def search(page: Any, words: str) -> list[str]:
    """Return the texts of the results."""
    page.fill("#search", words)
    return page.evaluate("[...document.querySelectorAll('#results a')].map((x) => x.innerText)")


@pytest.mark.parametrize("words", ["attention sinks", "sinks", "streaming LLM"])
def test_an_idea_of_this_name_comes_before_a_topic(page: Any, words: str) -> None:
    assert search(page, words)[0].startswith("Attention sinks (StreamingLLM) idea")
    page.focus("#search")
    page.keyboard.press("Enter")
    wait_for_address(page, "#idea/sinks")


def test_a_result_says_why_it_matches(shared_page: Any) -> None:
    assert "also called: GPT2LMHeadModel" in search(shared_page, "GPT2LMHeadModel")[0]
    assert any("reformer member topic: hashed" in text for text in search(shared_page, "hashed attention"))
    assert "a similar name" in search(shared_page, "longfomer")[0]
    assert "also called" not in search(shared_page, "longformer")[0]


def test_a_filter_is_named_and_ended(page: Any) -> None:
    assert page.is_hidden("#filter")
    visit(page, "members?sort=flops&topic=sinks")
    assert shown_cards(page) == ["gpt"]
    assert page.inner_text("#filter").startswith('Only members of the topic "sinks" are shown.')
    page.select_option("select[name=family]", "heads")
    assert shown_cards(page) == [] and 'of the family "heads", and of the topic "sinks"' in page.inner_text("#filter")
    page.click("text=show all members")
    assert page.is_hidden("#filter")
    assert len(shown_cards(page)) == len(members())
    wait_for_address(page, "sort=flops")


def test_a_sort_keeps_the_star_of_extrapolated_numbers(page: Any) -> None:
    page.select_option("select[name=sort]", "flops")
    costs = member_costs()["members"]
    lead = page.inner_text("#lead-sort")
    assert re.findall(r"(\w+) \([\d,]+(\*?)\)", lead) == [
        (name, "*" if 16384 in costs[name]["extrapolated"] else "") for name in re.findall(r"(\w+) \(", lead)
    ]
    assert "*" in lead


def test_equal_rows_of_a_comparison_are_pale_and_the_names_stay(page: Any) -> None:
    visit(page, "compare?left=gpt&right=llama")
    rows = page.evaluate(
        "[...document.querySelectorAll('#table tbody tr')].map((x) => [x.cells[1].innerHTML === x.cells[2].innerHTML,"
        " x.classList.contains('equal'), Number(getComputedStyle(x).opacity) < 1])"
    )
    assert all(row[0] == row[1] == row[2] for row in rows) and {row[0] for row in rows} == {True, False}
    page.evaluate("scrollTo(0, 600)")
    box, bar = page.locator("#table thead th").first.bounding_box(), page.locator("nav.top").bounding_box()
    assert bar["y"] + bar["height"] <= box["y"] + 2 < 100


def test_symbols_and_missing_states_are_explained(html: str) -> None:
    texts = cards(html)
    assert "marked: number of first tokens of a row that are global" in texts["longformer"]
    assert "inducing: number of points of each ISAB" in texts["set_transformer"]
    assert "segment: tokens of a segment" in texts["spalm"]  # its docstring refers to transformer_xl
    for name, text in texts.items():
        order = re.search(r"<dt>order of cost</dt><dd><code>(.*?)</code><div class=\"soft\">(.*?)</div>", text)
        symbols = set(re.findall(r"[A-Za-z_]+", order[1])) - {"log", "sqrt", "steps"}
        assert all(f"{symbol}: " in order[2] for symbol in symbols) and "a keyword" not in order[2], name
        assert not re.search(r"<dt>decoding state</dt><dd>none</dd>", text), name
    assert "about the same FLOPs as" in texts["longformer"] and "the same FLOPs" not in texts["gpt"]


def test_drawings_on_cards_name_their_colours_and_axes(html: str) -> None:
    for name in ("gpt", "longformer", "transformer_xl", "reformer", "bloom"):
        caption = cards(html)[name].partition('class="caption soft"')[2].partition("</div>")[0]
        assert "Down: query. Across: " in caption and 'class="dot"' in caption, name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_section_is_wider_than_the_screen(browser: Any, folder: Path, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto((folder / PAGE).as_uri())
    for section in ("members", "member/bigbird", "lineage", "playground", "compare", "ideas", "idea/lsh"):
        for width in (500, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            visit(page, section)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (section, width)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark is (scheme == "dark")
    context.close()


def test_the_cards_are_there_without_scripts(browser: Any, folder: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((folder / PAGE).as_uri())
    assert page.locator(".card").count() == len(members())
    assert page.locator(".card dl.more >> visible=true").count() == len(members())
    context.close()

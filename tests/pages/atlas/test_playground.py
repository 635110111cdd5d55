"""The playground applies its boxes as they are typed, and keeps the chosen query and the last drawing."""

from typing import Any

import pytest

from kinformer.pages.idea import all_ideas
from tests.pages.atlas.browser import visit, wait_for_address

QUERY = "document.querySelector('.query').textContent"
COLOURS = "document.querySelector('canvas').toDataURL()"


@pytest.fixture
def playground(page: Any) -> Any:
    page.click("nav >> text=playground")
    wait_for_address(page, "#playground")
    return page


def place_of_query(page: Any, query: int) -> tuple[float, float]:
    """Return the place of a query of a drawing of 48 positions on the screen."""
    box = page.locator("canvas").first.bounding_box()
    return box["x"] + 30, box["y"] + 1 + (query + 0.5) * (box["width"] - 2) / 48


def test_a_length_is_applied_as_it_is_typed(playground: Any) -> None:
    playground.focus("input[name=positions]")
    playground.keyboard.press("Control+a")
    for keys, length in (("6", 6), ("4", 64)):
        playground.keyboard.type(keys)
        assert (
            playground.evaluate("document.querySelector('canvas').getAttribute('aria-label')").find(
                f"with {length} positions"
            )
            > 0
        )
    wait_for_address(playground, "length=64")
    assert "Query 40 reads" in playground.evaluate(QUERY)  # the shorter row did not change it
    playground.keyboard.type("0")
    assert (
        playground.inner_text("#limits") == "Length 640 is over the maximum of 512; the drawing still has 64 positions."
    )
    assert playground.input_value("input[name=positions]") == "640"
    wait_for_address(playground, "length=64")
    playground.keyboard.press("Backspace")
    assert playground.inner_text("#limits") == ""
    playground.fill("input[name=query]", "64")
    assert playground.inner_text("#limits").startswith("A query is a whole number from 0 to 63;")
    playground.fill("input[name=query]", "63")
    assert playground.evaluate(QUERY).startswith("Query 63 reads")
    assert "1 to 512" in playground.inner_text("#setting") and "0 to 63" in playground.inner_text("#setting")


def test_heads_that_are_not_counted_are_named(playground: Any) -> None:
    for text, is_named in (
        ("Heads(Band(0), Band(0), Band(0), Band(0), Causal())", True),
        ("Causal() & OnHeads(1, 5)", True),
        ("Heads(Band(0), Causal())", False),
        ("Random(2, 4)", False),
    ):
        playground.fill("#expression-left", text)
        playground.wait_for_function(
            "(text) => decodeURIComponent(location.hash).replaceAll('+', ' ').includes(text)", arg=text
        )
        facts = playground.inner_text(".view dl")
        assert ("heads 4 to 4: this page counts the first 4" in facts) == is_named, text


def test_an_address_with_a_longer_row_says_so(playground: Any) -> None:
    visit(playground, "playground?left=Causal()&length=900")
    assert playground.inner_text("#limits") == "Length 900 is over the maximum; the drawing has 512 positions."


def test_a_mouse_shows_a_query_and_a_click_chooses_it(playground: Any) -> None:
    playground.fill("input[name=query]", "30")
    playground.mouse.move(*place_of_query(playground, 12))
    assert playground.evaluate(QUERY).startswith("Query 12 reads")
    assert playground.input_value("input[name=query]") == "30"
    wait_for_address(playground, "query=30")
    playground.mouse.move(5, 5)
    assert playground.evaluate(QUERY).startswith("Query 30 reads")
    playground.mouse.click(*place_of_query(playground, 7))
    playground.mouse.move(5, 5)
    assert playground.evaluate(QUERY).startswith("Query 7 reads")
    wait_for_address(playground, "query=7")
    assert playground.input_value("input[name=query]") == "7"


def test_a_tap_chooses_a_query_and_a_swipe_scrolls(phone: Any) -> None:
    phone.tap("nav >> text=playground")
    wait_for_address(phone, "#playground")
    phone.evaluate("scrollTo(0, 300)")
    phone.wait_for_function("scrollY > 200")
    x, y = place_of_query(phone, 20)
    session, before = phone.context.new_cdp_session(phone), phone.evaluate("scrollY")
    for kind, moved in (("Start", 0), *(("Move", 15 * n) for n in range(1, 11)), ("End", None)):
        points = [] if moved is None else [{"x": x, "y": y - moved}]
        session.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
        phone.wait_for_timeout(16)
    assert phone.evaluate("scrollY") > before + 100
    assert phone.evaluate(QUERY).startswith("Query 40 reads")
    place = None
    while place != (place := phone.evaluate("scrollY")):  # a tap on a page that still moves only stops it
        phone.wait_for_timeout(300)
    phone.touchscreen.tap(*place_of_query(phone, 20))
    assert phone.evaluate(QUERY).startswith("Query 20 reads")


def test_an_error_keeps_the_last_drawing_in_place(playground: Any) -> None:
    drawing, place = playground.evaluate(COLOURS), playground.locator("canvas").first.bounding_box()
    playground.fill("#expression-left", "Causal() & (Band(4)")
    playground.wait_for_selector(".view .error:visible")
    assert playground.evaluate(COLOURS) == drawing
    assert playground.locator("canvas").first.bounding_box() == place
    assert float(playground.evaluate("getComputedStyle(document.querySelector('.shown')).opacity")) < 1
    playground.fill("#expression-left", "Causal()")
    playground.wait_for_selector(".view .error", state="hidden")
    assert playground.evaluate("getComputedStyle(document.querySelector('.shown')).opacity") == "1"


def test_a_pattern_replaces_an_example_and_is_added_to_an_own_expression(playground: Any) -> None:
    playground.fill("input[name=positions]", "30")
    playground.click("#patterns button:has-text('Band(')")
    example = playground.input_value("#expression-left")
    assert example.startswith("Band(")
    wait_for_address(playground, "length=30")
    playground.fill("#expression-left", "Causal() & Band(5)")
    playground.click("#patterns button:has-text('Star(')")
    text = playground.input_value("#expression-left")
    assert text.startswith("Causal() & Band(5) | Star(")
    wait_for_address(playground, "length=30")
    playground.evaluate("document.querySelector('#expression-left').setSelectionRange(11, 18)")  # "Band(5)"
    playground.click("#patterns button:has-text('Strided(')")
    assert playground.input_value("#expression-left").startswith("Causal() & Strided(")
    assert playground.is_hidden(".view .error")


def test_every_pattern_has_a_sentence_and_links_to_its_ideas(playground: Any) -> None:
    items = playground.evaluate("[...document.querySelectorAll('#patterns li')].map((x) => [x.innerText, x.innerHTML])")
    patterns = playground.evaluate("ATLAS.patterns")
    assert len(items) == len(patterns) > 20
    for (text, html), pattern in zip(items, patterns, strict=True):
        assert pattern["sentence"] and pattern["sentence"] in text
        expected = [idea.name for idea in all_ideas().values() if f"patterns/{pattern['file']}" in idea.places]
        assert all(f'href="#idea/{name}"' in html for name in expected)
        assert html.count("#idea/") == len(expected)


def test_causal_patterns_are_compared_with_full_attention_too(playground: Any) -> None:
    visit(playground, "playground?left=Causal()&length=9")
    pairs = "document.querySelectorAll('.view dd')[1].textContent"
    assert playground.evaluate(pairs) == "45 per head: 100% of causal attention, 55.6% of full attention"  # 45 of 81
    long = "document.querySelectorAll('.view dd')[3].textContent"
    playground.wait_for_function(
        f"{long} === '8,192.5 keys per query, 100% of causal attention, 50% of full attention'"
    )
    playground.fill("#expression-left", "Band(1)")  # 25 of 81 pairs
    playground.wait_for_function(f"{pairs} === '25 per head: 30.9% of full attention'")


def test_numbers_of_heads_say_that_they_are_means(playground: Any) -> None:
    assert "means over heads" not in playground.inner_text(".view")
    playground.click(".examples button:has-text('BigBird')")
    facts = playground.inner_text(".view dl")
    assert facts.index("these numbers are means over heads 0 to 3") < facts.index("keys per query")


def test_a_second_expression_is_shown_on_a_phone(phone: Any) -> None:
    phone.tap("nav >> text=playground")
    wait_for_address(phone, "#playground")
    phone.tap("input[name=both]")
    phone.wait_for_function("document.querySelector('#expression-right').getBoundingClientRect().top < innerHeight / 2")
    assert phone.is_visible("#expression-right")


def test_axes_are_numbered(playground: Any) -> None:
    for axis in ("across", "down"):
        numbers = playground.evaluate(
            f"[...document.querySelectorAll('.view .axis.{axis} span')].map((x) => x.innerText)"
        )
        assert numbers == ["0", "10", "20", "30", "40"]
    box = playground.locator("canvas").first.bounding_box()
    tick = playground.locator(".view .axis.down span >> text=30").first.bounding_box()
    middle = box["y"] + 1 + 30.5 * (box["width"] - 2) / 48
    assert abs(tick["y"] + tick["height"] / 2 - middle) < 3

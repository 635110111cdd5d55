"""The map of descent: its lines pass no member, it never moves, and a member is named when it is pointed at."""

import re
from itertools import combinations, pairwise
from typing import Any

import pytest

from kinformer.cli.support.catalogue import member_facts
from kinformer.core.discover import members
from kinformer.pages.atlas.lineage import ancestors_of, descendants_of, lineage
from kinformer.pages.atlas.lineage_map import lineage_svg
from tests.pages.atlas.browser import wait_for_address

Segment = tuple[float, float, float, float]  # x and y of both ends, the smaller ones first
MARKED = """() => Object.fromEntries(["self", "above", "below"].map(
  (kind) => [kind, [...document.querySelectorAll(`#map a.${kind}`)].map((box) => box.dataset.name)]))"""
# scroll so that a member is in the middle of the screen, and return the place of its box
SHOW = """(name) => {
  const box = document.querySelector(`#map a[data-name=${name}] .box`);
  const frame = document.getElementById("map").parentElement;
  frame.scrollLeft = box.x.baseVal.value - 100;
  scrollBy({ top: box.getBoundingClientRect().top - innerHeight / 2 - 60, behavior: "instant" });
  const { x, y, width, height } = box.getBoundingClientRect();
  return [x + width / 2, y + height / 2];
}"""
PLACE = """() => {
  const { x, y, width, height } = document.getElementById("map").getBoundingClientRect();
  return [x, y, width, height, scrollY];
}"""


@pytest.fixture(scope="module")
def svg() -> str:
    return lineage_svg({name: facts["year"] for name, facts in member_facts().items()})


def boxes(svg: str) -> dict[str, tuple[float, float, float, float]]:
    """Return the ends of each box: left, top, right, bottom."""
    rectangles = re.findall(r'data-name="(\w+)".*?x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', svg)
    return {name: (x, y, x + w, y + h) for name, *texts in rectangles for x, y, w, h in [tuple(map(float, texts))]}


def lines(svg: str) -> dict[tuple[str, str], list[Segment]]:
    """Return the straight parts of each line, with its rounded corners as sharp ones."""
    parts = {}
    for parent, child, path in re.findall(r'data-parent="(\w+)" data-child="(\w+)" d="(.*?)m-4', svg):
        numbers = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path)]
        parts[parent, child] = [(*min(a, b), *max(a, b)) for a, b in pairwise(numbers) if a != b]
    return parts


def test_lines_have_vertical_and_horizontal_parts_outside_the_boxes(svg: str) -> None:
    places = boxes(svg)
    assert places.keys() == set(members())
    assert len(lines(svg)) == sum(len(descent.parents) for descent in lineage().values())
    for (parent, child), parts in lines(svg).items():
        for x, y, far_x, far_y in parts:
            small = max(far_x - x, far_y - y) <= 8  # the half of a rounded corner
            assert small or x == pytest.approx(far_x) or y == pytest.approx(far_y), (parent, child)
            for name, (left, top, right, bottom) in places.items():
                is_inside = x < right - 0.1 and far_x > left + 0.1 and y < bottom - 0.1 and far_y > top + 0.1
                assert not is_inside, (parent, child, name)


def test_a_line_leads_from_its_parent_to_its_child(svg: str) -> None:
    places = boxes(svg)
    for (parent, child), parts in lines(svg).items():
        ends = [(x, y) for part in (parts[0], parts[-1]) for x, y in (part[:2], part[2:])]
        left, top, right, bottom = places[parent]
        assert any(min(abs(x - left), abs(x - right)) < 0.1 and top < y < bottom for x, y in ends[:2]), (parent, child)
        left, top, _, bottom = places[child]
        assert any(abs(x - left) < 0.1 and top < y < bottom for x, y in ends[2:]), (parent, child)


def test_lines_of_two_parents_share_no_way_except_into_their_child(svg: str) -> None:
    """Otherwise three members would look like a chain."""
    for ((parent, child), parts), ((other, other_child), others) in combinations(lines(svg).items(), 2):
        if parent == other or child == other_child:
            continue
        for x, y, far_x, far_y in parts:
            for left, top, right, bottom in others:
                width, height = min(far_x, right) - max(x, left), min(far_y, bottom) - max(y, top)
                assert not (width > 1 and abs(height) < 0.5), (parent, child, other, other_child)
                assert not (height > 1 and abs(width) < 0.5), (parent, child, other, other_child)


def test_the_map_fits_a_screen_of_1280_pixels(page: Any) -> None:
    page.click("nav >> text=lineage")
    wait_for_address(page, "#lineage")
    frame, shown = page.evaluate("[map.parentElement.clientWidth, map.getBoundingClientRect().width]")
    assert shown <= frame
    assert page.evaluate("map.parentElement.scrollWidth === map.parentElement.clientWidth")


@pytest.fixture
def some_names(prove: bool) -> list[str]:
    """Members to point at: every third, in the order of families, and all in the long run."""
    return list(lineage())[:: 1 if prove else 3]


def check_member(page: Any, name: str, place: list[float]) -> None:
    assert page.evaluate(PLACE) == place, name
    assert re.match(rf"{name} builds on ", page.inner_text("#descent")), name
    assert page.input_value("#kin select") == name
    marked = page.evaluate(MARKED)
    assert marked["self"] == [name]
    assert set(marked["above"]) == ancestors_of(name) and set(marked["below"]) == descendants_of(name), name


def test_the_map_does_not_move_when_members_are_pointed_at_and_clicked(page: Any, some_names: list[str]) -> None:
    page.click("nav >> text=lineage")
    wait_for_address(page, "#lineage")
    for name in some_names:
        x, y = page.evaluate(SHOW, name)
        place = page.evaluate(PLACE)
        page.mouse.move(x, y)
        check_member(page, name, place)
        page.mouse.click(x, y)
        check_member(page, name, place)
        wait_for_address(page, f"#lineage?name={name}")
        page.mouse.move(2, y)  # beside the map: the member stays
        page.evaluate("document.activeElement.blur()")
        check_member(page, name, place)


def test_a_tap_chooses_a_member_on_a_phone(phone: Any, some_names: list[str]) -> None:
    phone.tap("nav >> text=lineage")
    wait_for_address(phone, "#lineage")
    for name in some_names:
        point = phone.evaluate(SHOW, name)
        place = phone.evaluate(PLACE)
        phone.touchscreen.tap(*point)
        check_member(phone, name, place)
        wait_for_address(phone, f"#lineage?name={name}")
        assert phone.is_visible("#descent")
    top = phone.locator("#descent").bounding_box()
    assert top["y"] >= 0 and top["y"] + top["height"] < 400


def test_enter_opens_a_card_and_names_of_families_stay(phone: Any) -> None:
    phone.tap("nav >> text=lineage")
    wait_for_address(phone, "#lineage")
    family = "document.querySelector('.families text').getBoundingClientRect().x"
    before = phone.evaluate(family)
    phone.evaluate("map.parentElement.scrollLeft = 300")
    phone.wait_for_function(f"Math.abs({family} - {before}) < 1")
    phone.focus("#map a[data-name=bert]")
    phone.keyboard.press("Enter")
    wait_for_address(phone, "#member/bert")

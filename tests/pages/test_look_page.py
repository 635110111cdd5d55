"""The page of `kinformer look`: its data are the maps, it loads nothing, and a browser shows each weight."""

import base64
import json
import math
import re
import shutil
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from inspect import unwrap
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import kinformer as kf
from kinformer.lab.attention_weights.head_numbers import HeadNumbers
from kinformer.lab.look import AttentionMaps
from kinformer.models.nearest_neighbour_lm import EXAMPLES as NEAREST

TEXT = "def f(x):\n    return <x>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def data_of(page: Path) -> Any:
    text = page.read_text("utf-8")
    match = re.search(r'<script type="application/json" id="look">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def weights_of(layer: Any) -> numpy.ndarray:
    """The weights of a layer as the page has them: squares of 255ths."""
    codes = numpy.frombuffer(zlib.decompress(base64.b64decode(layer["map"])), numpy.uint8)
    return (codes.reshape(layer["heads"], layer["c"], layer["c"]) / 255.0) ** 2


@pytest.fixture
def seen() -> AttentionMaps:
    torch.manual_seed(0)
    return kf.look(kf.gpt(d=16, depth=2, heads=2), TEXT)


def test_the_page_has_the_weights_and_loads_nothing(seen: AttentionMaps, tmp_path: Path) -> None:
    kf.save_look_page(seen, tmp_path / "look.html", "What <gpt> attends to")
    data, text = data_of(tmp_path / "look.html"), (tmp_path / "look.html").read_text("utf-8")
    assert [layer["name"] for layer in data["layers"]] == ["layer 0", "layer 1"]
    for layer, attention in zip(data["layers"], seen.maps.values(), strict=True):
        assert numpy.abs(weights_of(layer) - attention.numpy()).max() <= 0.004
        assert (layer["cell"], layer["n"], layer["c"]) == (1, len(TEXT), len(TEXT))
    assert "".join(data["tokens"]) == TEXT.replace("\n", "⏎").replace(" ", "␣")
    assert seen.bits is not None and data["tints"][0]["values"][0] is None
    assert data["tints"][0]["values"][1:] == pytest.approx(seen.bits[1:].tolist(), abs=1e-4)
    assert "<title>What &lt;gpt&gt; attends to</title>" in text and "<x>" not in text
    assert not re.search(r"https?:|url\(|@import|\bsrc=|<link|fetch\(", text)


def test_a_long_text_is_drawn_in_blocks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    seen = kf.look(kf.gpt(d=16, depth=1, heads=2, length=300), bytes(range(50)) * 6)
    kf.save_look_page(seen, tmp_path / "look.html")
    (layer,) = data_of(tmp_path / "look.html")["layers"]
    assert (layer["cell"], layer["n"], layer["c"]) == (3, 300, 100)
    (attention,) = seen.maps.values()
    expected = attention.numpy().reshape(2, 100, 3, 100, 3).sum(4).mean(2)
    assert numpy.abs(weights_of(layer) - expected).max() <= 0.004
    assert "A cell is a block of 3 queries and 3 keys." in (tmp_path / "look.html").read_text("utf-8")
    kf.save_look_page(seen, tmp_path / "whole.html", cells=300)
    assert data_of(tmp_path / "whole.html")["layers"][0]["c"] == 300


def test_270_heads_of_60_tokens_make_a_small_page(tmp_path: Path) -> None:
    torch.manual_seed(0)
    maps = {f"body.layers.{n}.layers.0": (3 * torch.randn(9, 60, 60)).softmax(-1) for n in range(30)}
    numbers = {name: HeadNumbers(*torch.rand(4, 9)) for name in maps}
    seen = AttentionMaps([b"word"] * 60, maps, torch.rand(60), {}, numbers)
    kf.save_look_page(seen, tmp_path / "look.html")
    assert (tmp_path / "look.html").stat().st_size < 5_000_000


def test_reasons_groups_and_depths_are_on_the_page(tmp_path: Path) -> None:
    equal = torch.eye(4).repeat(2, 1, 1)
    numbers = HeadNumbers(torch.zeros(2), torch.zeros(2), torch.zeros(2), torch.full((2,), math.nan))
    unseen = {f"body.layers.{n}.layers.0": "Nystrom has <no> map" for n in (1, 2, 3)}
    seen = AttentionMaps(
        [b"a", b"b", b"", b"d"],
        {"body.layers.0.layers.0": equal},
        None,
        unseen,
        {"body.layers.0.layers.0": numbers},
        {"body.steps": torch.tensor([1.0, 2.0, 2.0, 5.0])},
    )
    kf.save_look_page(seen, tmp_path / "look.html")
    text = (tmp_path / "look.html").read_text("utf-8")
    assert "<li>Layers 1-3 have no map: Nystrom has &lt;no&gt; map.</li>" in text
    assert "<b>2 heads</b>, which differ by at most 0.0%: layer 0 heads 0, 1." in text
    assert "The number of steps of a token is 2.50 on average. 1 step: 1 tokens; 2 steps: 2 tokens;" in text
    assert "∅ is a token without text" in text and data_of(tmp_path / "look.html")["tokens"][2] == "∅"


def test_letters_of_several_bytes_are_readable(tmp_path: Path) -> None:
    torch.manual_seed(0)
    seen = kf.look(kf.gpt(d=16, depth=1, heads=2), "é ☃\n")
    kf.save_look_page(seen, tmp_path / "look.html")
    data, text = data_of(tmp_path / "look.html"), (tmp_path / "look.html").read_text("utf-8")
    assert data["tokens"] == [r"\xc3", "é", "␣", r"\xe2", r"\x98", "☃", "⏎"]
    assert data["letters"] == ["", "é", "␣", "", "", "☃", "⏎"]
    assert "\ufffd" not in text and r"<small>\xe2</small></span>" in text and ">☃</span>" in text
    assert r"A letter of several bytes belongs to the token with its last byte; \xc3 is a byte before." in text
    kf.save_look_page(kf.look(kf.gpt(d=16, depth=1, heads=2), "e x"), tmp_path / "plain.html")
    assert data_of(tmp_path / "plain.html")["letters"] is None


def test_heads_without_keys_have_dashes(tmp_path: Path) -> None:
    maps = {"body.layers.0.layers.0": torch.stack([torch.zeros(4, 4), torch.eye(4), torch.zeros(4, 4)])}
    zero, missing = torch.zeros(3), torch.tensor([math.nan, 0.0, math.nan])
    numbers = {"body.layers.0.layers.0": HeadNumbers(missing, missing, missing, zero)}
    seen = AttentionMaps([b"a", b"b", b"c", b"d"], maps, None, {}, numbers)
    kf.save_look_page(seen, tmp_path / "look.html")
    text = (tmp_path / "look.html").read_text("utf-8")
    assert text.count("–</td>") == 2 * 3 and "There is no such group." in text
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)
    (layer,) = data_of(tmp_path / "look.html")["layers"]
    assert layer["distance"] == [None, 0.0, None]


def test_maps_without_numbers_of_heads_have_a_page(tmp_path: Path) -> None:
    maps = {"x": torch.eye(4).repeat(2, 1, 1)}
    kf.save_look_page(AttentionMaps([b"a", b"b", b"c", b"d"], maps, None, {}), tmp_path / "look.html")
    text = (tmp_path / "look.html").read_text("utf-8")
    assert "<b>2 heads</b>" in text and "distance – tokens, entropy – bits, – on the first token" in text
    assert "Numbers of each head</h2>" not in text
    assert data_of(tmp_path / "look.html")["layers"][0]["entropy"] == [None, None]


def test_blocks_are_summed_to_larger_blocks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, text = kf.gpt(d=16, depth=1, heads=2, length=300), bytes(range(47)) * 6  # 282 tokens
    blocks, (whole,) = kf.look(model, text, cells=57), kf.look(model, text).maps.values()
    assert blocks.cell == 5
    kf.save_look_page(blocks, tmp_path / "look.html", cells=20)
    (layer,) = data_of(tmp_path / "look.html")["layers"]
    assert (layer["cell"], layer["n"], layer["c"]) == (15, 282, 19)
    padded = numpy.zeros((2, 285, 285))
    padded[:, :282, :282] = whole.numpy()
    sums = padded.reshape(2, 19, 15, 19, 15).sum((2, 4))
    counts = numpy.array([15] * 18 + [12])  # queries of each block
    assert numpy.abs(weights_of(layer) - sums / counts[:, None]).max() <= 0.004
    kf.save_look_page(blocks, tmp_path / "same.html", cells=57)
    assert data_of(tmp_path / "same.html")["layers"][0]["cell"] == 5


def test_a_model_without_attention_has_a_page(tmp_path: Path) -> None:
    kf.save_look_page(kf.look(kf.lstm(d=8, depth=1), "abc"), tmp_path / "look.html")
    assert "The model has no attention layer, so there is no map." in (tmp_path / "look.html").read_text("utf-8")
    with pytest.raises(TypeError, match="wrong attention maps: got 'runs/x', expected the result of kf.look"):
        unwrap(kf.save_look_page)("runs/x", tmp_path / "other.html")


@pytest.fixture
def page() -> Iterator[Any]:
    """A page of a headless browser; the test that uses it is skipped by name where one of its parts is missing."""
    if find_spec("playwright") is None:
        pytest.skip("the package playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("the program chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        page.set_default_timeout(20_000)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
        yield page
        browser.close()
        assert not problems


def readout(seen: AttentionMaps, layer: str, head: int, query: int, key: int) -> str:
    """The words for a cell, with the weight as the page rounds it."""
    weight = (round(255 * math.sqrt(float(seen.maps[layer][head, query, key]))) / 255) ** 2
    names = [token.decode().replace("\n", "⏎").replace(" ", "␣") for token in seen.tokens]
    shown = "0" if weight == 0 else "below 0.001" if weight < 0.001 else f"{weight:.3f}"
    return f"query {query} “{names[query]}”, key {key} “{names[key]}”: weight {shown}"


def test_a_browser_shows_weights_by_pointer_and_by_keyboard(seen: AttentionMaps, page: Any, tmp_path: Path) -> None:
    kf.save_look_page(seen, tmp_path / "look.html")
    page.goto((tmp_path / "look.html").as_uri())
    page.wait_for_selector("#grid[data-ready]")
    layer, count = list(seen.maps)[1], len(TEXT)
    assert page.locator(".map").count() == 1 + 2 * (1 + 2)  # the mean of all, and of each layer its mean and heads
    small = page.get_by_role("button", name="Zoom layer 1, head 1.").locator("canvas")
    small.scroll_into_view_if_needed()
    box = small.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 2.5 / count, box["y"] + box["height"] * 9.5 / count)
    assert page.locator(".tip").inner_text() == readout(seen, layer, 1, 9, 2)

    # from the map of head 0 to head 1 by an arrow key, and into the dialog by Enter
    page.get_by_role("button", name="Zoom layer 1, head 0.").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#zoom-title").inner_text() == "layer 1, head 1"
    assert page.locator("#zoom-cell").inner_text() == readout(seen, layer, 1, count - 1, 0)
    for key in ("ArrowUp", "ArrowUp", "ArrowRight"):
        page.keyboard.press(key)
    assert page.locator("#zoom-cell").inner_text() == readout(seen, layer, 1, count - 3, 1)
    page.keyboard.press("PageUp")
    assert page.locator("#zoom-title").inner_text() == "layer 1, head 0"
    page.keyboard.press("Escape")
    assert not page.locator("#zoom").is_visible()

    # the text: arrow keys choose a token; the pointer must not lie on another one when the page scrolls
    page.mouse.move(0, 0)
    page.locator("#tokens").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert seen.bits is not None
    assert page.locator("#token").inner_text() == f"token 1 “e”, {float(seen.bits[1]):.2f} bits"


def test_a_browser_averages_heads_and_lists_retrieved_keys(page: Any, tmp_path: Path) -> None:
    model = kf.Example.from_entry(NEAREST[0]).make()
    seen = kf.look(model, bytes(3 * n * n % 11 for n in range(20)))
    kf.save_look_page(seen, tmp_path / "look.html")
    page.goto((tmp_path / "look.html").as_uri())
    page.wait_for_selector("#grid[data-ready]")
    page.locator("#tokens span").nth(7).click()
    keys = seen.retrieved[""]
    assert keys.distances is not None
    rows = page.locator("#retrieved-0 tr")
    assert rows.count() == 5
    first = rows.nth(0).locator("td").all_inner_texts()
    assert first[0] == str(int(keys.places[0, 7, 0])) and first[3] == f"{float(keys.distances[0, 7, 0]):.2f}"
    page.locator(".map").filter(has_text="mean").last.click()
    page.locator("#zoom-map").focus()
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    codes = (255 * list(seen.maps.values())[-1][:, 16, 0].double().sqrt()).round() / 255
    mean = float(codes.square().mean())
    assert page.locator("#zoom-cell").inner_text().endswith(f"weight {mean:.3f}" if mean >= 0.001 else "below 0.001")


def test_a_browser_shows_all_heads_and_16_rows_without_scrolling(page: Any, tmp_path: Path) -> None:
    maps = {"body.blocks.0": torch.full((16, 4, 4), 0.25)}
    numbers = {"body.blocks.0": HeadNumbers(*torch.ones(len(HeadNumbers._fields), 16))}
    widths = {}
    for heads in (4, 12, 16):
        seen = AttentionMaps(
            [b"ab", b"cd", b"ef", b"g"],
            {name: weights[:heads] for name, weights in maps.items()},
            None,
            {},
            {name: HeadNumbers(*(column[:heads] for column in columns)) for name, columns in numbers.items()},
        )
        kf.save_look_page(seen, tmp_path / "page.html")
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector(".map")
        places = page.evaluate(
            "[...document.querySelectorAll('.map')].map((map) => map.getBoundingClientRect().toJSON())"
        )
        widths[heads] = places[0]["width"]
        table = page.evaluate(
            "(({clientHeight, scrollHeight}) => [clientHeight, scrollHeight])($table)".replace(
                "$table", "document.querySelector('.numbers')"
            )
        )
        assert table[0] == table[1], "the table scrolls"
        if heads <= 12:
            box = page.evaluate("document.querySelector('#grid').getBoundingClientRect().right")
            assert max(place["right"] for place in places) <= box
    assert widths[4] > 190 and widths[12] > 68
    borders = page.evaluate("getComputedStyle(document.querySelector('#tokens span')).boxShadow")
    assert borders != "none"  # tokens of several letters are set apart


def test_a_longer_table_says_that_it_scrolls(tmp_path: Path) -> None:
    for heads in (16, 17):
        numbers = {"body": HeadNumbers(*torch.ones(len(HeadNumbers._fields), heads))}
        seen = AttentionMaps([b"a", b"b"], {"body": torch.full((heads, 2, 2), 0.5)}, None, {}, numbers)
        kf.save_look_page(seen, tmp_path / "page.html")
        assert ("The table has 17 rows, and it scrolls." in (tmp_path / "page.html").read_text("utf-8")) == (heads > 16)

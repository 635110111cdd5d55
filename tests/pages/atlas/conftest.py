"""A written atlas, and its page in a browser, for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinformer.cli.support.atlas_content import atlas_content
from kinformer.lab.claims.support.claim_report import ClaimReport, write_report
from kinformer.pages.atlas import member_card
from kinformer.pages.atlas.member_card import draw_member
from kinformer.pages.atlas.write_atlas import PAGE, write_atlas
from tests.pages.atlas.browser import open_browser

REPORT = ClaimReport(
    "bigbird_paths", "Random blocks shorten the paths", "Zaheer et al., 2020", "holds", (), {}, 1.0, None, "a test"
)
DRAWN = {"gpt", "longformer", "transformer_xl", "reformer", "lstm", "bloom", "linformer"}
NOTHING = '<div class="drawing"></div>'


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("atlas")
    (root / "claims").mkdir()
    write_report(REPORT, root / "claims")
    (root / "claims" / "blockbert_memory.json").write_text("no report\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:  # the drawings of all members take 20 s; tests/cli has them too
        patch.setattr(member_card, "draw_member", lambda name: draw_member(name) if name in DRAWN else NOTHING)
        write_atlas(atlas_content(root / "claims"), root / "site")
    return root / "site"


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Any, folder: Path) -> Iterator[Any]:
    """The atlas on a desktop, opened from its file; no error and no request to elsewhere may happen."""
    yield from open_page(browser, folder, viewport={"width": 1280, "height": 900})


@pytest.fixture(scope="module")
def shared_page(browser: Any, folder: Path) -> Iterator[Any]:
    """One page for the tests of a file that only fill its search box: opening a page takes most of their time."""
    yield from open_page(browser, folder, viewport={"width": 1280, "height": 900})


@pytest.fixture
def phone(browser: Any, folder: Path) -> Iterator[Any]:
    """The atlas on a phone with touch."""
    yield from open_page(browser, folder, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)


def open_page(browser: Any, folder: Path, **options: Any) -> Iterator[Any]:
    context = browser.new_context(**options)
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
    page.goto(f"{(folder / PAGE).as_uri()}")
    yield page
    context.close()
    assert not problems

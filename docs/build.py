"""Build the documentation: pages of Markdown in build/docs, rendered into the folder site.

`python -m docs.build` does both. The pages are the Markdown files of the project, and pages that `kinformer.pages.site`
makes from docstrings. Links between files of the project become links between pages. Only the last step needs Sphinx.

    python -m docs.build --pages      # the Markdown only
    python -m docs.build --glossary   # docs/glossary.md again, after a change of kinformer/pages/glossary.toml
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from posixpath import normpath

from kinformer.cli.__main__ import COMMANDS
from kinformer.cli.support.catalogue import list_entries, list_papers, with_member_facts
from kinformer.cli.support.topics import TOPICS
from kinformer.pages.glossary import glossary_page
from kinformer.pages.site.idea_pages import PAGE as IDEAS
from kinformer.pages.site.idea_pages import page_of_idea
from kinformer.pages.site.kind_pages import (
    CLASSES,
    FILES,
    FUNCTIONS,
    PARTS,
    page_of_kind,
    place_of_file,
    places_of_names,
)
from kinformer.pages.site.markdown import FENCE, SitePlace, anchors, pieces_of, relative, with_links
from kinformer.pages.site.member_pages import PAGE as MEMBERS
from kinformer.pages.site.site_pages import GLOSSARY, SiteFacts, site_pages

ROOT = Path(__file__).resolve().parents[1]
SOURCES, SITE = ROOT / "build" / "docs", ROOT / "site"
INDEX = "index.md"
PROJECT = {  # Markdown files outside docs/ that are pages too
    "README.md": "overview.md",
    "examples/README.md": "notebooks.md",
    "DESIGN.md": "design.md",
    "CONTRIBUTING.md": "contributing.md",
    "bench/README.md": "measurements.md",
    "CHANGELOG.md": "changelog.md",
}
REFERENCE = {  # the generated pages, in the order of the navigation
    "Python": (FUNCTIONS, CLASSES, MEMBERS),
    "Parts": tuple(page_of_kind(kind) for kind in PARTS),
    "Commands, data and checks": (
        "reference/command_line.md",
        *(page_of_kind(kind) for kind in FILES),
        "reference/topics.md",
        "reference/papers.md",
    ),
}
TARGET = re.compile(r"(?P<before>\]\()(?!https?://|mailto:)(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?(?=\))")


def facts() -> SiteFacts:
    """Return the facts that the command line collects about commands, members, papers and topics."""
    members = with_member_facts(list_entries(["members"]))
    return SiteFacts(COMMANDS.commands, members, list_papers(), TOPICS)  # type: ignore[attr-defined]


def written_pages() -> dict[str, str]:
    """Return the path of the page of each Markdown file of the project, by the path of the file."""
    guides = {f"docs/{path}": path for path in _below(ROOT / "docs", "*.md")}
    return PROJECT | guides | {"docs/README.md": INDEX}


def _below(folder: Path, pattern: str) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob(pattern))


def all_pages() -> tuple[dict[str, str], dict[str, str]]:
    """Return every page by its path, and the path in the site of each other file that a page links to."""
    generated, pages_of = site_pages(facts()), written_pages()
    names, files = places_of_names(), {}
    texts = {}
    for source, page in pages_of.items():
        text = (ROOT / source).read_text("utf-8")
        text, linked = _with_page_links(text, source, page, pages_of)
        files |= linked
        texts[page] = text
    texts |= generated  # the glossary with links in place of the glossary without
    texts[INDEX] += _reference_section(texts)
    return {
        page: text if page == "changelog.md" else with_links(text, page, names) for page, text in texts.items()
    }, files


def _with_page_links(text: str, source: str, page: str, pages_of: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return a file's text with links to pages in place of links to files, and the other files that it links to."""
    files = {}

    def replace(link: re.Match[str]) -> str:
        path, name = link["path"], (link["anchor"] or "").removeprefix("#")
        if not path:
            return link[0]
        file = normpath(str(PurePosixPath(source).parent / path))
        if file in pages_of:
            place = SitePlace(pages_of[file], name)
        elif (part := _place_of_source(file)) is not None:
            place = part
        else:
            place = SitePlace(file.removeprefix("docs/") if file.startswith("docs/") else f"files/{file}")
            files[file] = place.page
        return f"{link['before']}{relative(place, page)}"

    pieces = [piece if is_code else TARGET.sub(replace, piece) for piece, is_code in pieces_of(text)]
    return "".join(pieces), files


def _place_of_source(file: str) -> SitePlace | None:
    """The entry of a Python file of the library, or the page of an idea; None for other files."""
    if file.startswith("kinformer/pages/ideas/") and file.endswith(".md"):
        return SitePlace(page_of_idea(PurePosixPath(file).stem))
    if not (file.startswith("kinformer/") and file.endswith(".py")):
        return None
    kind, stem = PurePosixPath(file).parent.name, PurePosixPath(file).stem
    return place_of_file(f"{kind}/{stem}") if kind in (*PARTS, *FILES, "members") else None


def _reference_section(texts: Mapping[str, str]) -> str:
    """The part of the front page that links to the generated pages."""
    blocks = []
    for title, pages in _navigation_of_generated(texts).items():
        blocks.append(f"\n## {title}\n")
        blocks.append("\n".join(f"- [{_title(texts[page])}]({page})" for page in pages) + "\n")
    return "\n".join(blocks)


def _navigation_of_generated(texts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    ideas = {"Ideas": (IDEAS,)} if IDEAS in texts else {}
    return ideas | {f"Reference: {title}": pages for title, pages in REFERENCE.items()}


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def navigation(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the pages of each section of the front page, in order.

    texts: every page by its path.
    """
    sections: dict[str, list[str]] = {}
    title = ""
    for line in texts[INDEX].splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ")
        elif match := re.match(r"- \[[^\]]+\]\(([\w/]+\.md)\)", line):
            sections.setdefault(title, []).append(match[1])
    return sections


def with_navigation(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the pages with the lists that Sphinx makes its navigation of; no other reader needs them.

    texts: every page by its path.
    """
    result = dict(texts)
    blocks = [_toctree(pages, title) for title, pages in navigation(texts).items()]
    result[INDEX] += "\n" + "\n\n".join(blocks) + "\n"
    for parent, folder in ((MEMBERS, "reference/members/"), ("reference/command_line.md", "reference/commands/")):
        result[parent] += "\n" + _toctree([page for page in texts if page.startswith(folder)], home=parent) + "\n"
    if IDEAS in texts:
        result[IDEAS] += "\n" + _toctree([page for page in texts if page.startswith("ideas/")], home=IDEAS) + "\n"
    return result


def _toctree(pages: list[str], caption: str = "", home: str = INDEX) -> str:
    entries = [relative(SitePlace(page), home).removesuffix(".md") for page in pages]
    entries = [f"Overview <{entry}>" if entry == "overview" else entry for entry in entries]
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["```{toctree}", *options, "", *entries, "```"])


def broken_links(texts: Mapping[str, str], files: Mapping[str, str]) -> list[str]:
    """Return every link of a page that leads to no page, no file or no heading.

    texts: every page by its path.
    files: the paths of the other files in the site, by their paths in the project.
    """
    headings = {page: set(anchors(text)) for page, text in texts.items()}
    broken = []
    for page, text in texts.items():
        plain = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
        for link in TARGET.finditer(plain):
            name = (link["anchor"] or "").removeprefix("#")
            target = normpath(str(PurePosixPath(page).parent / link["path"])) if link["path"] else page
            is_page = target in texts and (not name or name in headings[target])
            if not (is_page or target in files.values()):
                broken.append(f"{page}: {link['path']}{link['anchor'] or ''}")
    return broken


def write_sources(folder: Path) -> None:
    """Write every page of Markdown, and the pictures and files that pages link to, into a folder.

    folder: the folder; its old content is removed.
    """
    texts, files = all_pages()
    if problems := broken_links(texts, files):
        sys.exit("broken links:\n" + "\n".join(problems))
    shutil.rmtree(folder, ignore_errors=True)
    for page, text in with_navigation(texts).items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(text, encoding="utf-8")
    for file, page in files.items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, folder / page)


def main() -> None:
    """Write the pages, and render them unless an option says otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", action="store_true", help="write the pages of Markdown only")
    parser.add_argument("--glossary", action="store_true", help="write docs/glossary.md only")
    options = parser.parse_args()
    if options.glossary:
        (ROOT / "docs" / GLOSSARY).write_text(glossary_page(), encoding="utf-8")
        return
    write_sources(SOURCES)
    if not options.pages:
        words = [
            "-b",
            "html",
            "-W",
            "--keep-going",
            "-q",
            "-j",
            "auto",
            "-c",
            str(ROOT / "docs"),
            str(SOURCES),
            str(SITE),
        ]
        sys.exit(subprocess.call([sys.executable, "-m", "sphinx", *words]))


if __name__ == "__main__":
    main()

"""The HTML report of a comparison of models: one file without links to others, for any screen."""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from kinformer.checkpoint.atomic_files import write
from kinformer.pages.comparison import drawings
from kinformer.pages.comparison_results import MemberResult, Results
from kinformer.pages.plots import colour

# HTML does not allow control characters
CONTROL = {code: "\ufffd" for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160))}
CONTROL[ord("\r")] = ""  # a line may end with a carriage return and a newline
STYLE = """
:root { color-scheme: light dark; --back: #fff; --ink: #1c2024; --soft: #5b6570; --line: #d9dee3; --box: #f5f7f9 }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171a; --ink: #e6e9ec; --soft: #9aa5b0; --line: #343a41; --box: #1d2125 }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem clamp(.8rem, 3vw, 2rem); max-width: 82rem; background: var(--back);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere } h2 { font-size: 1.15rem; margin-top: 2rem }
p { max-width: 62rem; overflow-wrap: anywhere } .soft, figcaption { color: var(--soft); font-size: .9rem }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0; list-style: none }
.dot { display: inline-block; width: .75em; height: .75em; border-radius: 50%; margin-right: .45em }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .4rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--back);
  white-space: normal; min-width: 11rem; max-width: 22rem; overflow-wrap: break-word }
.name { display: flex } .name .dot { flex: none; margin-top: .4em } .word { white-space: nowrap }
@media (max-width: 40rem) { th, td { padding: .4rem .6rem } th:first-child, td:first-child { min-width: 9.5rem } }
tr:last-child td { border-bottom: 0 } thead th { color: var(--soft); font-weight: 600 }
.drawings { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)) }
figure { margin: 0; padding: .8rem; background: var(--box); border-radius: .5rem; min-width: 0 }
figure svg { width: 100%; height: auto; display: block }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--box); padding: .8rem; border-radius: .5rem;
  font-size: .85rem } pre .soft { font-size: inherit }
"""


def report(results: Results, folder: Path) -> None:
    """Write report.html: the table of results, its notes, the drawings, and a sample text of each model.

    results: the results of the comparison.
    folder: the folder of the comparison; the report is `folder`/report.html.
    """
    names = ", ".join(row.name for row in results.members)
    title = f"{names}: {results.settings['budget']} of training each"
    body = "".join((*_table(results), *_drawings(results), *_samples(results), *_settings(results)))
    page = (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n{body}</body>\n</html>\n"
    )
    write(folder / "report.html", page.translate(CONTROL).encode())


def _table(results: Results) -> Iterator[str]:
    heads, rows = results.cells()
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f'<th scope="col">{escape(head)}</th>' for head in heads) + "</tr></thead><tbody>\n"
    for place, (first, *cells_after) in enumerate(rows):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in cells_after)
        yield f'<tr><td><div class="name">{_dot(place)}<span>{_breakable(first)}</span></div></td>{cells}</tr>\n'
    for name, value in results.levels.items():
        yield f"<tr><td>{escape(name)}</td><td></td><td>{value:.3f}</td>{'<td></td>' * (len(heads) - 3)}</tr>\n"
    yield "</tbody></table></div>\n"
    yield from _grid(results)
    yield from (f"<p>{_keep_options_whole(escape(note))}</p>\n" for note in results.notes() if note)


def _grid(results: Results) -> Iterator[str]:
    """Yield the table with the validation metric of each member at each point of the grid, if there is one."""
    heads, rows = results.grid_cells()
    if rows:
        measure = next(iter(results.members[0].measures))
        yield f"<p>{escape(measure)} on validation data at each point of the grid; * marks the best:</p>\n"
        yield '<div class="scroll"><table><thead><tr>'
        yield "".join(f'<th scope="col">{_breakable(head)}</th>' for head in heads) + "</tr></thead><tbody>\n"
        yield from ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>\n" for cells in rows)
        yield "</tbody></table></div>\n"


def _breakable(name: str) -> str:
    """Escape a name and allow line breaks only after `_`, `,` and `(`."""
    return re.sub(r"([_,(])", r"\1<wbr>", escape(name))


def _keep_options_whole(words: str) -> str:
    """Keep options such as `--seeds` on one line; browsers break lines at hyphens."""
    return re.sub(r"--\w+", r'<span class="word">\g<0></span>', words)


def _dot(place: int) -> str:
    return f'<span class="dot" style="background:{colour(place)}"></span>'


def _drawings(results: Results) -> Iterator[str]:
    yield '<h2>Curves</h2>\n<ul class="key">'
    yield "".join(f"<li>{_dot(place)}{escape(row.name)}</li>" for place, row in enumerate(results.members))
    yield '</ul>\n<div class="drawings">\n'
    for number, (description, svg) in enumerate(drawings(results)):
        # ids must be unique in the page, so each drawing gets its own prefix
        unique_svg = re.sub(r'( id="|href="#|url\(#)', rf"\1d{number}-", svg)
        alternative = unique_svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)
        yield f"<figure>{alternative}<figcaption>{escape(description)}</figcaption></figure>\n"
    yield "</div>\n"


def _samples(results: Results) -> Iterator[str]:
    sampled = [(place, row) for place, row in enumerate(results.members) if row.shown]
    if sampled:
        yield "<h2>Samples</h2>\n"
    for place, row in sampled:
        yield f"<p>{_dot(place)}<b>{escape(row.name)}</b> {escape(row.shown)}</p>\n<pre>{_text(row)}</pre>\n"


def _text(row: MemberResult) -> str:
    prompt = f'<span class="soft">{escape(row.prompt)}</span>'
    if row.answer is not None:
        return prompt
    return f"{prompt}{'' if row.is_continuation else chr(10)}{escape(row.sample)}"


def _settings(results: Results) -> Iterator[str]:
    settings = {**results.settings, **results.settings["versions"], "versions": None}
    words = ", ".join(f"{name} {value}" for name, value in settings.items() if value not in (None, []))
    yield f'<h2>Settings</h2>\n<p class="soft">{escape(words)}</p>\n'

"""The HTML report of a comparison of models: one file without links to others, for any screen."""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from kinformer.checkpoint.atomic_files import write
from kinformer.pages.comparison import drawings
from kinformer.pages.comparison_results import MemberResult, Results
from kinformer.pages.html_page import html_page
from kinformer.pages.plots import colour, svg_figure


def report(results: Results, folder: Path) -> None:
    """Write report.html: the table of results, its notes, the drawings, and a sample text of each model.

    results: the results of the comparison.
    folder: the folder of the comparison; the report is `folder`/report.html.
    """
    names = ", ".join(row.name for row in results.members)
    title = f"{names}: {results.settings['budget']} of training each"
    body = "".join((*_table(results), *_drawings(results), *_samples(results), *_settings(results)))
    write(folder / "report.html", html_page(title, body))


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
    for number, (description, drawing) in enumerate(drawings(results)):
        figure = svg_figure(drawing, description, f"d{number}")
        yield f"<figure>{figure}<figcaption>{escape(description)}</figcaption></figure>\n"
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

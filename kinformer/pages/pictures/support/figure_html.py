"""Figures of web pages: pictures and diagrams as HTML with captions and legends."""

from collections.abc import Iterator
from html import escape

from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.diagram_svg import diagram_svg, kind_colour
from kinformer.pages.pictures.support.picture_panels import Panel, Picture, kinds_in
from kinformer.pages.pictures.support.svg_picture import labelled_panel_svg

STYLE = """
figure.drawn > div { display: flex; flex-wrap: wrap; gap: 1rem; overflow-x: auto }
figure.drawn > div > svg { flex: none; max-width: none !important } figure.drawn .panel { flex: 1 1 9rem;
  font-size: .8rem }
figure.drawn .panel svg { width: 100%; height: auto; display: block }
"""


def figure_html(drawn: Picture | Diagram) -> str:
    """Return a picture or a diagram as one line of HTML, for pages that have the rules of `STYLE`.

    drawn: the picture or diagram.
    """
    if isinstance(drawn, Diagram):
        body, kinds, axes = diagram_svg(drawn), list(range(1, len(drawn.kinds) + 1)), ""
    else:
        body = "".join(_panel(drawn, panel) for panel in drawn.panels)
        kinds = kinds_in(drawn) if drawn.kinds else []
        axes = f" Each row is a {drawn.line}, each column a {drawn.column}."
    sentences = [drawn.caption[:1].upper() + drawn.caption[1:], *([drawn.note] if drawn.note else [])]
    text = " ".join(f"{sentence.rstrip('.')}." for sentence in sentences) + axes
    caption = " ".join(f"{escape(text)} {' '.join(_legend(drawn, kinds))}".split())
    return f'<figure class="drawn"><div>{body}</div><figcaption>{caption}</figcaption></figure>'


def _panel(picture: Picture, panel: Panel) -> str:
    label = f"{picture.caption} {panel.title}".strip()
    title = f"<div>{escape(panel.title)}</div>" if panel.title else ""
    width = min(17, 1.2 * panel.kind.shape[1] + 2)  # rem; few cells are drawn small
    svg = labelled_panel_svg(panel, label, len(picture.kinds))
    return f'<div class="panel" style="max-width:{width:g}rem">{title}{svg}</div>'


def _legend(drawn: Picture | Diagram, kinds: list[int]) -> Iterator[str]:
    for kind in kinds:
        yield f'<span style="color:{kind_colour(kind)}">■</span> {escape(drawn.kinds[kind - 1])}'

"""Figures of the documentation: pictures and diagrams as SVG inside Markdown."""

from html import escape

from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.diagram_svg import diagram_svg, kind_colour
from kinformer.pages.pictures.support.picture_panels import Picture, kinds_in
from kinformer.pages.pictures.support.svg_picture import panel_svg


def figure(drawn: Picture | Diagram) -> str:
    """Return a picture or a diagram as one block of HTML, with its caption and legend.

    drawn: the picture or diagram.
    """
    if isinstance(drawn, Diagram):
        svg, kinds, css = diagram_svg(drawn), list(range(1, len(drawn.kinds) + 1)), "diagram"
    else:
        labels = [f"{drawn.caption} {panel.title}".strip() for panel in drawn.panels]
        svg = "".join(
            panel_svg(panel, label, len(drawn.kinds)) for panel, label in zip(drawn.panels, labels, strict=True)
        )
        kinds, css = kinds_in(drawn) if drawn.kinds else [], "pattern"
        titles = [panel.title for panel in drawn.panels if panel.title]
    legend = "".join(
        f' <span style="color:{kind_colour(kind)}">■</span> {escape(drawn.kinds[kind - 1])}' for kind in kinds
    )
    titles = [] if isinstance(drawn, Diagram) else titles
    from_left = f" From left to right: {'; '.join(titles)}." if len(titles) > 1 else ""
    caption = drawn.caption[:1].upper() + drawn.caption[1:].rstrip(".") + "."
    note = f" {drawn.note.rstrip('.')}." if drawn.note else ""
    text = " ".join(f"{escape(caption + note + from_left)}{legend}".split())  # an empty line would end the block
    return f'<figure class="{css}">{svg}<figcaption>{text}</figcaption></figure>'

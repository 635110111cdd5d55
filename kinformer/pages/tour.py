"""The page of the tour: drawings of mechanisms, three trained models, times, attention maps and texts."""

import base64
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy
import torch
from matplotlib import image
from matplotlib.colors import to_rgb
from torch import Tensor

from kinformer.checkpoint.atomic_files import write
from kinformer.core.discover import modules
from kinformer.core.example import Example
from kinformer.core.pattern import And, Or, Pattern, pair_mask
from kinformer.core.pattern_parser import parse
from kinformer.lab.attention_weights.token_letters import token_letters
from kinformer.lab.look import AttentionMaps
from kinformer.lab.plot import Plot, PlotLine
from kinformer.lab.tour.attention_times import ATTENTION, AttentionTime
from kinformer.lab.tour.tour import TourResults
from kinformer.pages.drawings import DRAWINGS, SIZE, Drawing
from kinformer.pages.html_page import html_page
from kinformer.pages.pictures.support.all_pictures import pictures
from kinformer.pages.pictures.support.attention_calls import place_of
from kinformer.pages.pictures.support.picture_panels import Panel, masks_grid
from kinformer.pages.pictures.support.svg_picture import panel_svg
from kinformer.pages.plots import COLOURS, colour, svg, svg_figure

PAGE = "index.html"
TITLE = "kinformer: a tour"
SURPRISING = 8.0  # bits of the darkest token: a guess among 256 bytes
STYLE = """
.cards { display: grid; gap: .7rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 10.5rem), 1fr)) }
.cards figure { display: flex; flex-direction: column; gap: .5rem }
.cards svg { max-width: 15rem; margin: 0 auto } .cards b { color: var(--ink) }
code { font-family: ui-monospace, monospace; font-size: .85em; overflow-wrap: anywhere }
.maps { display: grid; gap: .5rem; grid-template-columns: repeat(4, minmax(0, 1fr)); max-width: 62rem }
.maps figure { padding: .35rem } .maps img { width: 100%; image-rendering: pixelated; display: block;
  border: 1px solid var(--line) } .maps figcaption { font-size: .75rem }
.text { font-family: ui-monospace, monospace; white-space: pre-wrap; line-height: 1.9 }
.text span { padding: .15em 0 }
.lead { font-size: 1.1rem } .plot { max-width: 44rem }
"""


def write_tour(results: TourResults, folder: Path) -> Path:
    """Write index.html, the page of a tour, and return its path.

    results: the results of the tour.
    folder: the folder of the tour.
    """
    body = "".join(
        (
            *_lead(results),
            *_drawn(),
            *_trained(results),
            *_timed(results.times),
            *_attended(results),
            *_written(results),
            *_next(folder, results),
        )
    )
    write(folder / PAGE, html_page(TITLE, body, STYLE))
    return folder / PAGE


def is_tour(page: Path) -> bool:
    """Return whether an HTML file is the page of a tour.

    page: the file.
    """
    return f"<title>{TITLE}</title>".encode() in page.read_bytes()


def verdicts(results: TourResults) -> list[str]:
    """Return a sentence for each model that says whether it is ahead of gzip -9 on the same bytes.

    results: the results of the tour.
    """
    gzip = next((value for name, value in results.levels.items() if name.startswith("gzip")), None)
    if gzip is None:
        return []
    sentences = []
    for model in results.models:
        value = model.history.best.valid
        place = "ahead of" if value < gzip else "behind"
        sentences.append(f"{model.name} needs {value:.2f} bits per byte and is {place} gzip -9 ({gzip:.2f})")
    return sentences


def _lead(results: TourResults) -> Iterator[str]:
    yield (
        f'<p class="lead">This page shows what kinformer did on this machine in {results.seconds / 60:.1f} minutes: '
        f"{len(DRAWINGS)} mechanisms drawn, {len(results.models)} models trained, attention timed, and a look inside a "
        "trained model.</p>\n"
    )
    yield f'<p class="soft">{escape(results.machine)}</p>\n'


def _drawn() -> Iterator[str]:
    yield "<h2>Twelve ways to choose what a token reads</h2>\n"
    yield (
        "<p>A row is a query: a token that reads. A column is a key: a token that is read. A coloured cell means that "
        f"the query reads this key. Each drawing has {SIZE} tokens.</p>\n"
        '<div class="cards">\n'
    )
    for drawing in DRAWINGS:
        panel, kinds = _panel(drawing)
        picture = panel_svg(panel, f"{drawing.title}: {drawing.sentence}", kinds)
        spelled = f"<br><code>{escape(drawing.pattern)}</code>" if drawing.pattern else ""
        yield (
            f"<figure>{picture}<figcaption><b>{escape(drawing.title)}</b>. {escape(drawing.sentence)}{spelled}<br>"
            f"<code>kinformer show {escape(drawing.shown)}</code></figcaption></figure>\n"
        )
    yield "</div>\n"


def _panel(drawing: Drawing) -> tuple[Panel, int]:
    """Return the panel of a drawing and its number of kinds of cells."""
    if drawing.pattern:
        pattern, pos = parse(drawing.pattern), torch.arange(SIZE)[None, None]
        masks = [pair_mask(term, pos, pos, range(1)).expand(1, 1, SIZE, SIZE)[0, 0] for term in _terms(pattern)]
        return masks_grid(masks), len(masks)
    example = Example.from_entry(modules(drawing.kind)[drawing.shown].EXAMPLES[0]).make()
    picture = next(pictures(example, SIZE))
    return picture.panels[0], len(picture.kinds)


def _terms(pattern: Pattern) -> list[Pattern]:
    """Return patterns whose union is a pattern: one for each side of `|`, also inside of `&`."""
    if isinstance(pattern, Or):
        return [*_terms(pattern.left), *_terms(pattern.right)]
    if isinstance(pattern, And):
        return [left & right for left in _terms(pattern.left) for right in _terms(pattern.right)]
    return [pattern]


def _trained(results: TourResults) -> Iterator[str]:
    yield "<h2>Three models, equal training time</h2>\n"
    plan, measured = results.plan, re.sub(r"\bvalid$", "the validation data", results.measured)
    yield (
        f"<p>Each model trained for {plan.training:.0f} seconds on {escape(results.data)}, in turns. A token is a "
        "byte. Bits per byte say how well a model predicts text that it has not seen: lower is better. "
        f"{escape('. '.join(verdicts(results)))}. All were measured on {escape(measured)}. gzip and xz start from "
        "nothing on these bytes, while a model has read the training data and keeps its weights. One short run of one "
        "seed shows that everything works. It does not rank the models.</p>\n"
    )
    yield '<ul class="key">'
    yield "".join(f"<li>{_dot(place)}{escape(model.name)}</li>" for place, model in enumerate(results.models))
    yield _plot(_curves(results), "validation bits per byte by training time")
    heads = ("", "bits per byte", "parameters", "tokens/s in training", "ms per generated token")
    rows = [
        (
            f"{_dot(place)}{escape(model.name)}",
            f"{model.history.best.valid:.3f}",
            f"{model.parameters:,}",
            f"{model.history.speed:,.0f}",
            "" if model.milliseconds is None else f"{model.milliseconds:.1f}",
        )
        for place, model in enumerate(results.models)
    ]
    rows += [(escape(name), f"{value:.3f}", "", "", "") for name, value in results.levels.items()]
    yield from _table(heads, rows)
    contenders = "; ".join(
        f"{model.contender.member}: {model.contender.batch} rows of {model.contender.length} tokens, learning rate "
        f"{model.contender.lr:g}"
        for model in results.models
    )
    yield f'<p class="soft">{escape(contenders)}.</p>\n'


def _curves(results: TourResults) -> Plot:
    lines = [
        PlotLine(
            [60 * point.minutes for point in model.history.points],
            [point.valid for point in model.history.points],
            "",
            "o-",
            colour(place),
        )
        for place, model in enumerate(results.models)
    ]
    levels = [(value, f"{name}: {value:.2f}") for name, value in results.levels.items()]
    return Plot(
        "",
        "seconds of training",
        "validation bits per byte",
        lines,
        levels=levels,
        xlim=(0, 1.05 * results.plan.training),
    )


def _timed(times: Sequence[AttentionTime]) -> Iterator[str]:
    yield "<h2>What a long row costs</h2>\n"
    longest = max(time.length for time in times)
    last = {time.name: time.milliseconds for time in times if time.length == longest}
    dense, *others = ATTENTION
    faster = " and ".join(f"{name} is {last[dense] / last[name]:.1f} times as fast" for name in others)
    yield (
        "<p>Time of one forward and backward pass of causal attention: one row, 4 heads of width 64. Dense attention "
        "compares every pair of tokens, so twice the length takes four times the time. A window and linear attention "
        f"take twice the time. At {longest:,} tokens, {escape(faster)} as dense attention.</p>\n"
    )
    lengths = sorted({time.length for time in times})
    lines = [
        PlotLine(
            [time.length for time in times if time.name == name],
            [time.milliseconds for time in times if time.name == name],
            "",
            "o-",
            colour(place),
        )
        for place, name in enumerate(ATTENTION)
    ]
    plot = Plot("", "tokens in the row", "milliseconds", lines, log="xy", ticks=lengths)
    yield '<ul class="key">' + "".join(f"<li>{_dot(place)}{escape(name)}</li>" for place, name in enumerate(ATTENTION))
    yield _plot(plot, "milliseconds by tokens in the row")
    by_place = {(time.name, time.length): time.milliseconds for time in times}
    rows = [
        (f"{_dot(place)}{escape(name)}", *(f"{by_place[name, length]:,.1f}" for length in lengths))
        for place, name in enumerate(ATTENTION)
    ]
    yield from _table(("milliseconds", *(f"{length:,}" for length in lengths)), rows)


def _attended(results: TourResults) -> Iterator[str]:
    maps, name = results.maps, results.models[0].name
    yield f"<h2>What the trained {escape(name)} attends to</h2>\n"
    yield (
        "<p>The stronger the colour of a character, the less the model expected it: the colour is the loss of the "
        "character in bits, given all characters before it. The last word repeats a word of the line above.</p>\n"
    )
    yield f'<p class="text">{_shaded(maps)}</p>\n'
    yield (
        "<p>Each map below is one head of one layer. A row is the character that reads, a column the character that is "
        "read. Stronger colour means more attention, relative to the row. Heads that "
        "look at one place before the character draw a line beside the "
        "diagonal. Heads that look for a repeated word draw short lines further away.</p>\n"
        '<div class="maps">\n'
    )
    for layer, attention in maps.maps.items():
        for head, weights in enumerate(attention):
            label = f"{place_of(layer)}, head {head}"
            yield f'<figure><img alt="attention map: {label}" src="{_png(weights)}">'
            yield f"<figcaption>{label}</figcaption></figure>\n"
    yield "</div>\n<p>In Python: <code>kf.look(model, text)</code>.</p>\n"


def _shaded(maps: AttentionMaps) -> str:
    """Return the text with a background by the loss of each token."""
    assert maps.bits is not None
    red, green, blue = (round(255 * part) for part in to_rgb(COLOURS[1]))
    spans = []
    for text, bits in zip(token_letters(maps.tokens), maps.bits.tolist(), strict=True):
        letter = escape(str(text))
        if bits != bits:  # the first token has no loss
            spans.append(letter)
            continue
        alpha = min(max(bits, 0.0) / SURPRISING, 1.0) * 0.85
        shown, shade = "&crarr;\n" if letter == "\n" else letter, f"rgba({red},{green},{blue},{alpha:.2f})"
        spans.append(f'<span style="background:{shade}" title="{bits:.1f} bits">{shown}</span>')
    return "".join(spans)


def _png(weights: Tensor) -> str:
    """Return a map as a transparent image, one pixel for each pair, as the address of an HTML image."""
    alpha = (weights / weights.amax(-1, keepdim=True).clamp_min(1e-9)).numpy()
    pixels = numpy.empty((*alpha.shape, 4), dtype=numpy.float32)
    pixels[..., :3], pixels[..., 3] = to_rgb(COLOURS[0]), alpha
    file = io.BytesIO()
    image.imsave(file, pixels, format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _written(results: TourResults) -> Iterator[str]:
    yield "<h2>What the models write</h2>\n"
    yield "<p>Each model continues the beginning of the validation text (grey).</p>\n"
    for place, model in enumerate(results.models):
        yield (
            f"<p>{_dot(place)}<b>{escape(model.name)}</b></p>\n"
            f'<pre><span class="soft">{escape(model.prompt)}</span>{escape(model.sample)}</pre>\n'
        )


def _next(folder: Path, results: TourResults) -> Iterator[str]:
    trained = shlex.quote(str(folder / results.models[0].name))
    commands = (
        (f'kinformer generate {trained} --prompt "def main("', "let the trained model write"),
        ("kinformer list members", "see all named models"),
        ("kinformer show longformer", "read about one of them, with its pattern"),
        ("kinformer show 'Causal() & (Band(8) | Strided(8))'", "draw any pattern"),
        (
            "kinformer compare gpt longformer_lm --data text=PATH --minutes 3 --out runs/two",
            "compare two on a text of your own",
        ),
        ("kinformer claim bigbird_paths", "measure a claim of a paper"),
    )
    yield "<h2>What to do next</h2>\n<ul>\n"
    for command, purpose in commands:
        yield f"<li>{purpose}: <code>{escape(command)}</code></li>\n"
    yield "</ul>\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table of cells that are already HTML."""
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f'<th scope="col">{escape(head)}</th>' for head in heads) + "</tr></thead><tbody>\n"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n"
    yield "</tbody></table></div>\n"


def _plot(plot: Plot, label: str) -> str:
    """Return a plot below the key of its lines, with a description, and with ids that are unique in the page."""
    figure = svg_figure(svg(plot), label, re.sub("[^a-z]", "", label))
    return f'</ul>\n<figure class="plot">{figure}</figure>\n'


def _dot(place: int) -> str:
    return f'<span class="dot" style="background:{colour(place)}"></span>'

"""The page of `kinformer look`: a text with the loss of each token, and the attention of each head."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

import torch
from torch import Tensor

from kinformer.checkpoint.atomic_files import write
from kinformer.core.checks import check_at_least
from kinformer.core.quote import quote
from kinformer.lab.attention_weights.head_groups import MOST, HeadGroup, head_groups
from kinformer.lab.attention_weights.head_numbers import SINKS
from kinformer.lab.attention_weights.map_sizes import CELLS
from kinformer.lab.attention_weights.retrieved_keys import NAMED, RetrievedKeys
from kinformer.lab.attention_weights.sum_blocks import sum_blocks
from kinformer.lab.attention_weights.token_letters import token_letters
from kinformer.lab.look import DEPTHS, AttentionMaps
from kinformer.pages.html_page import html_page
from kinformer.pages.look_page_data import EMPTY, TokenTint, head_numbers, json_numbers, page_data, tokens_of
from kinformer.pages.pictures.support.attention_calls import join_names, place_of

STRONGEST = 0.95  # share of the tokens with a loss below the darkest colour
DASH = "–"  # a number that does not exist, such as the distance of a head without keys


def save_look_page(
    result: AttentionMaps, path: str | Path, title: str = "Attention on one text", cells: int = CELLS
) -> None:
    """Write a page that shows what a model attends to, and the loss of each token.

    Choose it to search many heads by hand: every map can be enlarged, and the page gives the tokens and the weight of
    each cell. `save_attention_maps` writes a picture for a document. The page is one file and needs no network. An
    existing file is replaced, as `torch.save` does.

        kf.save_look_page(kf.look(model, "def main():"), "look.html")

    result: the attention maps, as `look` returns them.
    path: the file to write.
    title: title of the page.
    cells: largest number of rows of a map on the page. Larger maps are summed to maps of blocks of tokens.

    Errors: OSError if the file cannot be written.
    """
    if not isinstance(result, AttentionMaps):
        raise TypeError(
            f"wrong attention maps: got {quote(result)}, expected the result of kf.look. Call "
            "save_look_page(kf.look(model, text), path)"
        )
    check_at_least("cells", cells, 1)
    write(Path(path), look_page(_sum_maps(result, cells), title))


def _sum_maps(result: AttentionMaps, cells: int) -> AttentionMaps:
    """Return maps of at most `cells` rows, with blocks of more tokens if necessary."""
    side = max((attention.shape[1] for attention in result.maps.values()), default=0)
    times = -(-side // cells)
    if times <= 1:
        return result
    maps = {}
    for name, attention in result.maps.items():
        queries = torch.full(attention.shape[1:2], float(result.cell))
        queries[-1] -= len(queries) * result.cell - tokens_of(result, attention)  # the last block may be shorter
        maps[name] = sum_blocks(attention, times, queries)
    return result._replace(maps=maps, cell=times * result.cell)


def look_page(result: AttentionMaps, title: str) -> bytes:
    """Return the page as bytes of HTML.

    result: the attention maps, as `look` returns them.
    title: title of the page.
    """
    here = Path(__file__)
    groups = head_groups(_largest_set(result.maps), len(result.tokens), result.cell)
    tints, names = list(_tints(result)), layer_names(result)
    body = "".join(_body(result, groups, tints, names))
    data = page_data(result, tints, names)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    script = here.with_suffix(".js").read_text("utf-8")
    scripts = f'<script type="application/json" id="look">{text}</script>\n<script>{script}</script>\n'
    return html_page(title, body + scripts, here.with_suffix(".css").read_text("utf-8"))


def layer_names(result: AttentionMaps) -> dict[str, str]:
    """Return a short name for each attention layer, such as "layer 3".

    Layers that would share a short name keep their full names.

    result: the maps.
    """
    names = {name: place_of(name) or "the layer" for name in (*result.maps, *result.unseen)}
    counts = Counter(names.values())
    return {name: short if counts[short] == 1 else name for name, short in names.items()}


def _largest_set(maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the maps of the most frequent size; only maps of equal size can be compared."""
    sizes = Counter(attention.shape[1] for attention in maps.values())
    size = sizes.most_common(1)[0][0] if sizes else 0
    return {name: attention for name, attention in maps.items() if attention.shape[1] == size}


def _tints(result: AttentionMaps) -> Iterator[TokenTint]:
    if result.bits is not None:
        real = result.bits[result.bits.isfinite()]
        top = float(real.quantile(STRONGEST)) if len(real) else 1.0
        yield TokenTint("loss", "bits", json_numbers(result.bits), max(top, 1.0))
    for name, depth in result.depths.items():
        unit, title = DEPTHS[name.rpartition(".")[2]]
        place = "" if len(result.depths) == 1 else f" ({name})"
        yield TokenTint(title + place, unit, json_numbers(depth), max(float(depth.max()), 1.0))


# The parts of the page ------------------------------------------------------------------------------------------------


def _body(
    result: AttentionMaps, groups: Sequence[HeadGroup], tints: Sequence[TokenTint], names: Mapping[str, str]
) -> Iterator[str]:
    yield from _text(result, tints)
    if result.maps:
        yield from _grid(result)
    if result.heads:
        yield from _table(result, groups, names)
    if result.maps:
        yield from _groups(result, groups, names)
    for number, (name, keys) in enumerate(result.retrieved.items()):
        yield from _retrieval(number, names.get(name, place_of(name)), keys)
    yield from _unseen(result, names)
    yield from ZOOM


ZOOM = (
    '<dialog id="zoom" class="zoom" aria-labelledby="zoom-title">\n',
    '<div class="bar"><h2 id="zoom-title"></h2><button type="button" id="zoom-previous">Previous</button>\n',
    '<button type="button" id="zoom-next">Next</button><button type="button" id="zoom-close">Close</button></div>\n',
    '<p id="zoom-numbers" class="soft"></p>\n',
    '<canvas id="zoom-map" width="900" height="900" tabindex="0" role="img"></canvas>\n',
    '<p id="zoom-cell" aria-live="polite"></p><p id="zoom-best" class="soft"></p>\n',
    '<p class="soft">Rows are queries and columns are keys. A click or the arrow keys choose a cell. Page Up and ',
    "Page Down turn to another map, and Escape closes this one.</p></dialog>\n",
)


def _text(result: AttentionMaps, tints: Sequence[TokenTint]) -> Iterator[str]:
    count = len(result.tokens)
    yield f"<h2>Text of {count:,} tokens</h2>\n"
    if result.bits is not None:
        mean = float(result.bits[1:].double().mean())
        yield f"<p>The mean loss is {mean:.2f} bits per token. The first token has no loss.</p>\n"
    for tint in tints:
        if tint.unit != "bits":
            values = [value for value in tint.values if value is not None]
            counts = "; ".join(
                f"{value:g} {tint.unit.removesuffix('s') if value == 1 else tint.unit}: {number:,} tokens"
                for value, number in sorted(Counter(values).items())
            )
            yield (
                f"<p>The {escape(tint.title)} of a token is {sum(values) / len(values):.2f} on average. {counts}.</p>\n"
            )
    if tints:
        options = "".join(
            f'<option value="{place}">{escape(tint.title)}: strongest colour from {tint.top:.3g} {tint.unit}</option>'
            for place, tint in enumerate(tints)
        )
        yield f'<p class="controls"><label>Colour of the text: <select id="tint">{options}</select></label></p>\n'
    texts = token_letters(result.tokens)
    notes = f" {EMPTY} is a token without text, such as a begin token." if b"" in result.tokens else ""
    if cut := next((text.cut for text in texts if text.cut), None):
        notes += f" A letter of several bytes belongs to the token with its last byte; {escape(cut)} is a byte before."
    pieces = " pieces" if any(len(text.letters.strip()) > 1 for text in texts) else ""  # with a line behind each token
    yield (
        f'<p class="soft">A click or the arrow keys choose a token. Its numbers stand below the text.{notes}</p>\n'
        f'<div id="tokens" class="tokens{pieces}" tabindex="0" role="group" '
        'aria-label="The text; arrow keys choose a token">'
    )
    for place, text in enumerate(texts):
        value = tints[0].values[place] if tints else None
        strength = 0.0 if value is None else 0.85 * min(max(value / tints[0].top, 0.0), 1.0)
        letters = escape(text.letters).replace("\n", "⏎\n") + (f"<small>{text.cut}</small>" if text.cut else "")
        space = "" if result.bits is not None or result.depths or b"".join(result.tokens).strip(b"0123456789-") else " "
        yield f'<span style="--t:{strength:.2f}">{letters or EMPTY}</span>{space}'
    yield '</div>\n<p id="token" aria-live="polite"></p>\n'


def _grid(result: AttentionMaps) -> Iterator[str]:
    cells = (
        "A cell is the weight of one key for one query."
        if result.cell == 1
        else f"A cell is a block of {result.cell:,} queries and {result.cell:,} keys. It shows the summed "
        "weight of its keys, as a mean over its queries."
    )
    yield f"<h2>Attention by layer and head</h2>\n<p>A row of this grid is a layer. {cells}\n"
    yield (
        "In a map, rows are queries and columns are keys. Stronger colour is more weight: the opacity is the square "
        "root of the weight.</p>\n"
    )
    yield (
        '<p class="soft">Weights are rounded to 255 steps of their square root, so a weight is off by at most 0.004. '
        "A click, or Enter on a map, enlarges it. The arrow keys move between maps.</p>\n"
    )
    yield '<div class="scroll grid" id="grid" role="group" aria-label="Attention maps by layer and head">'
    yield "<noscript>The maps need JavaScript.</noscript></div>\n"


ROWS = 16  # most rows of a table that are seen without scrolling
HEADINGS = ("layer", "head", "mean distance, tokens", "entropy, bits", "on the first token", f"on the first {SINKS}")


def _table(result: AttentionMaps, groups: Sequence[HeadGroup], names: Mapping[str, str]) -> Iterator[str]:
    numbers_of_groups = {head: number for number, group in enumerate(groups, 1) for head in group.heads}
    headings = (*HEADINGS, "group") if groups else HEADINGS
    rows = sum(len(numbers.distance) for numbers in result.heads.values())
    scrolls = f" The table has {rows:,} rows, and it scrolls." if rows > ROWS else ""
    yield (
        "<h2>Numbers of each head</h2>\n"
        "<p>All numbers are means over queries. The distance between a query and its keys is weighted by attention. An "
        "entropy of n bits is the same as for 2<sup>n</sup> equal keys. The last two columns are the weight on "
        f"the first tokens, which are often attention sinks. They count the queries after these tokens.{scrolls}</p>\n"
        '<div class="scroll numbers" tabindex="0" role="region" aria-label="Numbers of each head"><table><thead><tr>'
    )
    yield "".join(f'<th scope="col"><button type="button">{title}</button></th>' for title in headings)
    yield '</tr></thead><tbody id="heads">\n'
    for place, (layer, numbers) in enumerate(result.heads.items()):
        for head in range(len(numbers.distance)):
            distance, entropy, *first = (float(column[head]) for column in numbers)
            number = numbers_of_groups.get((layer, head), 0)
            cells = (
                (place, escape(names[layer])),
                (head, str(head)),
                (distance, _written(distance, ",.1f")),
                (entropy, _written(entropy, ".2f")),
                *((share, _written(share, ".0%")) for share in first),
                (number or math.inf, str(number) if number else ""),
            )
            columns = "".join(
                f'<td data-value="{value if math.isfinite(value) else 1e9:.6g}">{text}</td>'
                for value, text in cells[: len(headings)]
            )
            yield f"<tr>{columns}</tr>\n"
    yield "</tbody></table></div>\n"


def _written(number: float, form: str) -> str:
    return format(number, form) if math.isfinite(number) else DASH


def _groups(result: AttentionMaps, groups: Sequence[HeadGroup], names: Mapping[str, str]) -> Iterator[str]:
    yield (
        "<h2>Heads with nearly equal maps</h2>\n"
        "<p>The difference of two heads is the share of weight that they place on different keys, as a mean over "
        "queries. It is measured on the cells of the maps. Its formula is "
        "<code>d(a, b) = 1/T Σ_i ½ Σ_j |a_ij - b_ij|</code>.</p>\n"
        f"<p>Two heads of a group differ by at most {MOST:.0%}.</p>\n"
    )
    if not groups:
        yield "<p>There is no such group.</p>\n"
        return
    yield '<ol class="groups">\n'
    for group in groups:
        by_layer: dict[str, list[str]] = {}
        for layer, head in group.heads:
            by_layer.setdefault(layer, []).append(str(head))
        heads = "; ".join(
            f"{escape(names[layer])} head{'s' if len(heads) > 1 else ''} {', '.join(heads)}"
            for layer, heads in by_layer.items()
        )
        numbers = [[float(column[head]) for column in head_numbers(result, layer)[:3]] for layer, head in group.heads]
        distance, entropy, first = (sum(column) / len(column) for column in zip(*numbers, strict=True))
        yield (
            f"<li><b>{len(group.heads)} heads</b>, which differ by at most {group.difference:.1%}: {heads}. "
            f'<span class="soft">On average: distance {_written(distance, ".1f")} tokens, entropy '
            f"{_written(entropy, '.2f')} bits, {_written(first, '.0%')} on the first token.</span></li>\n"
        )
    yield "</ol>\n"


def _retrieval(number: int, name: str, keys: RetrievedKeys) -> Iterator[str]:
    heads, _, k = keys.places.shape
    is_memory = keys.distances is None
    source = "its memory of the text" if is_memory else "a datastore"
    parts = [
        f"For each token, {name or 'the model'} retrieves up to {k:,} keys from {source}.",
        f"The table has the best {min(k, NAMED)}{' of each head' if heads > 1 else ''} for the token that is chosen in "
        "the text above.",
    ]
    columns = ["head and token" if is_memory else "entry"]
    columns.append(f"text, with the {'token of the key' if is_memory else 'token that followed'} marked")
    if keys.weights is not None:
        parts.append("The weight is the softmax over the retrieved keys.")
        columns.append("weight")
    if keys.distances is not None:
        parts.append("The distance is the squared distance between the state of the token and the key.")
        columns.append("distance")
    if keys.share is not None and bool((keys.places >= 0).any()):
        share = keys.share[:, (keys.places >= 0).any(-1).any(0)]
        low, high = float(share.min()), float(share.max())
        extent = "" if f"{low:.0%}" == f"{high:.0%}" else f", from {low:.0%} to {high:.0%}"
        parts.append(f"Their mean share of the result is {float(share.mean()):.0%}{extent}.")
    headings = "".join(f'<th scope="col">{column}</th>' for column in columns)
    yield (
        f"<h2>Keys that {escape(name or 'the model')} retrieves</h2>\n<p>{escape(' '.join(parts))}</p>\n"
        f'<div class="scroll numbers"><table class="retrieved"><thead><tr>{headings}</tr></thead>'
        f'<tbody id="retrieved-{number}" aria-live="polite"></tbody></table></div>\n'
    )


def _unseen(result: AttentionMaps, names: Mapping[str, str]) -> Iterator[str]:
    if not result.unseen:
        if not result.maps:
            yield "<p>The model has no attention layer, so there is no map.</p>\n"
        return
    by_reason: dict[str, list[str]] = {}
    for name, reason in result.unseen.items():
        by_reason.setdefault(reason, []).append(names[name])
    yield "<h2>Layers without a map</h2>\n<ul>\n"
    for reason, layers in by_reason.items():
        verb = "has" if len(layers) == 1 else "have"
        place = join_names(layers)
        yield f"<li>{escape(place[:1].upper() + place[1:])} {verb} no map: {escape(reason)}.</li>\n"
    yield "</ul>\n"

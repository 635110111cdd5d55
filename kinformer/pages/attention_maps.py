"""A picture of the attention maps that `kf.look` returns, with a square for each head."""

import warnings
from pathlib import Path

from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from kinformer.core.quote import quote
from kinformer.lab.attention_weights.token_letters import token_letters
from kinformer.lab.look import AttentionMaps
from kinformer.pages.look_page import layer_names
from kinformer.pages.save_figure import save_figure

SIDE = 2.2  # width of a square in inches
NAMED = 40  # most tokens whose texts are written at the axes
TICKS = (0, 0.04, 0.25, 0.5, 1)  # weights that the colour scale names
LONGEST = 8  # most letters of a token that are shown


def save_attention_maps(result: AttentionMaps, path: str | Path) -> None:
    """Draw the attention maps of a text: darker cells are larger weights.

    Choose it to see at a glance which tokens each head reads. A row of the picture is a layer, from the bottom of the
    model, and a column is a head. In a map, a row is a query and a column a key. All maps have one colour scale, which
    shows the square root of a weight. Tokens are named if there are at most 40.

        kf.save_attention_maps(kf.look(model, "def main():"), "maps.png")

    result: the maps, as `look` returns them.
    path: the file to write; its ending sets the format, such as .png, .svg or .pdf.

    Errors: ValueError if no layer has a map; OSError if the file cannot be written.
    """
    if not isinstance(result, AttentionMaps):
        raise TypeError(
            f"wrong attention maps: got {quote(result)}, expected the result of kf.look. Call "
            "save_attention_maps(kf.look(model, text), path)"
        )
    if not result.maps:
        reason = next(iter(result.unseen.values()), "the model has no attention layer")
        raise ValueError(f"there is no attention map to draw: {reason}. Give a model with maps of single tokens")
    heads = max(len(attention) for attention in result.maps.values())
    size = heads * SIDE + 1, len(result.maps) * SIDE + 1
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(result.maps), heads, squeeze=False)
    names = [_shown(str(text)) for text in token_letters(result.tokens)] if len(result.tokens) <= NAMED else []
    blocks = f", blocks of {result.cell:,} tokens" if result.cell > 1 else ""
    short, scale = layer_names(result), PowerNorm(0.5, 0, 1)  # of all maps, so that they can be compared
    for row, (layer, attention) in zip(grid, result.maps.items(), strict=True):
        for head, axes in enumerate(row):
            if head >= len(attention):
                axes.set_axis_off()
                continue
            image = axes.imshow(attention[head].numpy(), cmap="Blues", norm=scale)
            axes.set_title(f"{short[layer]}, head {head}", fontsize=8)
            axes.set_xlabel(f"key{blocks}", fontsize=7)
            axes.set_ylabel(f"query{blocks}" if head == 0 else "", fontsize=7)
            axes.tick_params(labelsize=6)
            if names:
                axes.set_xticks(range(len(names)), names, fontsize=6, rotation=90, family="monospace")
                axes.set_yticks(range(len(names)), names, fontsize=6, family="monospace")
    bar = figure.colorbar(image, ax=grid, shrink=min(1.0, 3 * SIDE / size[1]), aspect=30)
    bar.set_ticks(TICKS, labels=[f"{tick:g}" for tick in TICKS])
    bar.set_label("attention weight", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the font draws a box for a missing script
        save_figure(figure, Path(path))


def _shown(text: str) -> str:
    """Return the text of a token with visible spaces, in a few letters, without the dollar signs of a formula."""
    text = text.replace("\n", "⏎").replace(" ", "␣")[:LONGEST]
    return text.replace("$", r"\$")

"""What members that generate pictures share: how intensities come out, and how a picture is cut."""

from typing import Literal

from kinformer.core.checks import multiple, one_of, whole_numbers
from kinformer.models.support.categorical import Categorical
from kinformer.models.support.logistics import Logistics
from kinformer.models.support.values import Values

Output = Literal["categorical", "logistics"]
MOST = 8  # rows and columns of a block that nobody named


def values_of(output: Output, d: int, channels: int, mixtures: int) -> Values:
    """256 probabilities for each channel, which has embeddings of its own, or a mixture of logistics for each pixel."""
    if one_of("output", output, Output) == "categorical":
        return Categorical(d, channels=channels)
    return Logistics(d, channels, mixtures)


def blocks(
    rows: int, columns: int, tile: tuple[int, ...], around: tuple[int, ...]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of a block, and of what is read around it: the given ones, or the largest that divide."""
    best = tuple(max(n for n in range(1, MOST + 1) if side % n == 0) for side in (rows, columns))
    tile = _two("tile", tile or best, 1)
    for name, side, size in (("rows", rows, tile[0]), ("columns", columns, tile[1])):
        multiple(f"{name} of a picture", side, f"{name} of a tile", size)
    return tile, _two("around", around or tile, 0)


def _two(name: str, value: tuple[int, ...], least: int) -> tuple[int, int]:
    if len(whole_numbers(name, value, least)) != 2:
        raise ValueError(f"{name}={value} are not two numbers; give rows and columns, as (4, 7)")
    return value[0], value[1]

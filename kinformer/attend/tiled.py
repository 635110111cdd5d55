"""tiled: tiles of rows, cut out of them, written to them and added to them, without copies where strides can tell."""

from jaxtyping import Float, Int
from torch import Tensor

from kinformer.attend.calls import Table, Tiles

FAR = 512  # places of a tile that lie apart from which on a copy is faster than to read them where they are


def cut(x: Float[Tensor, "B H L D"], tiles: Tiles | Table, some: slice) -> Float[Tensor, "n H size D"]:
    """The tiles of one row, or one tile of some rows; a view unless they are looked up."""
    x = x[some]
    if isinstance(tiles, Table):
        rows, at, size = _rows(x, tiles)
        found = rows.index_select(1, at)  # [H n*m block*D], or [H n*size D]
        return found.view(x.shape[1], tiles.many, size, x.shape[3]).transpose(0, 1)
    if tiles.many == 1:
        last = tiles.start + (tiles.size - 1) * tiles.inner + 1
        return x[:, :, tiles.start : last : tiles.inner]
    return _view(x, tiles)


def near(x: Float[Tensor, "B H L D"], tiles: Tiles | Table, some: slice) -> Float[Tensor, "n H size D"]:
    """The same, copied where many rows lie far apart: they fall on the same places of a cache, and are read often."""
    found = cut(x, tiles, some)
    return found.contiguous() if isinstance(tiles, Tiles) and tiles.inner > 1 and tiles.size >= FAR else found


def _rows(x: Float[Tensor, "1 H L D"], table: Table) -> tuple[Float[Tensor, "H N W"], Int[Tensor, " M"], int]:
    """A row as blocks that are looked up whole, or as single places where a block ends early; and the numbers."""
    if not table.whole or x.stride(2) != x.shape[3]:
        return x[0], table.places(x.device).flatten(), table.size
    count = x.shape[2] // table.block
    blocks = x[0, :, : count * table.block].unflatten(1, (count, table.block)).flatten(2)
    return blocks, table.blocks.to(x.device).flatten(), table.size


def _view(x: Float[Tensor, "1 H L D"], tiles: Tiles) -> Float[Tensor, "n H size D"]:
    _, of_head, of_place, of_number = x.stride()
    sizes = tiles.many, x.shape[1], tiles.size, x.shape[3]
    strides = tiles.step * of_place, of_head, tiles.inner * of_place, of_number
    return x.as_strided(sizes, strides, x.storage_offset() + tiles.start * of_place)


def write(to: Float[Tensor, "B H L D"], tiles: Tiles | Table, some: slice, found: Float[Tensor, "n H size D"]) -> None:
    """Puts tiles at their places, each of which is in one tile."""
    if isinstance(tiles, Table):
        rows, at, _ = _rows(to[some], tiles)
        rows.index_copy_(1, at, _flat(found, rows, at).to(to.dtype))
    else:
        cut(to, tiles, some).copy_(found)


def add(to: Float[Tensor, "B H L D"], tiles: Tiles | Table, some: slice, found: Float[Tensor, "n H size D"]) -> None:
    """Adds what tiles give to their places, which may be the same for several."""
    if isinstance(tiles, Table):
        rows, at, _ = _rows(to[some], tiles)
        rows.index_add_(1, at, _flat(found, rows, at).to(to.dtype))
    elif tiles.many == 1 or tiles.inner > 1:
        cut(to, tiles, some).add_(found)
    else:
        # so many places at a time that no two tiles meet
        for lo in range(0, tiles.size, tiles.step):
            size = min(tiles.step, tiles.size - lo)
            _view(to[some], tiles._replace(start=tiles.start + lo, size=size)).add_(found[:, :, lo : lo + size])


def _flat(found: Float[Tensor, "n H size D"], rows: Float[Tensor, "H N W"], at: Int[Tensor, " M"]) -> Tensor:
    return found.transpose(0, 1).reshape(rows.shape[0], len(at), rows.shape[2])  # [H M W]


class Sum:
    """What tiles add up to. Where it is `fresh` it holds nothing: each place is written first and added to later."""

    def __init__(self, to: Float[Tensor, "B H L D"], fresh: bool):
        self.to = to
        self.begun = [0 if fresh else to.shape[2]] * len(to)  # of each row, what has been written: all places before

    def add(self, tiles: Tiles | Table, some: slice, found: Float[Tensor, "n H size D"]) -> None:
        begun = self.begun[some.start]
        if begun == self.to.shape[2]:
            return add(self.to, tiles, some, found)
        new = 0 if isinstance(tiles, Table) else tiles.start + tiles.size - begun  # of the first tile
        # where nothing was written yet the first tile goes further than a step: by itself
        if not isinstance(tiles, Table) and tiles.many > 1 and tiles.step < new <= tiles.size:
            self.add(tiles._replace(many=1), some, found[:1])
            return self.add(tiles._replace(many=tiles.many - 1, start=tiles.start + tiles.step), some, found[1:])
        # each tile goes as far beyond the one before it
        if (
            isinstance(tiles, Table)
            or tiles.inner > 1
            or not 0 < new <= tiles.size
            or (tiles.many > 1 and tiles.step != new)
        ):
            self.end()
            return add(self.to, tiles, some, found)
        old = tiles.size - new
        write(self.to, tiles._replace(start=begun, size=new), some, found[:, :, old:])
        if old:
            add(self.to, tiles._replace(size=old), some, found[:, :, :old])
        self.begun[some] = [begun + new * tiles.many] * len(self.begun[some])

    def end(self) -> None:
        """Zeros where nothing was added."""
        for row, begun in zip(self.to, self.begun, strict=True):
            row[:, begun:] = 0
        self.begun = [self.to.shape[2]] * len(self.to)

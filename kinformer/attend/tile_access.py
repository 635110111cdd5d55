"""Functions that cut tiles (pieces of tokens) out of rows, write them to rows and add them to rows.

Tiles at equal steps (`StridedTiles`) are views, so they need no copy.
"""

from jaxtyping import Float, Int
from torch import Tensor

from kinformer.attend.tile_plan import BlockTable, StridedTiles

FAR = 512  # size of a tile with gaps from which a copy is faster than strided access


def cut(x: Float[Tensor, "B H L D"], tiles: StridedTiles | BlockTable, batch: slice) -> Float[Tensor, "n H size D"]:
    """Return several tiles of one row, or one tile of several rows.

    x: vectors of the batch by head and token.
    tiles: the places of the tiles.
    batch: the rows to cut.

    Returns a view for strided tiles and a copy for a block table.
    """
    x = x[batch]
    if isinstance(tiles, BlockTable):
        rows, at, size = _rows(x, tiles)
        gathered = rows.index_select(1, at)  # [H n*m block*D], or [H n*size D]
        return gathered.view(x.shape[1], tiles.many, size, x.shape[3]).transpose(0, 1)
    if tiles.many == 1:
        last = tiles.start + (tiles.size - 1) * tiles.inner + 1
        return x[:, :, tiles.start : last : tiles.inner]
    return _view(x, tiles)


def cut_contiguous(
    x: Float[Tensor, "B H L D"], tiles: StridedTiles | BlockTable, batch: slice
) -> Float[Tensor, "n H size D"]:
    """Return tiles like `cut`, but as a copy if they are large and have gaps between their tokens.

    x: vectors of the batch by head and token.
    tiles: the places of the tiles.
    batch: the rows to cut.

    The copy is faster: tokens at a large step share the same CPU cache lines, and a kernel reads each token several
    times.
    """
    piece = cut(x, tiles, batch)
    return piece.contiguous() if isinstance(tiles, StridedTiles) and tiles.inner > 1 and tiles.size >= FAR else piece


def _rows(x: Float[Tensor, "1 H L D"], table: BlockTable) -> tuple[Float[Tensor, "H N W"], Int[Tensor, " M"], int]:
    """Return a row in blocks, their numbers and the tile size; single places if a block is not full."""
    if not table.has_full_blocks or x.stride(2) != x.shape[3]:
        return x[0], table.indices(x.device).flatten(), table.size
    count = x.shape[2] // table.block
    blocks = x[0, :, : count * table.block].unflatten(1, (count, table.block)).flatten(2)
    return blocks, table.blocks.to(x.device).flatten(), table.size


def _view(x: Float[Tensor, "1 H L D"], tiles: StridedTiles) -> Float[Tensor, "n H size D"]:
    _, of_head, of_place, of_number = x.stride()
    sizes = tiles.many, x.shape[1], tiles.size, x.shape[3]
    strides = tiles.step * of_place, of_head, tiles.inner * of_place, of_number
    return x.as_strided(sizes, strides, x.storage_offset() + tiles.start * of_place)


def write(
    to: Float[Tensor, "B H L D"], tiles: StridedTiles | BlockTable, batch: slice, tensors: Float[Tensor, "n H size D"]
) -> None:
    """Write tiles to their places in rows. No place may be in two tiles.

    to: vectors of the batch by head and token, changed in place.
    tiles: places of the tiles.
    batch: the rows to write.
    tensors: vectors of the tiles.
    """
    if isinstance(tiles, BlockTable):
        rows, at, _ = _rows(to[batch], tiles)
        rows.index_copy_(1, at, _flat(tensors, rows, at).to(to.dtype))
    else:
        cut(to, tiles, batch).copy_(tensors)


def add(
    to: Float[Tensor, "B H L D"], tiles: StridedTiles | BlockTable, batch: slice, tensors: Float[Tensor, "n H size D"]
) -> None:
    """Add tiles to the vectors at their places in rows. Several tiles may share a place.

    to: vectors of the batch by head and token, changed in place.
    tiles: places of the tiles.
    batch: the rows to change.
    tensors: vectors of the tiles.
    """
    if isinstance(tiles, BlockTable):
        rows, at, _ = _rows(to[batch], tiles)
        rows.index_add_(1, at, _flat(tensors, rows, at).to(to.dtype))
    elif tiles.many == 1 or tiles.inner > 1:
        cut(to, tiles, batch).add_(tensors)
    else:
        # at most `step` places at a time, so that no two tiles overlap
        for lo in range(0, tiles.size, tiles.step):
            size = min(tiles.step, tiles.size - lo)
            _view(to[batch], tiles._replace(start=tiles.start + lo, size=size)).add_(tensors[:, :, lo : lo + size])


def _flat(tensors: Float[Tensor, "n H size D"], rows: Float[Tensor, "H N W"], at: Int[Tensor, " M"]) -> Tensor:
    return tensors.transpose(0, 1).reshape(rows.shape[0], len(at), rows.shape[2])  # [H M W]


class TileSum:
    """A sum of tiles at their places in rows, for gradients of queries, keys and values.

    to: tensor of the sum, changed in place.
    fresh: True if `to` is uninitialised. Each place is then written first and added to later.
    """

    def __init__(self, to: Float[Tensor, "B H L D"], fresh: bool):
        self.to = to
        self.begun = [0 if fresh else to.shape[2]] * len(to)  # number of places written so far in each row

    def add(self, tiles: StridedTiles | BlockTable, batch: slice, tensors: Float[Tensor, "n H size D"]) -> None:
        """Add tiles to the sum; places that no earlier tile covered are written, so they need no zeros."""
        begun = self.begun[batch.start]
        if begun == self.to.shape[2]:
            return add(self.to, tiles, batch, tensors)
        new = 0 if isinstance(tiles, BlockTable) else tiles.start + tiles.size - begun  # new places of the first tile
        # the first tile has more new places than a step, so it is added separately
        if not isinstance(tiles, BlockTable) and tiles.many > 1 and tiles.step < new <= tiles.size:
            self.add(tiles._replace(many=1), batch, tensors[:1])
            return self.add(tiles._replace(many=tiles.many - 1, start=tiles.start + tiles.step), batch, tensors[1:])
        # otherwise each tile must add the same number of new places
        if (
            isinstance(tiles, BlockTable)
            or tiles.inner > 1
            or not 0 < new <= tiles.size
            or (tiles.many > 1 and tiles.step != new)
        ):
            self.end()
            return add(self.to, tiles, batch, tensors)
        old = tiles.size - new
        write(self.to, tiles._replace(start=begun, size=new), batch, tensors[:, :, old:])
        if old:
            add(self.to, tiles._replace(size=old), batch, tensors[:, :, :old])
        self.begun[batch] = [begun + new * tiles.many] * len(self.begun[batch])

    def end(self) -> None:
        """Write zeros to all places that no tile covered; call it after the last `add`."""
        for row, begun in zip(self.to, self.begun, strict=True):
            row[:, begun:] = 0
        self.begun = [self.to.shape[2]] * len(self.to)

"""Linformer: keys and values projected along the row by learned matrices."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least
from kinformer.core.heads import Keys
from kinformer.core.module_hooks import has_hooks, is_plain_linear
from kinformer.core.projection import Projection, by_head
from kinformer.core.shorten import Shorten
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.shorteners.length_matrices import Matrices


class Linformer(Shorten):
    """k keys and values for a whole row, each a learned mixture of all of its keys and values.

    K' = E K, V' = F V, E and F of k x length; y = softmax(Q K'^T / sqrt(head_dim)) V'

    Choose it for encoders of rows that are all about as long and whose attention has a low rank; over `MeanPooled` and
    `ConvShortener` where what matters has its place in the row. Reading T queries costs T x k, projecting S keys S x k:
    linear in the row, k being chosen. The n-th key of a row meets the n-th column of E, whatever columns of padding
    there are; a shorter row meets the first ones. Every mixture is of the whole row, so it stands where the row's last
    key does: there is no causal form, and nothing decodes.

    length: columns of E and F: the longest row.
    k: how many keys a row becomes; the paper takes 128 or 256 for rows of 512.
    heads: heads of keys and of values, each with matrices of its own (the paper's 2 h of a layer); unless given all
        share E and F (its headwise sharing).
    tied: F is E (its key-value sharing). One Linformer in all layers is its layerwise sharing.

    In a layer whose heads share E and F, and whose projection is a plain `QKV`, a row is mixed before it is projected,
    (E X) W in place of E (X W), where that costs less: then k rows are projected and not S.

    Errors: ValueError for a row with more keys, for other heads than it was made for, and for mechanisms that want
    sides of keys. Source: Wang et al., 2020, arXiv:2006.04768, section 4; columns of a shorter row: the linformer
    package (P. Wang, 2020).
    """

    gapless = True

    def __init__(self, length: int, k: int = 128, *, heads: int | None = None, tied: bool = False):
        super().__init__()
        self.length, self.k = check_at_least("length", length, 1), check_at_least("k", k, 1)
        self.along = Matrices(heads, tied, (length, k), (length, k))
        for matrix in self.parameters():
            nn.init.normal_(matrix, std=k**-0.5)  # the theorem's: products keep their size

    def forward(self, keys: Keys) -> Keys:
        self.along.check("Linformer", keys)
        k, v = (self._mix(name, x, keys.pos < 0) for name, x in (("k", keys.k), ("v", keys.v)))
        return Keys(k, v, self._ends(keys.pos), own=keys.own)

    def mix_before_projection(
        self, projection: Projection, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B 1 S"], full: bool
    ) -> Keys | None:
        """E (X W) = (E X) W: k mixtures are projected, and not every token."""
        if type(projection) is not QKV or projection.rotation is not None or self.along.heads is not None:
            return None
        if not is_plain_linear(projection.qkv) or has_hooks(self):
            return None  # what stands in for a layer, or looks on, wants the layer to be called
        wide, length = sum(projection.widths[1:]), min(x.shape[1], self.length)
        matrices = 1 if self.along.v is None else 2
        # multiplications: the row mixed and its k mixtures projected, against every token projected and these mixed
        if self.k * projection.d * (matrices * length + wide) >= length * wide * (projection.d + self.k):
            return None
        ends, x = self._ends(pos), x[:, :length]
        real = None if full else pos[:, 0, :length] >= 0
        x = x if real is None else x.masked_fill(~real[..., None], 0.0)
        mixture, mixtures = x, []
        for name, heads in (("k", projection.key_heads), ("v", projection.value_heads)):
            matrix, (weight, bias) = self.along.matrix(name, x)[0, :length], projection.matrix(name)
            if name == "k" or matrices == 2:
                mixture = matrix.mT @ x  # [B k D]
            y = F.linear(mixture, weight)
            if bias is not None:  # as often as its tokens weigh in a mixture
                often = matrix.sum(0) if real is None else real.to(matrix.dtype) @ matrix
                y = y + (often[..., None] * bias).to(y.dtype)
            mixtures.append(by_head(y, heads))
        return Keys(mixtures[0], mixtures[1], ends)

    def _ends(self, pos: Int[Tensor, "B 1 S"]) -> Int[Tensor, "B 1 k"]:
        """Where mixtures stand; ValueError for more keys than there are columns of matrices."""
        beyond = pos[..., self.length :]
        if beyond.numel() and (torch.compiler.is_compiling() or bool((beyond >= 0).any())):
            raise ValueError(
                f"a row of {pos.shape[2]} columns has more keys than the {self.length} that this Linformer projects; "
                "make it with a larger length, or cut the row"
            )
        # without a key there is no mixture
        last = pos.amax(2, keepdim=True) if pos.shape[2] else pos.new_full((len(pos), 1, 1), -1)
        return last.expand(-1, -1, self.k)

    def _mix(self, name: str, x: Float[Tensor, "B G S N"], padding: Tensor) -> Float[Tensor, "B G k N"]:
        x = x.masked_fill(padding[..., None], 0.0)[:, :, : self.length]
        matrix = self.along.matrix(name, x)[:, : x.shape[2]]
        if len(matrix) == 1:  # one product of all heads
            mixed = matrix[0].mT @ x.transpose(1, 2).flatten(2)
            return mixed.unflatten(2, (x.shape[1], x.shape[3])).transpose(1, 2)
        # the matrix first: the numbers of a mixture then lie side by side, as fused kernels want them
        return torch.einsum("gsk,bgsn->bgkn", matrix, x)


EXAMPLES = (lambda: Linformer(96, 4), lambda: Linformer(96, 3, heads=2), lambda: Linformer(96, 3, tied=True))

"""Linformer: fewer keys and values by learned matrices that mix them along the row."""

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
    """Shortener of a whole row to k keys and values, each a learned mixture of all keys or values.

        K' = E K, V' = F V, with E and F of shape k x length
        y = softmax(Q K'^T / sqrt(head_dim)) V'

    Choose it for encoders if all rows have about the same length and their attention has a low rank. Choose it over
    `MeanPooled` and `ConvShortener` if the same position has the same meaning in all rows. T queries cost T * k, and
    projecting S keys costs S * k: the cost is linear in the row for a fixed k. It has no causal form and cannot decode,
    because each mixture contains the whole row, and so counts as a key at the position of the row's last key.

    The n-th key of a row is multiplied by the n-th column of E; padding is left out. A shorter row uses the first
    columns. If the heads share E and F and the projection is a plain `QKV`, the hidden states X may be mixed before the
    projection W: (E X) W instead of E (X W). The layer does so if it needs fewer multiplications, because it then
    projects k mixtures instead of S tokens.

    length: number of columns of E and F: the length of the longest row.
    k: number of keys after the projection; the paper takes 128 or 256 for rows of 512.
    heads: number of heads of keys and of values, each with its own matrices (the paper's 2 h matrices per layer); by
        default all heads share E and F (the paper's headwise sharing).
    tied: whether F is E (the paper's key-value sharing). The paper's layerwise sharing is one `Linformer` object in all
        layers.

    Errors: ValueError if a row has more keys than `length`, if keys have other heads, or if the mechanism needs extras
    of keys.

    Source: Wang et al., 2020, arXiv:2006.04768, section 4; columns of a shorter row: the linformer package (P. Wang,
    2020).
    """

    gapless = True

    def __init__(self, length: int, k: int = 128, *, heads: int | None = None, tied: bool = False):
        super().__init__()
        self.length, self.k = check_at_least("length", length, 1), check_at_least("k", k, 1)
        self.along = Matrices(heads, tied, (length, k), (length, k))
        for matrix in self.parameters():
            nn.init.normal_(matrix, std=k**-0.5)  # as in the paper's theorem, so that products keep their size

    def forward(self, keys: Keys) -> Keys:
        self.along.check("Linformer", keys)
        k, v = (self._mix(name, x, keys.pos < 0) for name, x in (("k", keys.k), ("v", keys.v)))
        return Keys(k, v, self._ends(keys.pos), own=keys.own)

    def mix_before_projection(
        self, projection: Projection, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B 1 S"], full: bool
    ) -> Keys | None:
        """Mix the hidden states of a row first, then project the k mixtures to keys and values: (E X) W.

        The result equals E (X W), in which every token is projected.

        projection: projection of the layer.
        x: hidden states X.
        pos: positions of the tokens, -1 for padding.
        full: True if there is no padding.

        Returns: the shortened keys and values, or None if mixing first needs more multiplications or is impossible.
        """
        if type(projection) is not QKV or projection.rotation is not None or self.along.heads is not None:
            return None
        if not is_plain_linear(projection.qkv) or has_hooks(self):
            return None  # replaced layers and hooks need a call of the layer itself
        wide, length = sum(projection.widths[1:]), min(x.shape[1], self.length)
        matrices = 1 if self.along.v is None else 2
        # compares multiplications: mix the row and project k mixtures, or project every token and mix the results
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
            if bias is not None:  # times the sum of the token weights in each mixture
                often = matrix.sum(0) if real is None else real.to(matrix.dtype) @ matrix
                y = y + (often[..., None] * bias).to(y.dtype)
            mixtures.append(by_head(y, heads))
        return Keys(mixtures[0], mixtures[1], ends)

    def _ends(self, pos: Int[Tensor, "B 1 S"]) -> Int[Tensor, "B 1 k"]:
        """Return the positions of the mixtures; raise ValueError if a row has too many keys."""
        beyond = pos[..., self.length :]
        if beyond.numel() and (torch.compiler.is_compiling() or bool((beyond >= 0).any())):
            raise ValueError(
                f"a row of {pos.shape[2]} tokens has more keys than the {self.length} that this Linformer "
                "projects. Use a larger length, or cut the row"
            )
        # a row without a key has no mixture
        last = pos.amax(2, keepdim=True) if pos.shape[2] else pos.new_full((len(pos), 1, 1), -1)
        return last.expand(-1, -1, self.k)

    def _mix(self, name: str, x: Float[Tensor, "B G S N"], padding: Tensor) -> Float[Tensor, "B G k N"]:
        x = x.masked_fill(padding[..., None], 0.0)[:, :, : self.length]
        matrix = self.along.matrix(name, x)[:, : x.shape[2]]
        if len(matrix) == 1:  # one product for all heads
            mixed = matrix[0].mT @ x.transpose(1, 2).flatten(2)
            return mixed.unflatten(2, (x.shape[1], x.shape[3])).transpose(1, 2)
        # with the matrix first, the numbers of a mixture are contiguous, as fused kernels need them
        return torch.einsum("gsk,bgsn->bgkn", matrix, x)


EXAMPLES = (lambda: Linformer(96, 4), lambda: Linformer(96, 3, heads=2), lambda: Linformer(96, 3, tied=True))

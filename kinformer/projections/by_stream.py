"""ByStream: global tokens with projections of their own."""

from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.projection import Projection
from kinformer.projections.qkv import QKV


class ByStream(Projection):
    """The first `n` positions are projected by `wide`, all others by `long`: two streams in one sequence.

    Choose it where a few global tokens stand for other things than the tokens of a text, as in `etc`. A key is made by
    its own stream, whoever reads it. Both projections see all tokens. Errors: ValueError where heads or widths differ.
    Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.2 (separate projections for global and long tokens).
    """

    def __init__(self, n: int, wide: Projection, long: Projection):
        super().__init__()
        shapes = [(p.heads, p.key_heads, p.k_dim, p.v_dim) for p in (wide, long)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"the projections of two streams have heads, key heads and widths {shapes[0]} and {shapes[1]}; "
                "give both the same"
            )
        self.heads, self.key_heads, self.k_dim, self.v_dim = shapes[0]
        self.n, self.wide, self.long = n, wide, long

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B H T K"]:
        return self._chosen(pos, self.wide.queries(x, pos), self.long.queries(x, pos))

    def keys(
        self, source: Float[Tensor, "B S D"], source_pos: Int[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S V"]]:
        wide, long = self.wide.keys(source, source_pos), self.long.keys(source, source_pos)
        return self._chosen(source_pos, wide[0], long[0]), self._chosen(source_pos, wide[1], long[1])

    def _chosen(self, pos: Tensor, wide: Tensor, long: Tensor) -> Tensor:
        return wide.where((pos < self.n)[:, None, :, None], long)


EXAMPLES = (lambda: ByStream(2, QKV(16, 2), QKV(16, 2)),)
COMPILES = True

"""RandomKeys: a wrapper through which each query also reads random keys from its whole row."""

from typing import NoReturn

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import check_at_least, check_part
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.nn.patterns.row_random import RowRandom
from kinformer.nn.patterns.shifted import Shifted


class RandomKeys(Layer):
    """A wrapper that lets each block of queries also read `keys` different random blocks of its row.

    Choose it for an encoder in which distant tokens should meet within few layers. Every query reads the same number of
    keys at every length, unlike the pattern `Random`, which does not know the end of a row and draws from earlier
    blocks only. If the layer's own pattern is `Band(0)`, a query reads itself and the random keys. Each head reads
    other random blocks; give each layer another seed.

    layer: the layer; its queries read the keys of its own pattern and the random blocks.
    keys: number of random blocks for each query block; if fewer may be chosen, it reads all of them.
    block: positions in a block.
    seed: seed of the random blocks.
    first, last: numbers of blocks at the front and the end of each row that are not chosen, because every query reads
        them anyway.
    window: number of blocks on either side of the query's block that are not chosen, because the query reads them
        anyway; -1 allows the query's own block too.
    before: number of positions at the front that are not text, such as the extra tokens of `GlobalNodes`.

    Errors: NoState from `start`, since it cannot decode. Source: Zaheer et al., 2020, arXiv:2007.14062, section 2; the
    atomic random pattern of Lin et al., 2021, arXiv:2106.04554, section 4.1.1.
    """

    def __init__(
        self,
        layer: Layer,
        keys: int,
        block: int = 1,
        seed: int = 0,
        *,
        first: int = 0,
        last: int = 0,
        window: int = -1,
        before: int = 0,
    ):
        super().__init__()
        self.layer = check_part("layer", layer, Layer, "a layer, such as PostNorm(Attention(...), MLP(d))")
        self.d, self.wants, self.sends = layer.d, layer.wants, layer.sends
        self.keys, self.block, self.seed = check_at_least("keys", keys, 1), check_at_least("block", block, 1), seed
        self.first, self.last = check_at_least("first", first, 0), check_at_least("last", last, 0)
        self.window, self.before = check_at_least("window", window, -1), check_at_least("before", before, 0)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState("RandomKeys chooses from whole rows and cannot decode. Use a causal layer and Random(keys)")

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        last = F.pad(ctx.pos, (0, 1), value=-1).amax(1, keepdim=True) - self.before  # [B 1]
        blocks = (last // self.block + 1 - self.last).clamp_min(0)
        random_keys: Pattern = RowRandom(blocks, self.keys, self.block, self.seed, self.first, self.window)
        random_keys = Shifted(random_keys, self.before) if self.before else random_keys
        return self.layer(
            x, None, ctx.replace(also=random_keys if ctx.also is None else ctx.also | random_keys, remember=False)
        )


def _example() -> RandomKeys:
    return RandomKeys(kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Band(1)))), 2)


EXAMPLES = (_example,)

"""MAB: a set reads another one, or itself; PublishedMAB as the authors' code has it."""

from collections.abc import Callable
from typing import NoReturn

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_flag, check_multiple, check_part
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.full import Full
from kinformer.core.projection import by_head
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV

Norm = Callable[[int], nn.Module]

BLOCK = "a block that reads a source, such as MAB(d, heads)"


class MAB(PostNorm):
    """Multihead attention block: the elements of one set read those of another; no position is read.

    MAB(X, Y) = LN(H + rFF(H)), H = LN(X + Multihead(X, Y, Y))

    Choose it to build what reads sets. With cross=False it is SAB(X) = MAB(X, X), a BERT block, which reads every pair;
    `ISAB` costs less on sets of more elements than it has points.

    d, heads: width of an element, and heads of attention.
    head_dim: the width of a head; d / heads unless given.
    cross: read `ctx.source`; without, the set reads itself.
    hidden: units of rFF, 4 d unless given.
    norm: of each of the two sums; `nn.Identity` for none.
    dropout: the share of numbers of attention and rFF that training drops.

    Errors: NoState from `start` where the set reads itself. Source: Lee et al., 2018, arXiv:1810.00825, equations 6-8.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        *,
        head_dim: int | None = None,
        cross: bool = True,
        hidden: int | None = None,
        norm: Norm = LayerNorm,
        dropout: float = 0.0,
    ):
        projection = QKV(d, heads, head_dim=head_dim)
        attention = Attention(projection, Softmax(Full(), lse=False), cross=check_flag("cross", cross))
        super().__init__(attention, MLP(d, hidden, activation="relu"), norm=norm, dropout=dropout)
        self.cross = cross


class PublishedMAB(Layer):
    """The same as the authors' code has it. Choose it to repeat published numbers.

    Q = X W_q + b_q, H = LN(Q + heads of softmax(Q_h K_h^T / sqrt(d)) V_h side by side), out = LN(H + relu(H W_o + b_o))

    What attention is added to is the projected query; no matrix mixes heads before the norm; the scale is of d, not of
    a head; rFF is one matrix. So x and what it reads may have other widths than what comes out.

    d, heads: width of what comes out, and heads of attention.
    cross: read `ctx.source`; without, the set reads itself.
    asks, tells: widths of x, and of what is read; d unless given. A set that reads itself has one.
    norm: of each of the two sums; `nn.Identity` for none, the code's default.

    Errors: NoState from `start`; ValueError for sizes that do not divide and for a call without a source. Source: Lee
    et al., 2018, arXiv:1810.00825, by juho-lee/set_transformer.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        *,
        cross: bool = True,
        asks: int | None = None,
        tells: int | None = None,
        norm: Norm = LayerNorm,
    ):
        super().__init__()
        check_multiple("d", d, "heads", heads)
        self.d, self.heads, self.cross = d, heads, check_flag("cross", cross)
        asks = d if asks is None else check_at_least("asks", asks, 1)
        tells = (d if cross else asks) if tells is None else check_at_least("tells", tells, 1)
        if not cross and tells != asks:
            raise ValueError(f"asks={asks} and tells={tells} are of one set, which reads itself; give one width")
        self.queries, self.keys, self.values = nn.Linear(asks, d), nn.Linear(tells, d), nn.Linear(tells, d)
        self.mechanism = Softmax(Full(), scale=d**-0.5, lse=False)
        self.attended, self.out, self.mapped = norm(d), nn.Linear(d, d), norm(d)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState(
            "a set is read whole and has no state; use a causal layer, such as Attention with Softmax(Causal())"
        )

    def forward(self, x: Float[Tensor, "B T C"], state: State | None, ctx: Context) -> Out:
        source, pos = x, ctx.by_head
        if self.cross:
            if ctx.source is None:
                raise ValueError("a MAB reads a source, and none came; give Context(source=..., source_pos=...)")
            source, pos = ctx.source, ctx.source_by_head
        q, k, v = self.queries(x), self.keys(source), self.values(source)
        keys = Keys(by_head(k, self.heads), by_head(v, self.heads), pos, own=not self.cross)
        read = self.mechanism(Queries(by_head(q, self.heads), ctx.by_head), keys, None, ctx).y.y  # [B H T d/H]
        h = self.attended(q + read.transpose(1, 2).flatten(2))
        return Out(self.mapped(h + F.relu(self.out(h))))


def source_reader(name: str, block: Layer) -> Layer:
    """A block that reads a source; one that reads itself would leave out the set, and nobody would see it."""
    if not getattr(check_part(name, block, Layer, BLOCK), "cross", True):
        raise ValueError(f"{name} was made with cross=False and reads itself; give {BLOCK}")
    return block


EXAMPLES = (lambda: MAB(16, 2), lambda: PublishedMAB(16, 2, cross=False), lambda: MAB(16, 2, cross=False))

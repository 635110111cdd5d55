"""MAB: a block in which a set reads another set or itself; PublishedMAB follows the authors' code."""

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
    """A multihead attention block: the elements of one set attend to another set, without positions.

    MAB(X, Y) = LN(H + rFF(H)), H = LN(X + Multihead(X, Y, Y))

    Choose it to build models that read sets. Here rFF is a feed-forward layer for each element. With cross=False it is
    SAB(X) = MAB(X, X), a BERT block in which every element reads every element. `ISAB`, with m learned points, computes
    fewer pairs for sets of more than 2 m elements.

    d, heads: width of an element, and number of attention heads.
    head_dim: width of a head; default d / heads.
    cross: True reads `ctx.source`; False lets the set read itself.
    hidden: number of hidden units of rFF; default 4 d.
    norm: norm after each of the two sums; `nn.Identity` for none.
    dropout: probability of dropping a feature of the attention's and rFF's outputs in training.

    Errors: NoState from `start` if the set reads itself, since such a block cannot decode. Source: Lee et al., 2018,
    arXiv:1810.00825, equations 6-8.
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
    """A multihead attention block that follows the authors' code.

    Q = X W_q + b_q, H = LN(Q + heads of softmax(Q_h K_h^T / sqrt(d)) V_h side by side), out = LN(H + relu(H W_o + b_o))

    Choose it to repeat published numbers; otherwise choose `MAB`. The widths of x and of the source may differ from the
    width of the output.

    d, heads: width of the output, and number of attention heads.
    cross: True reads `ctx.source`; False lets the set read itself.
    asks, tells: widths of x and of the set that it reads (the source); default d. With cross=False both must be equal,
        and `tells` defaults to `asks`.
    norm: norm after each of the two sums; `nn.Identity` for none, the code's default.

    Errors: NoState from `start`, since it cannot decode; ValueError if heads do not divide d, and for a call with
    cross=True without a source. Source: Lee et al., 2018, arXiv:1810.00825, by juho-lee/set_transformer.

    Differences: unlike in `MAB`, attention is added to the projected query, and no matrix mixes heads before the norm.
    The scale uses d instead of the width of a head, and rFF is a single matrix.
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
            raise ValueError(
                f"asks={asks} and tells={tells} must be equal with cross=False, because the set reads itself"
            )
        self.queries, self.keys, self.values = nn.Linear(asks, d), nn.Linear(tells, d), nn.Linear(tells, d)
        self.mechanism = Softmax(Full(), scale=d**-0.5, lse=False)
        self.attended, self.out, self.mapped = norm(d), nn.Linear(d, d), norm(d)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState(
            "a set attention block has no decoding state: it reads the whole set at once. Use a causal layer, such as "
            "Attention with Softmax(Causal())"
        )

    def forward(self, x: Float[Tensor, "B T C"], state: State | None, ctx: Context) -> Out:
        source, pos = x, ctx.by_head
        if self.cross:
            if ctx.source is None:
                raise ValueError("a MAB with cross=True got no source. Pass Context(source=..., source_pos=...)")
            source, pos = ctx.source, ctx.source_by_head
        q, k, v = self.queries(x), self.keys(source), self.values(source)
        keys = Keys(by_head(k, self.heads), by_head(v, self.heads), pos, own=not self.cross)
        read = self.mechanism(Queries(by_head(q, self.heads), ctx.by_head), keys, None, ctx).y.y  # [B H T d/H]
        h = self.attended(q + read.transpose(1, 2).flatten(2))
        return Out(self.mapped(h + F.relu(self.out(h))))


def source_reader(name: str, block: Layer) -> Layer:
    """Return the block after checking that it reads a source (`cross=True`).

    A block with cross=False would ignore the set that it should read, without an error.

    name: name of the caller's parameter, for the message.
    block: the layer to check.

    Errors: ValueError if the block has cross=False.
    """
    if not getattr(check_part(name, block, Layer, BLOCK), "cross", True):
        raise ValueError(f"{name} was made with cross=False, so it reads its own set. Pass {BLOCK}")
    return block


EXAMPLES = (lambda: MAB(16, 2), lambda: PublishedMAB(16, 2, cross=False), lambda: MAB(16, 2, cross=False))

"""PlainLayer: a layer as a plain module of PyTorch, from tensors to a tensor."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.checks import check_part
from kinformer.core.keyword_hints import KeywordHints, hint_keywords
from kinformer.core.layer import Context, Layer


class PlainLayer(nn.Module, KeywordHints):
    """A layer as a plain module of PyTorch: its call takes tensors and returns a tensor.

    Choose it to put attention, a block or a stack into `nn.Sequential` or another model of your own. Call the layer
    itself for decoding states, auxiliary losses and other named values, because the plain layer returns only y.

        nn.Sequential(nn.LayerNorm(256), kf.PlainLayer(kf.Attention(kf.QKV(256, 4), kf.Softmax(kf.Causal()))))

    layer: the layer, such as `Attention(...)`, `PreNorm(...)` or `Stack([...])`.
    """

    def __init__(self, layer: Layer):
        super().__init__()
        self.layer = check_part("layer", layer, Layer, "a layer, such as Attention(QKV(d, heads), Softmax(Causal()))")

    @hint_keywords
    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None = None,
        *,
        source: Float[Tensor, "B S D"] | None = None,
        source_mask: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the layer's output y.

        x: the rows.
        mask: True at real tokens, False at padding; None if every token is real.
        source: the sequence that cross-attention reads.
        source_mask: True at real tokens of the source.
        """
        ctx = None if mask is source is source_mask is None else Context.of_sequence(x, mask, source, source_mask)
        return self.layer(x, None, ctx).y

"""GTrXL: a Transformer-XL with gates in place of residual connections."""

from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.gated_xl import B_G, GatedXL, GateName, NormedName
from kinformer.models.lm import LM
from kinformer.nn.biases.transformer_xl import SHARED


@member(
    cost="L * (segment + memory)",
    recipe=Recipe(lr=1e-3, warmup=0.2),
    needs={"b_g": "gate=gru|output|highway|sigtanh", "normed": "gate!=post_norm"},
)
def gtrxl(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    segment: int = 64,
    memory: int = 64,
    gate: GateName = "gru",
    b_g: float = B_G,
    normed: NormedName = "both",
    hidden: int | None = None,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Gated Transformer-XL (Parisotto et al., 2019, arXiv:1910.06764): gates and pre-normed sublayers.

    Choose it over `transformer_xl` if training is unstable, especially in reinforcement learning. Before training, the
    stack is close to the identity, and closer for a larger `b_g`. The residual stream itself has no norms. A norm is
    applied to the input of a sublayer, and a ReLU to its output.

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    segment: tokens of a segment, which each layer reads.
    memory: tokens before the segment that each layer also reads.
    gate: gate of a sublayer, the paper's ablation: "gru" (GTrXL), "input", "output", "highway", "sigtanh", "residual"
        (TrXL-I) or "post_norm" (TrXL). The gates of "gru" cost as much as the rest of a layer.
    b_g: initial bias of the gates; 0 opens them half. With the paper's 2, each "gru" keeps 0.88 of the residual stream,
        and four layers keep a third of it, in nearly its direction. With 5, four layers keep 0.94.
    normed: "both" normalises segment and memory together; "keys" leaves the inputs of queries unnormalised, as in
        DI-engine.
    hidden: width of the feed-forward layer; 4 d if None.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights, feed-forward units and sublayer outputs.

    Embeddings start with a standard deviation of 0.02 and are multiplied by sqrt(d). As in the paper there is no final
    norm, so the logit of the input token itself starts at about d^1.5 times the variance of the embeddings.
    """
    wiring = GatedXL(d, depth, heads, segment, memory, gate, b_g, head_dim, hidden, dropout, normed)
    return LM(vocab, d, wiring.stack(), scale=d**0.5, std=0.02, dropout=dropout, lanes=True)


EXAMPLES = (
    Example(lambda: gtrxl(d=16, depth=2, heads=2, segment=5, memory=3, vocab=11), shares=SHARED),
    lambda: gtrxl(d=8, depth=1, heads=2, segment=4, memory=5, gate="residual", vocab=11),
    lambda: gtrxl(d=8, depth=1, heads=2, segment=4, memory=5, gate="input", normed="keys", hidden=24, vocab=11),
    lambda: gtrxl(d=8, depth=1, heads=2, segment=4, memory=5, gate="output", vocab=11),
    lambda: gtrxl(d=8, depth=1, heads=2, segment=4, memory=5, gate="highway", vocab=11),
    lambda: gtrxl(d=8, depth=1, heads=2, segment=4, memory=5, gate="sigtanh", vocab=11),
    lambda: gtrxl(d=8, depth=1, heads=2, segment=4, memory=5, gate="post_norm", vocab=11),
)

"""CAMTL: an encoder with attention that depends on the task of a row."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_option, check_whole_between
from kinformer.core.discover import member
from kinformer.core.pattern_parser import parse
from kinformer.members.support.wiring import Wiring
from kinformer.models.multitask import MultiTask
from kinformer.nn.attention import Attention
from kinformer.nn.biases.camtl import CAMTL, CAMTLByColumn, ConditionalBlocks
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.poolers.cls import CLSPooler
from kinformer.nn.poolers.mean import MeanPooler
from kinformer.nn.projections.qkv import QKV

EPS = 1e-12
Form = Literal["columns", "pairs"]
Pool = Literal["mean", "first"]


@member(cost="L**2", needs={"form, blocks": "upper!=0"})
def camtl(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    form: Form = "columns",
    blocks: int = 6,
    upper: int | None = None,
    frozen: int = 0,
    pattern: str = "Full()",
    length: int = 1024,
    kinds: int = 2,
    classes: tuple[int, ...] = (2, 2),
    pool: Pool = "mean",
    vocab: int = 256,
    dropout: float = 0.0,
) -> MultiTask:
    """Conditional attention for many tasks (Pilault et al., 2020, arXiv:2009.09139) with one encoder.

    Choose it over one `bert_classifier` per task if tasks are related or if some have few texts. The upper layers add
    learned blocks, on the diagonal, to the matrix of attention scores. The embedding of a row's task scales and shifts
    these blocks, and all layers share the task embeddings.

    Train with `--data multitask=FOLDER`, which has a file of labelled texts for each task. Rows are drawn by task size
    (`power`). `sampling=uncertainty`, as in the paper, takes the rows with the least certain predictions. This costs
    one extra forward pass over as many batches as there are tasks.

    Time grows as L^2 d, as in `bert`. A layer whose attention depends on the task computes L / blocks more numbers per
    token.

    d: width of the model and of the task embeddings.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    form: "columns" computes a scale and a shift for each column of a block, as in the authors' code. "pairs" computes
        them for each pair of tokens of a block, as in the paper.
    blocks: number of blocks into which `length` is cut; d / length in the authors' code, 6 at BERT's sizes.
    upper: number of layers, from the top, whose attention depends on the task; half of all layers if None.
    frozen: number of layers, from the bottom, that are not trained, like the embeddings below them. Use it with weights
        from another training (`--from`). The parts of these layers that depend on the task are still trained.
    pattern: expression for the tokens that each token reads, such as "Band(64)", in every layer.
    length: longest row in tokens.
    kinds: number of segment types.
    classes: number of classes of each task; the data set it.
    pool: vector of a row: "mean" averages its tokens, "first" takes an extra token of the model.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    Differences: this member has three parts of the paper: the attention, the sampling and one output matrix per
    task. All else is as in `bert`.
    """
    check_option("form", form, Form), check_at_least("depth", depth, 1)
    knowing = (depth + 1) // 2 if upper is None else check_whole_between("upper", upper, 0, depth)
    pooling = CLSPooler(d) if check_option("pool", pool, Pool) == "first" else MeanPooler()
    rows = length + pooling.own
    wiring = Wiring(d, heads, head_dim, "learned", rows, norm="post", dropout=dropout, eps=EPS)
    kind, biases = CAMTLByColumn if form == "columns" else CAMTL, list[ConditionalBlocks]()

    def attention(n: int) -> Attention:
        if n < depth - knowing:
            return wiring.attention(pattern, dropout=dropout)
        shared = biases[0].embedding if biases else None
        biases.append(kind(len(classes), d, rows, blocks, embedding=shared))
        mechanism = Softmax(parse(pattern), biases[-1], dropout=dropout, lse=False)
        return Attention(QKV(d, heads, head_dim=wiring.width), mechanism)

    body = wiring.stack(wiring.block(attention(n), MLP(d)) for n in range(depth))
    model = MultiTask(
        vocab,
        d,
        body,
        classes=classes,
        pooling=pooling,
        position=wiring.added_position(),
        scale=wiring.scale,
        kinds=kinds,
        eps=EPS,
        dropout=dropout,
    )
    _freeze(model, body, check_whole_between("frozen", frozen, 0, depth))
    return model


def _freeze(model: MultiTask, body: Stack, count: int) -> None:
    """Freeze the first `count` layers and the embeddings below them, except for the parts that distinguish tasks."""
    frozen = [] if not count else [model.embedding, model.position, model.kind, model.norm, *list(body.layers)[:count]]
    conditional = {id(p) for part in model.modules() if isinstance(part, ConditionalBlocks) for p in part.parameters()}
    for part in frozen:
        for parameter in () if part is None else part.parameters():
            parameter.requires_grad_(id(parameter) in conditional)


EXAMPLES = (
    lambda: camtl(d=8, depth=2, heads=2, blocks=4, length=40, classes=(3, 2), vocab=11),
    lambda: camtl(d=8, depth=1, heads=2, form="pairs", blocks=4, length=40, pool="first", vocab=11),
    lambda: camtl(
        d=8, depth=3, heads=2, blocks=4, upper=1, frozen=1, pattern="Band(3)", length=40, classes=(3, 2), vocab=11
    ),
)

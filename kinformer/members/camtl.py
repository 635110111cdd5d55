"""CAMTL: an encoder of several tasks whose upper layers attend by the task of a row."""

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


@member(needs={"form, blocks": "upper!=0"})
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
    """Conditional attention for many tasks (Pilault et al., 2020, arXiv:2009.09139): an encoder that all of them share.

    Choose it over a `bert_classifier` for each where tasks are related or some have few texts: `--data
    multitask=FOLDER`, a file of labelled texts for each task: rows are drawn by how many a task has (`power`), or, as
    in the paper, are those that the model is least sure of (`sampling=uncertainty`), for a forward more of as many
    batches as there are tasks. Upper layers add blocks to the scores that the task's embedding changes; all of them
    share the embeddings. Time grows as L^2 d, as `bert`'s does, and a layer that knows the task makes L / blocks
    numbers a token more. Of the paper's parts it has this attention, this sampling and a matrix for each task; all else
    is as in `bert`.

    d: the width of the model, and of task embeddings.
    depth: blocks of layers.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    form: "columns" changes the columns of a block, as the authors' code does, "pairs" each pair of it, as the paper.
    blocks: how many blocks the `length` is cut into; the code has d / length of them, 6 at BERT's sizes.
    upper: how many layers, from the top, know the task; half of them unless given.
    frozen: how many layers, from the bottom, are not trained, nor what is embedded beneath them: for weights that
        another training made (`--from`). What tells their tasks is trained.
    pattern: the expression of who reads whom, such as "Band(64)", in every layer.
    length: the longest row it can read.
    kinds: kinds of segments it tells apart.
    classes: how many each task has; the data says it.
    pool: one vector of a row, the "mean" over its tokens or the "first", a token of the model's own.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
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
    """Train no layer below this one, nor what is embedded, but what tells tasks."""
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

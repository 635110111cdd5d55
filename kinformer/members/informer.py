"""Informer: long series, forecast in one pass."""

from typing import Any, Literal

from kinformer.core.checks import check_at_least, check_option, check_whole_between
from kinformer.core.discover import member
from kinformer.core.layer import Layer
from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.wiring import Norms, Wiring
from kinformer.models.forecast import Forecast
from kinformer.nn.attention import Attention
from kinformer.nn.depth.distilled import Distilled
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.probsparse import Divisor, Measure, ProbSparse, Rest
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV

Kind = Literal["probsparse", "full"]


@member(
    recipe=Recipe(lr=5e-4, warmup=0.05),
    needs={
        "factor, measure, rest": "attention=probsparse",
        "divisor": "attention=probsparse and measure=sampled",
        "distil": "depth>1",
    },
)
def informer(
    channels: int = 7,
    targets: int | None = None,
    calendar: int = 5,
    context: int = 96,
    label: int = 48,
    horizon: int = 24,
    d: int = 128,
    depth: int = 2,
    decoder_depth: int = 1,
    heads: int = 8,
    head_dim: int | None = None,
    hidden: int | None = None,
    attention: Kind = "probsparse",
    factor: int = 5,
    measure: Measure = "sampled",
    divisor: Divisor = "sample",
    rest: Rest = "mean",
    distil: bool = True,
    replicas: int = 0,
    norm: Norms = "post",
    dropout: float = 0.05,
) -> Forecast:
    """Informer (Zhou et al., 2020, arXiv:2012.07436): `horizon` rows of a series from `context` known ones, at once.

    For `--data series=FILE.csv`, whose columns decide `channels`, `targets` and `calendar`. Encoder blocks read by
    ProbSparse attention, in which few queries read all and the others get a mean; between two of them the row is
    halved. The decoder reads the last `label` known rows and zeros where answers are wanted, by causal ProbSparse
    attention, then what the encoder made, by softmax. Choose it where known rows are many hundreds. On ETT a linear map
    of 96 known hours errs less (Zeng et al., 2023, arXiv:2205.13504): on test of ETTh1 a small one had a mean squared
    error of .49 at 24 hours and .77 at 96, least squares .31 and .38, and the last day again .42 and .51
    (bench/README.md). So look at `kinformer evaluate`, which tells all three. A step of training
    (width 256, batch 1, on a CPU) is 1.4 times as fast as with attention=full of 1,024 known rows, 5.1 times of 4,096.

    channels: numbers of a row.
    targets: how many of them are forecast, the last ones; all unless given.
    calendar: numbers that tell when a row was.
    context: rows that are known.
    label: how many of them, the last ones, the decoder reads again.
    horizon: rows that are forecast.
    d: the width of the model.
    depth: blocks of the encoder.
    decoder_depth: blocks of the decoder.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    hidden: the width between the matrices of a feed-forward; 4 d unless given.
    attention: "probsparse", or "full": softmax, what the paper compares with.
    factor: how many queries read all, and how many keys are sampled, in logarithms of the row.
    measure: how the queries that read all are chosen (`ProbSparse`).
    divisor: whether the mean of a query's scores is over the "sample" or, as in the authors' code, the "row".
    rest: what other queries of the decoder get, a "mean" or, as in the authors' code, the "sum" of values.
    distil: halve the row between encoder blocks.
    replicas: smaller encoders beside the first, as in the paper's stack: each of half the rows and a block less.
    norm: where the norm of a sublayer stands: "post" as in the paper, or "pre".
    dropout: the share of numbers dropped in training.

    The authors' code has d=512, 8 heads and 2,048 hidden; the small size is this library's. Its decoder reads the
    memory of heads as if it were that of tokens (`mix`), by which places are shuffled: that is left out. Rows are of
    one scale, each column by its mean and deviation in train.
    """
    wiring = Wiring(d, heads, head_dim, "sinusoidal", norm=norm, dropout=dropout)
    check_at_least("depth", depth, 1), check_at_least("decoder_depth", decoder_depth, 1)
    check_whole_between("replicas", replicas, 0, depth - 1)
    check_option("attention", attention, Kind)

    def mechanism(causal: bool, seed: int) -> Mechanism:
        if attention == "full":
            return Softmax(Causal() if causal else Full(), dropout=dropout, lse=False)
        return ProbSparse(
            causal=causal,
            factor=factor,
            measure=measure,
            divisor=divisor,
            rest=rest if causal else "mean",
            dropout=dropout,
            seed=seed,
        )

    def make_attention(causal: bool, seed: int) -> Attention:
        return Attention(QKV(d, heads, head_dim=head_dim), mechanism(causal, seed))

    def forward() -> Layer:
        return MLP(d, hidden)

    def encoder(rows: int) -> Distilled:
        blocks = [wiring.block(make_attention(False, 100 * rows + n), forward()) for n in range(rows)]
        return Distilled(blocks, wiring.stack(blocks).norm, distil=distil)

    decoder = [
        wiring.block(make_attention(True, n), wiring.attention(Full(), cross=True, dropout=dropout), forward())
        for n in range(decoder_depth)
    ]
    return Forecast(
        channels,
        [encoder(depth - n) for n in range(replicas + 1)],
        wiring.stack(decoder),
        context=context,
        label=label,
        horizon=horizon,
        calendar=calendar,
        targets=targets,
        position=wiring.added_position(),
        dropout=dropout,
    )


TINY: dict[str, Any] = {
    "channels": 2,
    "calendar": 0,
    "context": 8,
    "label": 4,
    "horizon": 3,
    "d": 16,
    "heads": 2,
    "hidden": 16,
    "factor": 1,
}
EXAMPLES = (
    lambda: informer(**TINY),
    lambda: informer(**{**TINY, "calendar": 5}, targets=1, replicas=1, divisor="row", rest="sum", norm="pre"),
    lambda: informer(
        channels=2, calendar=0, context=8, label=4, horizon=3, d=16, heads=2, attention="full", distil=False
    ),
    lambda: informer(**TINY, measure="max-mean"),
    lambda: informer(**TINY, measure="log-sum-exp"),
)

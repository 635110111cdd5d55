"""Informer: forecasts many rows of a time series in one pass."""

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
    cost="context * log(context) * factor",
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
    """Informer (Zhou et al., 2020, arXiv:2012.07436): a forecast of `horizon` time steps in one pass.

    Encoder blocks have ProbSparse attention: few queries read all keys, and the other queries get a mean. A row of the
    data is one time step. The sequence of rows is halved between two blocks. The decoder reads the last `label` known
    rows and a row of zeros for each row to forecast, with causal ProbSparse attention. It then reads the encoder's
    output with softmax attention.

    Choose it for many hundreds of known rows. On the ETT data, a linear map of 96 known hours has a smaller error (Zeng
    et al., 2022, arXiv:2205.13504). On the test data of ETTh1 a small Informer had a mean squared error of .49 at 24
    hours and .77 at 96. Least squares had .31 and .38, and repeating the last day had .42 and .51 (bench/README.md).
    `kinformer evaluate` reports the errors of all three. A training step (width 256, batch 1, on a CPU) is 1.4 times as
    fast as with attention="full" at 1,024 known rows, and 5.1 times at 4,096.

    channels: number of columns of a row; `--data series=FILE.csv` sets it, `targets` and `calendar` from its columns.
    targets: number of columns, the last ones, that are forecast; all if None.
    calendar: numbers that encode the time of a row.
    context: number of known rows.
    label: number of last known rows that the decoder also reads.
    horizon: number of rows that are forecast.
    d: model width.
    depth: number of encoder blocks.
    decoder_depth: number of decoder blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    hidden: width of the feed-forward layer; 4 d if None.
    attention: "probsparse", or "full" for softmax, the paper's baseline.
    factor: `factor` times the logarithm of the number of rows is the number of queries that read all keys, and of
        sampled keys.
    measure: criterion that selects the queries that read all keys (`ProbSparse`).
    divisor: divisor of the mean of a query's sampled scores in that criterion: their number ("sample"), or the number
        of rows ("row") as in the authors' code.
    rest: result of the decoder's other queries: "mean" of the values, or "sum" as in the authors' code.
    distil: halve the number of rows between encoder blocks.
    replicas: number of smaller encoders beside the first, as in the paper's stack; each has half the rows and one block
        less.
    norm: "post" as in the paper, or "pre".
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    Each column is scaled by its mean and standard deviation in the training data.

    Differences: the authors' code has d=512, 8 heads and 2,048 hidden units; the default size here is smaller. The
    decoder of that code (`mix`) reads the memory of heads as if its axis were tokens, which shuffles positions. This
    member leaves that out.
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

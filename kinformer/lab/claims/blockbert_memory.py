"""Each BlockBERT head reads 1/n of the pairs, and a training step with dropout saves memory."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.lab.claims.support.claim_models import patterns
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.cost.saved_bytes import saved_bytes
from kinformer.lab.plot import Plot, PlotLine
from kinformer.members.bert import bert
from kinformer.members.blockbert import blockbert
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention

BLOCKS, LENGTHS, ROWS = (2, 3), (512, 1024), 2  # the paper's blocks and lengths
SHORT = 256  # tokens of a row at which the fastest executor still computes all pairs
SIZES: dict[str, Any] = {"d": 192, "depth": 2, "heads": 12}
HEADS = {
    2: (10, 2),
    3: (8, 2, 2),
}  # heads, of 12, that read their own block, the next one, the one after that; as in the paper
DROPOUT = 0.1  # BERT's
LESS, ROUNDING = 1.0, 1e-10
SAYS = (
    "with n blocks heads read 1/n of the pairs, and from 512 tokens on a training step with dropout stores fewer bytes "
    "of activations than BERT. Without dropout, BERT's fused CPU kernel stores no matrix of pairs, so BlockBERT saves "
    "nothing"
)
SOURCE = "Qiu et al., 2019, arXiv:1911.02972, abstract (18.7 to 36.1% less memory) and section 3"
SCALE = (
    "BERT of 12 layers and width 768, rows of 512 and 1,024 tokens, on GPUs: 18.7 to 36.1% less memory. That memory "
    "includes weights and optimiser state; only activations are counted here"
)


def build_model(blocks: int, length: int, dropout: float = 0.0) -> MLM:
    """Build a `blockbert`, which splits attention into blocks, or a `bert` of equal size for one block.

    blocks: number of blocks of a row.
    length: tokens per row.
    dropout: dropout rate.
    """
    whole = {**SIZES, "length": length, "dropout": dropout}
    return bert(**whole) if blocks == 1 else blockbert(**whole, blocks=blocks)


def pairs(model: MLM, length: int) -> float:
    """Return the mean fraction of all token pairs that a head reads.

    model: model with attention layers of one pattern.
    length: tokens per row.
    """
    (pattern, *_) = patterns(model)
    return mean(float(pattern.matrix(length, h=head).double().mean()) for head in range(SIZES["heads"]))


def by_blocks(q: Float[Tensor, "B H T K"], k: Float[Tensor, "B H T K"], v: Float[Tensor, "B H T K"], n: int) -> Tensor:
    """Compute the paper's blockwise attention head by head and block by block, as a reference.

    Each head has a shift s: its block i of the queries attends to block (i + s) mod n of the keys.

    q: queries.
    k: keys.
    v: values.
    n: number of blocks.
    """
    shifts = [shift for shift, count in enumerate(HEADS[n]) for _ in range(count)]
    outputs = []
    for head, shift in enumerate(shifts):
        (qs, ks, vs) = (x[:, head].chunk(n, 1) for x in (q, k, v))
        order = [(i + shift) % n for i in range(n)]
        scores = [qs[i] @ ks[j].mT * q.shape[-1] ** -0.5 for i, j in enumerate(order)]
        outputs.append(torch.cat([s.softmax(-1) @ vs[j] for s, j in zip(scores, order, strict=True)], 1))
    return torch.stack(outputs, 1)


@torch.no_grad()
def attention_error(model: MLM, tokens: Int[Tensor, "B T"], blocks: int) -> float:
    """Return the largest difference between attention in a model and the paper's equation, in float64.

    model: BlockBERT; it is converted to float64.
    tokens: batch.
    blocks: number of blocks.
    """
    errors: list[float] = []

    def compare(_: nn.Module, inputs: Any, out: Any) -> None:
        queries, keys = inputs[:2]
        errors.append(float((out.y.y - by_blocks(queries.q, keys.k, keys.v, blocks)).abs().max()))

    model.double().eval()
    for part in model.modules():
        if isinstance(part, Attention):
            part.mechanism.register_forward_hook(compare)
    model.logits(tokens)
    return max(errors)


def claim(seeds: Sequence[int], blocks: Sequence[int] = BLOCKS, lengths: Sequence[int] = LENGTHS) -> Claim:
    """Compare the training memory of BlockBERT with BERT, and its attention with the paper's equation.

    Measured here, for n = 2 and n = 3 blocks. The bytes that a training step with dropout keeps for the backward pass,
    divided by BERT's, must be below 1 at every length. The share of token pairs that a head attends to must be 1/n
    within 1e-6. This library sets these conditions; the paper reports 18.7 to 36.1% less memory. The largest
    difference from the paper's equation must be at most 1e-10. The claim holds if all three conditions are met.

    The paper saves the memory of matrices with an entry for each token pair. BERT keeps these matrices if it trains
    with dropout, as in the paper. Without dropout its fused CPU kernel keeps none, so BlockBERT needs as much memory as
    BERT. The report has the bytes with and without dropout. In rows of 256 tokens the fastest executor of the member
    computes all pairs and masks them, so the member saves nothing there even with dropout.

    seeds: seeds of weights and rows for the distance.
    blocks: numbers of blocks.
    lengths: tokens per row.
    """
    shares: dict[int, dict[int, float]] = {n: {} for n in blocks}
    facts: dict[str, str] = {}
    with torch.random.fork_rng(devices=[]):
        for length in lengths:
            generator = torch.Generator().manual_seed(0)
            tokens = torch.randint(256, (ROWS, length), generator=generator)
            plain, dropping = (saved_bytes(build_model(1, length, dropout), tokens) for dropout in (0.0, DROPOUT))
            for n in blocks:
                shares[n][length] = saved_bytes(build_model(n, length, DROPOUT), tokens) / dropping
                facts[f"stored bytes divided by BERT's, without dropout, {n} blocks, rows of {length}"] = (
                    f"{saved_bytes(build_model(n, length), tokens) / plain:.3f}"
                )
        short = torch.randint(256, (ROWS, SHORT), generator=torch.Generator().manual_seed(0))
        whole = saved_bytes(build_model(1, SHORT, DROPOUT), short)
        for n in blocks:
            facts[f"stored bytes divided by BERT's, with dropout, {n} blocks, rows of {SHORT}"] = (
                f"{saved_bytes(build_model(n, SHORT, DROPOUT), short) / whole:.3f}"
            )
        facts["the paper's scale"] = SCALE
        least = min(lengths) // 6 * 6  # a whole number of blocks
        off: dict[int, list[float]] = {n: [] for n in blocks}
        for seed in seeds:
            torch.manual_seed(seed)
            rows = torch.randint(256, (1, least))
            for n in blocks:
                off[n].append(attention_error(build_model(n, least), rows, n))
        read = {n: pairs(build_model(n, least), least) for n in blocks}
    measures: list[Measure] = []
    for n in blocks:
        measures += [
            Measure(
                f"stored bytes divided by BERT's, with dropout, {n} blocks, rows of {length}", (share,), "most", LESS
            )
            for length, share in shares[n].items()
        ]
        measures.append(
            Measure(f"share of token pairs that a head reads, {n} blocks", (read[n],), "near", 1 / n, within=1e-6)
        )
        measures.append(Measure(f"largest difference from the paper's equation, {n} blocks", off[n], "most", ROUNDING))
    low, high = ([1 - less] * len(lengths) for less in (0.361, 0.187))
    lines = [
        *(PlotLine(lengths, [by[n] for n in lengths], f"{count} blocks", "o-") for count, by in shares.items()),
        PlotLine(lengths, high, "range of the paper", "-", "tab:blue", 0.15, (low, high)),
    ]
    plot = Plot(
        "bytes that a training step stores",
        "tokens per row",
        "stored bytes with dropout, divided by BERT's",
        lines,
        levels=((LESS, "BERT"),),
        log="x",
        ticks=lengths,
        ylim=(0, None),
    )
    return Claim(SAYS, SOURCE, tuple(measures), facts, (plot,))

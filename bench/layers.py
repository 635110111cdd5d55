"""Attention layers of long texts against those of other libraries, forward and backward, of equal sizes."""

import multiprocessing
import resource
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from interleave import Contender, optional, race, ready, report, setup_with_words
from torch import Tensor, nn

from kinformer import Attention
from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.maps.elu import ELU
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.global_softmax import GlobalSoftmax
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from kinformer.nn.mechanisms.lsh import LSH
from kinformer.nn.mechanisms.null_key import NullKey
from kinformer.nn.mechanisms.nystrom import Nystrom
from kinformer.nn.mechanisms.probsparse import ProbSparse
from kinformer.nn.mechanisms.routing_published import PublishedRouting
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.sinkhorn import Sinkhorn
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.sort_networks import PairNet
from kinformer.nn.mechanisms.talking_heads import MixHeads
from kinformer.nn.mechanisms.value_conv import ValueConv
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.published_random import PublishedRandom
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.shared_qk import SharedQK
from kinformer.nn.shorteners.conv_shortener import ConvShortener
from kinformer.nn.shorteners.linformer import Linformer

D, HEADS, LENGTHS = 256, 4, (1_024, 4_096, 16_384)
WIDTH = D // HEADS
MOST = 5.0  # seconds of a step, beyond which a contender is not asked at the next length
Make = Callable[[int], Callable[[Tensor], Tensor]]  # of a length


class Row(NamedTuple):
    """What is compared: kinformer's layer, those of others that compute the nearest to it, dense causal or not."""

    ours: Make
    alternatives: Mapping[str, Make | None]
    causal: bool = False
    lengths: tuple[int, ...] = LENGTHS


def ours(mechanism: Callable[[int], Mechanism], shared: bool = False, bias: bool = True) -> Make:
    """A layer of kinformer; without biases of q, k and v where the packages beside it have none."""

    def make(length: int) -> Callable[[Tensor], Tensor]:
        projection = SharedQK(D, HEADS) if shared else QKV(D, HEADS, bias=bias)
        layer = Attention(projection, mechanism(length)).train()
        return lambda x: layer(x).y

    return make


def bigbird(length: int) -> Mechanism:
    """Blocks of 64: three of a window, the first and the last one global, three drawn."""
    blocks = length // 64
    last = Tokens(tuple(range(length - 64, length)))
    near = Block(64, 1, 1) | PublishedRandom(3, 64, 0, first=1, window=1)
    assert blocks > 8
    return Softmax(near | Tokens(64) | last | Rows(64) | Rows(last.n))


def compressed(_: int) -> Mechanism:
    """Of three keys one, and one of no token."""
    return Shortened(
        Softmax(Causal(), lse=False), ConvShortener(3, WIDTH, heads=HEADS, tied=True), NullKey(HEADS, WIDTH)
    )


def routing(length: int) -> Mechanism:
    """Clusters of 128 tokens each."""
    return PublishedRouting(HEADS, WIDTH, length // 128, 128, null=True)


def longformer(hub: ModuleType) -> Make:
    def make(length: int) -> Callable[[Tensor], Tensor]:
        module = hub.models.longformer.modeling_longformer
        config = hub.LongformerConfig(
            hidden_size=D, num_attention_heads=HEADS, attention_window=[512], attention_probs_dropout_prob=0.0
        )
        layer, out = module.LongformerSelfAttention(config, 0).train(), nn.Linear(D, D)
        marked = torch.zeros(1, length)
        marked[:, 0] = 10_000.0
        return lambda x: out(layer(x, marked, marked < 0, marked > 0, True)[0])

    return make


def hub_bigbird(hub: ModuleType) -> Make:
    def make(length: int) -> Callable[[Tensor], Tensor]:
        module = hub.models.big_bird.modeling_big_bird
        config = hub.BigBirdConfig(
            hidden_size=D,
            num_attention_heads=HEADS,
            block_size=64,
            num_random_blocks=3,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=length,
        )
        layer, out = module.BigBirdBlockSparseAttention(config, seed=0).train(), nn.Linear(D, D)
        blocked, band, rows, columns = module.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), 64)
        return lambda x: out(layer(x, band, rows, columns, blocked, blocked)[0])

    return make


def hub_reformer(hub: ModuleType) -> Make:
    def make(length: int) -> Callable[[Tensor], Tensor]:
        module = hub.models.reformer.modeling_reformer
        config = hub.ReformerConfig(
            hidden_size=D,
            num_attention_heads=HEADS,
            attention_head_size=WIDTH,
            lsh_attn_chunk_length=64,
            num_buckets=64,
            num_hashes=1,
            is_decoder=True,
            lsh_attention_probs_dropout_prob=0.0,
        )
        layer, out = module.LSHSelfAttention(config).train(), nn.Linear(D, D)
        return lambda x: out(layer(x).hidden_states)

    return make


def hub_nystrom(hub: ModuleType) -> Make:
    def make(length: int) -> Callable[[Tensor], Tensor]:
        module = hub.models.nystromformer.modeling_nystromformer
        config = hub.NystromformerConfig(
            hidden_size=D,
            num_attention_heads=HEADS,
            num_landmarks=64,
            conv_kernel_size=33,
            segment_means_seq_len=length,
            attention_probs_dropout_prob=0.0,
        )
        layer, out = module.NystromformerSelfAttention(config).train(), nn.Linear(D, D)
        return lambda x: out(layer(x)[0])

    return make


def hub_informer(hub: ModuleType) -> Make:
    def make(_: int) -> Callable[[Tensor], Tensor]:
        layer = hub.models.informer.modeling_informer.InformerProbSparseAttention(D, HEADS).train()
        return lambda x: layer(x)[0]

    return make


def packaged(package: str, make: Callable[[ModuleType, int], nn.Module], first: bool = False) -> Make | None:
    """A layer of a package; `first` where it returns more than what it read."""
    module = optional(package, f"pip install {package.replace('_', '-')}")
    if module is None:
        return None

    def call(length: int) -> Callable[[Tensor], Tensor]:
        layer = make(module, length).train()
        return (lambda x: layer(x)[0]) if first else layer

    return call


def peers() -> dict[str, Make | None]:
    """Layers of other libraries, None where one is not installed."""
    hub = optional("transformers", "make setup")
    local = packaged(
        "local_attention",
        lambda m, _: m.transformer.LocalMHA(dim=D, window_size=256, dim_head=WIDTH, heads=HEADS, causal=True),
    )
    linear, whole = (
        packaged(
            "linear_attention_transformer",
            lambda m, _, blind=blind: m.linear_attention_transformer.SelfAttention(
                D, HEADS, causal=True, blindspot_size=blind
            ),
        )
        for blind in (64, 1)
    )
    return {
        **(
            {}
            if hub is None
            else {
                "transformers Longformer": longformer(hub),
                "transformers BigBird": hub_bigbird(hub),
                "transformers Reformer": hub_reformer(hub),
                "transformers Nystromformer": hub_nystrom(hub),
                "transformers Informer": hub_informer(hub),
            }
        ),
        "local-attention": local,
        "linear-attention-transformer": whole,
        "linear-attention-transformer, without the last 64 tokens": linear,
        "reformer-pytorch": packaged(
            "reformer_pytorch", lambda m, _: m.LSHSelfAttention(D, heads=HEADS, bucket_size=64, n_hashes=1, causal=True)
        ),
        "performer-pytorch": packaged(
            "performer_pytorch", lambda m, _: m.SelfAttention(D, heads=HEADS, dim_head=WIDTH, nb_features=256)
        ),
        "linformer": packaged(
            "linformer", lambda m, n: m.LinformerSelfAttention(D, n, k=256, heads=HEADS, dim_head=WIDTH)
        ),
        "nystrom-attention": packaged(
            "nystrom_attention", lambda m, _: m.NystromAttention(D, dim_head=WIDTH, heads=HEADS, num_landmarks=64)
        ),
        "memory-compressed-attention": packaged(
            "memory_compressed_attention", lambda m, _: m.MemoryCompressedAttention(D, heads=HEADS, causal=True)
        ),
        "sinkhorn-transformer": packaged(
            "sinkhorn_transformer",
            lambda m, n: m.sinkhorn_transformer.SinkhornSelfAttention(D, 64, n, heads=HEADS, causal=True),
        ),
        "routing-transformer": packaged(
            "routing_transformer",
            lambda m, n: m.routing_transformer.SelfAttention(D, 1, n, HEADS, 0, 128, causal=True, rel_pos_emb=False),
            first=True,
        ),
        "x-transformers": packaged(
            "x_transformers",
            lambda m, _: m.x_transformers.Attention(
                D, dim_head=WIDTH, heads=HEADS, causal=True, pre_talking_heads=True, post_talking_heads=True
            ),
        ),
    }


def rows() -> dict[str, Row]:
    """All that is compared, by what it is."""
    of = peers()

    def row(mine: Make, *names: str, causal: bool = False, lengths: tuple[int, ...] = LENGTHS) -> Row:
        return Row(mine, {name: of.get(name) for name in names}, causal, lengths)

    return {
        "window of 256 either side, one global token": row(
            ours(lambda _: GlobalSoftmax(Band(256) | Tokens(1), Rows(1))), "transformers Longformer"
        ),
        "BigBird, blocks of 64": row(ours(bigbird), "transformers BigBird"),
        "LSH, 64 buckets, one round, causal": row(
            ours(lambda _: LSH(HEADS, WIDTH, 64), shared=True), "transformers Reformer", "reformer-pytorch", causal=True
        ),
        "own block of 256 and the one before, causal": row(
            ours(lambda _: Softmax(Causal() & Block(256, 1))), "local-attention", causal=True
        ),
        "FAVOR+, 256 features": row(
            ours(lambda _: FullLinearAttention(FAVOR(WIDTH, 256)), bias=False), "performer-pytorch"
        ),
        "linear, causal": row(
            ours(lambda _: LinearAttention(ELU()), bias=False),
            "linear-attention-transformer",
            "linear-attention-transformer, without the last 64 tokens",
            causal=True,
        ),
        "Linformer, 256 mixtures": row(
            ours(lambda n: Shortened(Softmax(Full(), lse=False), Linformer(n, 256)), bias=False), "linformer"
        ),
        "Nystrom, 64 landmarks, a convolution of 33": row(
            ours(lambda _: Nystrom(64, skip=ValueConv(HEADS, 33)), bias=False),
            "nystrom-attention",
            "transformers Nystromformer",
        ),
        "keys compressed by 3, causal": row(ours(compressed, bias=False), "memory-compressed-attention", causal=True),
        "ProbSparse, factor 5": row(ours(lambda _: ProbSparse(factor=5)), "transformers Informer"),
        "Sinkhorn, blocks of 64, causal": row(
            ours(lambda _: Sinkhorn(64, PairNet(WIDTH), iterations=0)), "sinkhorn-transformer", causal=True
        ),
        "routing, clusters of 128, causal": row(ours(routing), "routing-transformer", causal=True),
        "talking heads, causal": row(
            ours(lambda _: Explicit(Causal(), before=MixHeads(HEADS), after=MixHeads(HEADS))),
            "x-transformers",
            causal=True,
            lengths=LENGTHS[:2],  # the next one's weights are 4 GB
        ),
    }


def contenders(row: Row) -> dict[str, Make]:
    """Ours first, the others, and dense attention."""
    dense = ours(lambda _: Softmax(Causal() if row.causal else Full(), lse=False))
    return {
        "kinformer": row.ours,
        **{n: make for n, make in row.alternatives.items() if make is not None},
        "dense": dense,
    }


def call(make: Make, length: int) -> Callable[[], object]:
    layer, x = make(length), torch.randn(1, length, D, requires_grad=True)
    return lambda: layer(x).sum().backward()


def step(make: Make, length: int) -> Contender:
    return ready(call(make, length))


def peak_memory(make: Make, length: int) -> float:
    """Megabytes that the first step takes at its peak beyond what stood before, in a process of its own."""
    mine, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_first, args=(make, length, theirs))
    process.start()
    theirs.close()
    try:
        return float(mine.recv())
    finally:
        process.join()


def _first(make: Make, length: int, to: Connection) -> None:
    took = call(make, length)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    took()
    to.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 - before / 1e6)


def memory(chosen: Mapping[str, Row]) -> None:
    """A table of peaks. Before any step of this process, whose threads its children would not have."""
    names = [f"{n:,}" for n in LENGTHS]
    print(f"| MB at the peak of a step | by | {' | '.join(names)} |" + "\n|---|---" + "|---" * len(names) + "|")
    for label, row in chosen.items():
        for name, make in contenders(row).items():
            peaks = (f"{peak_memory(make, n):,.0f}" if n in row.lengths else "" for n in LENGTHS)
            print(f"| {label} | {name} | {' | '.join(peaks)} |", flush=True)
    print()


def main() -> None:
    shapes = f"float32, batch 1, width {D}, {HEADS} heads, no dropout, projections included."
    rounds, words = setup_with_words(f"{__doc__} {shapes}", "words of the rows that are asked for")
    chosen = {label: row for label, row in rows().items() if not words or any(word in label for word in words)}
    memory(chosen)
    for label, row in chosen.items():
        slow: set[str] = set()
        for length in row.lengths:
            asked_for = {name: step(make, length) for name, make in contenders(row).items() if name not in slow}
            seconds = race(asked_for, rounds)
            report(f"{label}, {length:,}", seconds, length)
            slow |= {name for name, took in seconds.items() if min(took) > MOST}


if __name__ == "__main__":
    main()

"""Attention layers of long texts against those of other libraries, forward and backward, of equal sizes."""

from collections.abc import Callable
from types import ModuleType

import torch
from interleave import Contender, optional, race, ready, report, setup
from torch import Tensor, nn

from kinformer import Attention
from kinformer.core.mechanism import Mechanism
from kinformer.maps.elu import ELU
from kinformer.maps.favor import FAVOR
from kinformer.mechanisms.global_softmax import GlobalSoftmax
from kinformer.mechanisms.linear import LinearAttention
from kinformer.mechanisms.linear_full import FullLinearAttention
from kinformer.mechanisms.lsh import LSH
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.band import Band
from kinformer.patterns.block import Block
from kinformer.patterns.causal import Causal
from kinformer.patterns.published_random import PublishedRandom
from kinformer.patterns.rows import Rows
from kinformer.patterns.tokens import Tokens
from kinformer.projections.qkv import QKV
from kinformer.projections.shared_qk import SharedQK

D, HEADS, LENGTHS = 256, 4, (4_096, 16_384)
WIDTH = D // HEADS
Make = Callable[[int], Callable[[Tensor], Tensor]]


def ours(mechanism: Callable[[int], Mechanism], shared: bool = False) -> Make:
    def make(length: int) -> Callable[[Tensor], Tensor]:
        layer = Attention((SharedQK if shared else QKV)(D, HEADS), mechanism(length)).train()
        return lambda x: layer(x).y

    return make


def bigbird(length: int) -> Mechanism:
    """Blocks of 64: three of a window, the first and the last one global, three drawn."""
    blocks = length // 64
    last = Tokens(tuple(range(length - 64, length)))
    near = Block(64, 1, 1) | PublishedRandom(3, 64, 0, first=1, window=1)
    assert blocks > 8
    return Softmax(near | Tokens(64) | last | Rows(64) | Rows(last.n))


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
            hidden_size=D, num_attention_heads=HEADS, block_size=64, num_random_blocks=3,
            attention_probs_dropout_prob=0.0, max_position_embeddings=length,
        )  # fmt: skip
        layer, out = module.BigBirdBlockSparseAttention(config, seed=0).train(), nn.Linear(D, D)
        blocked, band, rows, columns = module.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), 64)
        return lambda x: out(layer(x, band, rows, columns, blocked, blocked)[0])

    return make


def hub_reformer(hub: ModuleType) -> Make:
    def make(length: int) -> Callable[[Tensor], Tensor]:
        module = hub.models.reformer.modeling_reformer
        config = hub.ReformerConfig(
            hidden_size=D, num_attention_heads=HEADS, attention_head_size=WIDTH, lsh_attn_chunk_length=64,
            num_buckets=64, num_hashes=1, is_decoder=True, lsh_attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        layer, out = module.LSHSelfAttention(config).train(), nn.Linear(D, D)
        return lambda x: out(layer(x).hidden_states)

    return make


def packaged(package: str, make: Callable[[ModuleType], nn.Module]) -> Make | None:
    module = optional(package, f"pip install {package.replace('_', '-')}")
    return None if module is None else (lambda _: make(module).train())


def pairs() -> dict[str, tuple[Make, dict[str, Make | None]]]:
    """What is compared: kinformer's layer, and those of others that compute the nearest to it."""
    hub = optional("transformers", "make setup")
    of_hub: dict[str, Make | None] = {} if hub is None else {"longformer": longformer(hub), "bigbird": hub_bigbird(hub)}
    local = packaged(
        "local_attention",
        lambda m: m.transformer.LocalMHA(dim=D, window_size=256, dim_head=WIDTH, heads=HEADS, causal=True),
    )
    lsh = packaged(
        "reformer_pytorch", lambda m: m.LSHSelfAttention(D, heads=HEADS, bucket_size=64, n_hashes=1, causal=True)
    )
    performer = packaged(
        "performer_pytorch", lambda m: m.SelfAttention(D, heads=HEADS, dim_head=WIDTH, nb_features=256)
    )
    linear = packaged(
        "linear_attention_transformer",
        lambda m: m.linear_attention_transformer.SelfAttention(D, HEADS, causal=True, blindspot_size=64),
    )
    return {
        "window of 256 either side, one global token": (
            ours(lambda _: GlobalSoftmax(Band(256) | Tokens(1), Rows(1))),
            {"transformers Longformer": of_hub.get("longformer")},
        ),
        "BigBird, blocks of 64": (ours(bigbird), {"transformers BigBird": of_hub.get("bigbird")}),
        "LSH, 64 buckets, one round, causal": (
            ours(lambda _: LSH(HEADS, WIDTH, 64), shared=True),
            {"transformers Reformer": None if hub is None else hub_reformer(hub), "reformer-pytorch": lsh},
        ),
        "own block of 256 and the one before, causal": (
            ours(lambda _: Softmax(Causal() & Block(256, 1))), {"local-attention": local},
        ),
        "FAVOR+, 256 features": (
            ours(lambda _: FullLinearAttention(FAVOR(WIDTH, 256))), {"performer-pytorch": performer},
        ),
        "linear, causal": (
            ours(lambda _: LinearAttention(ELU())), {"linear-attention-transformer": linear},
        ),
    }  # fmt: skip


def step(make: Make, length: int) -> Contender:
    call, x = make(length), torch.randn(1, length, D, requires_grad=True)
    return ready(lambda: call(x).sum().backward())


def main() -> None:
    rounds = setup(f"{__doc__} float32, batch 1, width {D}, {HEADS} heads, no dropout, projections included.")
    for length in LENGTHS:
        for what, (mine, others) in pairs().items():
            contenders = {"kinformer": step(mine, length)}
            contenders |= {name: step(make, length) for name, make in others.items() if make is not None}
            report(f"{what}, {length:,}", race(contenders, rounds), length)


if __name__ == "__main__":
    main()

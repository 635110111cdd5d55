"""Sinkhorn: attention of each block to itself and to a block that a learned soft permutation selects."""

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.attend import read
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.autocast import at_least_float32
from kinformer.core.checks import (
    check_at_least,
    check_flag,
    check_in_range,
    check_option,
    check_part,
    check_probability,
    check_scale,
)
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.kv_cache import KV
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.token_positions import check_in_order
from kinformer.nn.mechanisms.repeatable_chance import Chance
from kinformer.nn.mechanisms.sort_networks import BlockNet, PairNet, SortNet, balance_causally, balance_matrix
from kinformer.nn.mechanisms.token_blocks import TokenBlocks
from kinformer.nn.patterns.block import Block

Pool = Literal["sum", "mean"]
Together = Literal["joint", "apart"]


class Sinkhorn(KeyValueMechanism):
    """Softmax attention of block n over its own keys and over a mixture of blocks, sum_m S_nm block_m.

    S = Sinkhorn((R + noise) / temperature), R_n = sorting network(block n)

    Choose it if a block should find one other, distant block by content. Choose it over LSH and routing if gradients
    should train the choice of the block. R holds logits, and S soft permutations of blocks, which are nearly hard at a
    low temperature. Keys and values at the same place of their blocks are mixed. The cost per row is L * 2 block pairs,
    L^2 / block for the mixture, and (L / block)^2 for S.

    Encoders read blocks in both directions, and S is doubly stochastic over all blocks of the row. With causal=True,
    block n mixes only earlier blocks. Its logits use tokens up to its own first token, and balancing sums the columns
    of S only down to its own row. No query depends on a later token, so it can be decoded with a cache of keys. The
    first block has nothing to mix. With more iterations, causal balancing approaches the only causal permutation, the
    block before. `iterations=0` is a softmax over earlier blocks, as in the sinkhorn-transformer package (P. Wang,
    2020).

    block: number of tokens in a block.
    net: sorting network. `BlockNet(width, blocks)`, from the paper, has learned weights for each of a fixed number of
        blocks. `PairNet(width)` takes any number of blocks and compares their content.
    causal: True hides all later tokens.
    iterations: number of balancing steps; 5 to 10 gave the best results in the paper.
    temperature: temperature of the logits; 0.75 in the paper.
    noise: True adds Gumbel noise in training, which brings the weights in S nearer to 0 and 1. Each step and row has
        its own noise. In an `Agent` (reinforcement learning), all rows share the noise.
    pool: pooling of the tokens of a block: "sum", as in the paper, or "mean". If causal, it pools all tokens from the
        start of the row to the first token of the block.
    cut: number of blocks for SortCut, in encoders only: every query reads only the first `cut` blocks of the sorted
        row.
    near: True with a cut also reads the query's own block, as in the sinkhorn-transformer package.
    softmax: "joint" takes one softmax over the keys of both blocks, as in the package. With "apart" each block has its
        own softmax and the outputs are added, as in the first author's code of Long Range Arena (2021). The output then
        has no lse (log-sum-exp).
    mixture: True adds the output of dense attention with the same queries, keys and values; there is then no lse.
    scale: factor of the dot product; 1/sqrt(k_dim) by default.
    dropout: fraction of attention weights that training drops.
    seed: seed of the noise.

    Errors: NoState (no decoding state exists) from `start` unless causal; ValueError without `ctx.run`, with
    `ctx.only` and `ctx.also`, for keys of another sequence, and for a row with more blocks than a BlockNet knows.

    Source: Tay et al., 2020, arXiv:2002.11296.

    Differences: the text of the paper was not available when this was written. The first author's later code adds two
    softmaxes, has no mixture, and sums the tokens of a block and, if causal, the tokens before it. That code uses a
    softmax instead of balancing by default, and its causal balancing does not run. This library therefore follows its
    own reading in three points: one softmax over both blocks (the paper's equation has a row of scores for each), the
    sum in `mixture`, and the rows and columns of causal balancing.
    """

    received_attention = Mechanism.received_attention  # a mixture of blocks has no single attention matrix

    def __init__(
        self,
        block: int,
        net: SortNet,
        *,
        causal: bool = True,
        iterations: int = 7,
        temperature: float = 0.75,
        noise: bool = True,
        pool: Pool = "sum",
        cut: int | None = None,
        near: bool = False,
        softmax: Together = "joint",
        mixture: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
        seed: int = 0,
    ):
        super().__init__()
        self.block = check_at_least("block", block, 1)
        self.net = check_part("net", net, SortNet, "a sorting network, such as PairNet(8)")
        self.pattern = Causal() if check_flag("causal", causal) else Full()
        self.iterations = check_at_least("iterations", iterations, 0)
        self.chance = Chance(seed) if check_flag("noise", noise) else None
        self.temperature = check_in_range("temperature", temperature, 1e-6, torch.inf, open_end=True)
        self.pool, self.mixture = check_option("pool", pool, Pool), check_flag("mixture", mixture)
        self.cut = None if cut is None else check_at_least("cut", cut, 1)
        if causal and cut is not None:
            raise ValueError(f"cut={cut} needs causal=False, because with a cut every block reads later blocks")
        if check_flag("near", near) and cut is None:
            raise ValueError(
                "near=True has no effect without cut=, because each block then always reads itself. Leave it out"
            )
        self.near = near
        self.apart = check_option("softmax", softmax, Together) == "apart"
        if self.apart and cut is not None:
            raise ValueError(
                "softmax='apart' separates the own block from the sorted one and cannot be used with cut=. Leave "
                "one of them out"
            )
        self.scale, self.dropout = check_scale(scale), check_probability("dropout", dropout)
        self.lse = not (mixture or self.apart)

    @property
    def causal(self) -> bool:
        """True if no query reads a later token."""
        return isinstance(self.pattern, Causal)

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        if sizes.cross:
            raise ValueError(
                "Sinkhorn cannot be used in cross-attention: it sorts the blocks of the queries' own sequence. Use "
                "Softmax"
            )
        return {"sort": ExtraProjection(self.net.width)}

    def start(self, spec: StateSpec, sizes: HeadSizes) -> KV:
        if not self.causal:
            raise NoState(
                "Sinkhorn(causal=False) has no state: it sorts all blocks of the row at once. Use Sinkhorn(..., "
                "causal=True), or generate(..., recompute=True)"
            )
        self.net.refuse(spec.length, self.block)
        return super().start(spec, sizes)

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        check_in_order(ctx, "Sinkhorn")
        if keys is None or not keys.own:
            raise ValueError(
                "Sinkhorn sorts the blocks of one sequence, but got no keys or keys of another sequence. Use Softmax"
            )
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                "ctx.only and ctx.also limit single tokens, but Sinkhorn mixes whole blocks. Leave out both"
            )
        if not torch.compiler.is_compiling():
            ctx.memo.get(lambda: self._refuse(ctx), "blocks known", ctx.pos, self.net)
        return queries, keys

    def read(self, request: Request) -> Out[AttentionOutput]:
        query_blocks, key_blocks = (
            request.memo.get(partial(self.blocks_of, pos), "token blocks", pos, self.block)
            for pos in (request.queries.pos, request.keys.pos)
        )
        sort = self.sorting(request.keys.extras["sort"], key_blocks)
        output = (
            self._read_first_blocks(request, key_blocks, sort)
            if self.cut
            else self._read_by_blocks(request, query_blocks, key_blocks, sort)
        )
        if self.near:
            output = merge(output, read(request.replace(pattern=Block(self.block), lse=True)))
        if self.mixture:
            output = AttentionOutput(output.y + read(request.replace(lse=False)).y, None)
        return Out(output)

    def sorting(self, side: Float[Tensor, "B G S w"], blocks: TokenBlocks) -> Float[Tensor, "B G N N"]:
        """Return S, the weights of each block m in the mixture for each block n, [B, G, N, N].

        side: extra projection of the tokens for the sorting network, [B, G, S, w].
        blocks: tokens of the row in blocks.
        """
        pooled = self.pool_blocks(at_least_float32(side), blocks)
        logits = at_least_float32(self.net(pooled, blocks.number))
        if self.training and self.chance is not None:
            head, number = torch.arange(logits.shape[1], device=logits.device), blocks.number[:, None]
            # rows differ in the pooled vector, on which block n may depend
            row = self.chance.row_bits(pooled)[..., :, None]
            noise = self.chance.gumbel(head[:, None, None], number[..., :, None], number[..., None, :], row)
            logits = logits + noise.to(logits.dtype)
        balance = balance_causally if self.causal else balance_matrix
        return balance(logits / self.temperature, blocks.is_real.any(-1), self.iterations)

    def pool_blocks(self, side: Float[Tensor, "B G S w"], blocks: TokenBlocks) -> Float[Tensor, "B G N w"]:
        """Return one vector for each block: the sum or mean of its tokens.

        If causal, it pools the tokens of all earlier blocks and the first token of the block.

        side: extra projection of the tokens, [B, G, S, w].
        blocks: tokens of the row in blocks.
        """
        each, real = blocks.split_into_blocks(side), blocks.is_real[:, None, :, :, None].to(side.dtype)

        def sum_tokens(x: Tensor) -> Tensor:
            whole = x.sum(3)
            # not a difference of sums: rounding would let a large later token of the block change the result
            return F.pad(whole, (0, 0, 1, 0))[:, :, :-1].cumsum(2) + x[:, :, :, 0] if self.causal else whole

        total = sum_tokens(each)
        return total if self.pool == "sum" else total / sum_tokens(real).clamp_min(1)

    def _refuse(self, ctx: Context) -> None:
        if isinstance(self.net, BlockNet) and ctx.pos.numel():
            self.net.refuse(ctx.memo.look(ctx.pos.amax())[0] + 1, self.block)

    def blocks_of(self, pos: Int[Tensor, "B 1 S"]) -> TokenBlocks:
        """Return the tokens at positions `pos`, grouped into blocks of consecutive positions."""
        return TokenBlocks.from_positions(pos[:, 0], self.block)

    def _read_by_blocks(
        self, request: Request, query_blocks: TokenBlocks, key_blocks: TokenBlocks, sort: Tensor
    ) -> AttentionOutput:
        """Read each block of queries with its own keys and its mixture, as rows of a larger batch."""
        count = query_blocks.column.shape[1]
        if not count or not key_blocks.column.shape[1]:
            return read(request)
        last = key_blocks.column.shape[1] - 1
        own_block = (query_blocks.number - key_blocks.first[:, None]).clamp(0, last)  # [B M] of N
        rows = sort.to(request.keys.k.dtype).take_along_dim(own_block[:, None, :, None], 2)
        is_mixed = self._is_mixed(key_blocks).take_along_dim(own_block[..., None], 1)
        # a mixture takes positions one block before its queries, or beyond the row: any that the pattern allows
        place = (
            query_blocks.positions - self.block
            if self.causal
            else query_blocks.positions + self.block * (key_blocks.number[:, -1:, None] + 1)
        )
        k_pos = place.masked_fill(~is_mixed, -1), _positions_of_blocks(key_blocks, key_blocks.positions, own_block)

        def keys(x: Float[Tensor, "B G S n"]) -> tuple[Float[Tensor, "B G M l n"], Float[Tensor, "B G M l n"]]:
            blocks = key_blocks.split_into_blocks(x)
            mixed = torch.einsum("bgmn,bgnlk->bgmlk", rows, blocks)
            return mixed, blocks.take_along_dim(own_block[:, None, :, None, None], 2)

        q = query_blocks.split_into_blocks(request.queries.q).transpose(1, 2).flatten(0, 1)  # [B*M H l K]
        q_pos = query_blocks.positions.masked_fill(~query_blocks.is_real, -1).flatten(0, 1)[:, None]
        batch = torch.arange(len(sort), device=q.device).repeat_interleave(count)
        queries = Queries(q, q_pos, head=request.queries.head)
        parts = list(zip(keys(request.keys.k), keys(request.keys.v), k_pos, strict=True))
        if not self.apart:
            (k, v, pos), (near_k, near_v, near_pos) = parts
            parts = [(torch.cat([k, near_k], 3), torch.cat([v, near_v], 3), torch.cat([pos, near_pos], 2))]
        outputs = []
        for k, v, pos in parts:
            k, v = (x.transpose(1, 2).flatten(0, 1) for x in (k, v))
            block_keys = Keys(k, v, pos.flatten(0, 1)[:, None])
            of_blocks = read(_block_request(request, queries, block_keys, batch))
            assert of_blocks.lse is not None
            y, lse = (x.unflatten(0, (-1, count)).transpose(1, 2) for x in (of_blocks.y, of_blocks.lse[..., None]))
            outputs.append(AttentionOutput(query_blocks.spread(y), query_blocks.spread(lse, -torch.inf)[..., 0]))
        return outputs[0] if len(outputs) == 1 else AttentionOutput(outputs[0].y + outputs[1].y, None)

    def _read_first_blocks(self, request: Request, key_blocks: TokenBlocks, sort: Tensor) -> AttentionOutput:
        """Read the first blocks of the sorted row with all queries."""
        sort = sort[:, :, : self.cut].to(request.keys.k.dtype)
        is_mixed = self._is_mixed(key_blocks)[:, : self.cut]
        place = torch.arange(is_mixed[0].numel(), device=is_mixed.device).expand(len(is_mixed), -1)
        pos = place.masked_fill(~is_mixed.flatten(1), -1)[:, None]
        k, v = (
            torch.einsum("bgmn,bgnlk->bgmlk", sort, key_blocks.split_into_blocks(x)).flatten(2, 3)
            for x in request.keys[:2]
        )
        return read(_block_request(request, request.queries, Keys(k, v, pos), None))

    def _is_mixed(self, blocks: TokenBlocks) -> Bool[Tensor, "B N l"]:
        """Return the places of a mixture that hold a token of any of its blocks."""
        real = blocks.is_real
        if not self.causal:
            return real.any(1, keepdim=True) & real.any(2, keepdim=True)
        count = real.cumsum(1)
        return (count - real.to(count.dtype)) > 0


def _positions_of_blocks(blocks: TokenBlocks, values: Tensor, number: Tensor) -> Tensor:
    """Return the positions of the tokens of some blocks; -1 for empty places."""
    return values.masked_fill(~blocks.is_real, -1).take_along_dim(number[..., None], 1)


def _block_request(request: Request, queries: Queries, keys: Keys, rows: Tensor | None) -> Request:
    """Return a request for other keys, with positions that are not positions of the row."""
    return request.regroup(queries=queries, keys=keys, rows=rows, lse=True)


_APART = {"merge": "a key is a mixture of blocks, so two halves of a row have other keys than the whole row"}

EXAMPLES = (
    Example(lambda: Sinkhorn(3, BlockNet(4, 20)), _APART),
    Example(lambda: Sinkhorn(2, PairNet(3), pool="mean", iterations=0, mixture=True), _APART),
    Example(lambda: Sinkhorn(3, BlockNet(4, 12), causal=False), _APART),
    Example(lambda: Sinkhorn(2, PairNet(3), softmax="apart"), _APART),
    Example(lambda: Sinkhorn(2, PairNet(3), causal=False, cut=2, pool="mean"), _APART),
    Example(lambda: Sinkhorn(2, PairNet(3), causal=False, cut=1, near=True, iterations=2), _APART),
)

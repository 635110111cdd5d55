"""Executor flex: PyTorch's FlexAttention, compiled on CUDA.

It skips the blocks of pairs that a pattern's `cover` excludes. It runs only if a test or a user names it. On a CPU,
PyTorch has no backward of FlexAttention, and its eager forward computes all pairs, 8 to 22 times slower than dense
attention. On CUDA it was tested once, with PyTorch 2.11 on an H200. There, 9 of 13 patterns agreed with the reference
in outputs, lse and gradients. Three did not compile, and a random pattern gave wrong results. So `auto` does not
choose it. It can be fast there: a causal window of 512 over 16,384 tokens, forward and backward in bfloat16 (2 rows,
12 heads of width 64), took 9 ms, and 27 ms with `sdpa`.

Source: Dong et al., 2024, arXiv:2412.05496.
"""

import functools
import importlib.util
import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import _C, Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from kinformer.attend.pattern_parts import PatternPart, parts
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.bias import at
from kinformer.core.heads import cut
from kinformer.core.layout import Dense, GatheredKeys, Residue
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product

ON_CPU = 2.2e-10  # seconds per pair and number of a head's width; dense attention takes 1e-11
EAGER = 1e-2  # constant seconds of a read on a CPU
BLOCK, GRID = 128, 1 << 22  # tokens of a block; most blocks of pairs: longer rows have larger blocks
MERGED = 4  # blocks of pairs that take as long as gathering, scattering and merging a query block of one part
FAR = 1 << 31  # larger than every position
GRAPHS = 64  # one per pattern, bias and shape, because symbolic numbers of a pattern did not compile
compiled = functools.cache(functools.partial(torch.compile, fullgraph=True, dynamic=False))


class FlexCall(NamedTuple):
    """One call of PyTorch's FlexAttention: its blocks of pairs and the order of its tokens.

    mask: FlexAttention's mask, which lists the blocks of pairs to compute.
    many: number of these blocks over all rows and heads, as a tensor.
    q: order of the queries [#B, T], or None if it is unchanged.
    k: order of the keys [#B, S], or None if it is unchanged.
    """

    mask: BlockMask
    many: Tensor
    q: Int[Tensor, "#B T"] | None
    k: Int[Tensor, "#B S"] | None


def estimation_time(request: Request) -> float:
    """Return the seconds that `cost` itself takes, because it inspects the bias of a `request`."""
    return 5e-5


def cost(request: Request) -> float | Refusal:
    """Return the estimated seconds of FlexAttention for a request, or a Refusal.

    request: the attention call. The estimate on CUDA is infinite, so that `auto` chooses another executor.
    """
    queries, keys, bias = request.queries, request.keys, request.bias
    q, k, v = queries.q, keys.k, keys.v
    cuda, narrow, learns = q.device.type == "cuda", min(q.shape[3], v.shape[3]), torch.is_grad_enabled()
    learned = [] if bias is None else [*bias.parameters(), *queries.extras.values(), *keys.extras.values()]
    # evaluated for one pair, because the result for all pairs has quadratic size
    added = None if bias is None else bias.values(queries.pos[..., :1], keys.pos[..., :1])
    refusals = (
        (
            torch.compiler.is_compiling() or _C._are_functorch_transforms_active(),
            "this executor builds its lists of blocks outside of compiled graphs",
        ),
        (
            not (importlib.util.find_spec("triton") if cuda else q.is_cpu),
            "this executor needs CUDA with Triton, or a CPU",
        ),
        (learns and any(x.requires_grad for x in learned), "the gradients of a learned bias are untested"),
        (
            learns and not cuda and any(x.requires_grad for x in (q, k, v)),
            "PyTorch has no backward of FlexAttention on a CPU",
        ),
        (
            type(request.score) is not Product or request.dropout > 0,
            "this executor needs dot-product scores without dropout",
        ),
        (request.where is not None, "this executor computes all pairs of the pattern, but a mask allows fewer"),
        (
            bias is not None and bool(bias.wants),
            "this executor cannot cut the matrix that the bias reads from an earlier block",
        ),
        (added is not None, "this executor does not support a bias that adds to the values"),
        (
            not request.pairs * narrow,
            "this executor needs at least one pair of a query and a key, and a head width above 0",
        ),
        (
            k.shape[1] != v.shape[1] or q.shape[1] % max(k.shape[1], 1) > 0,
            "this executor needs equal numbers of key and value heads, which divide the number of query heads",
        ),
        (
            cuda and (narrow < 16 or q.dtype == torch.float64),
            "the CUDA kernels of FlexAttention need head widths of at least 16 and another dtype than float64",
        ),
    )
    if reason := next((reason for holds, reason in refusals if holds), None):
        return Refusal(reason)
    return math.inf if cuda else EAGER + request.pairs * ON_CPU * (q.shape[3] + v.shape[3])


def read(request: Request) -> AttentionOutput:
    """Compute the output of a `request`, merged from calls for parts of its pattern if that is faster."""
    plan, _ = _plan(request)
    reads = [_read_call(request, call, request.lse or len(plan) > 1) for call in plan]
    return reads[0] if len(reads) == 1 else merge(*reads)


def _plan(request: Request) -> tuple[list[FlexCall], float]:
    """Return the cheapest calls and the pairs in their blocks, once per forward with one device sync."""
    q, k, rows = request.queries, request.keys, request.rows
    return request.memo.get(lambda: _make_plan(request), "flex", request.pattern, q.pos, k.pos, q.head, q.q.shape, rows)


def _make_plan(request: Request) -> tuple[list[FlexCall], float]:
    length, keys = request.queries.q.shape[2], request.keys.k.shape[2]
    size = BLOCK << max(0, math.ceil(math.log2(length * keys / BLOCK**2 / GRID) / 2))
    plans = [[_make_call(request, size, PatternPart(Dense(), request.pattern))]]
    if request.queries.pos.shape[1] == request.keys.pos.shape[1] == 1:  # one order for all heads
        plans.append([_make_call(request, size, part) for part in parts(request.pattern, max(length, keys))])
    counts = torch.stack([torch.stack([call.many for call in plan]).sum() for plan in plans]).tolist()
    counts[-1] += MERGED * (len(plans) - 1) * len(plans[-1]) * request.pairs / keys / size
    best = counts.index(min(counts))
    return plans[best], counts[best] * size**2


def _make_call(request: Request, size: int, part: PatternPart) -> FlexCall:
    """Return the call of a part, with the blocks that `cover` does not exclude.

    Blocks of queries and keys without a common remainder are excluded too. Blocks may differ by head.
    """
    queries, layout = request.queries, part.layout
    q, k = (x if x.stride(0) else x[:1] for x in (queries.pos, request.keys.pos))
    n = layout.n if isinstance(layout, Residue) else 1
    if isinstance(layout, GatheredKeys):  # other keys are in no block
        k = torch.where(replace(layout, back=math.inf, ahead=math.inf).reads(k, k), k, -1)
    of_q, of_k = (
        torch.where(x < 0, FAR * n, x % n * FAR + x).argsort(-1)[:, 0] if isinstance(layout, kind) else None
        for x, kind in ((q, Residue), (k, Residue | GatheredKeys))
    )
    q_ends, k_ends = (_ends(cut(pos, order, 2), size, n) for pos, order in ((q, of_q), (k, of_k)))
    kinds_of_blocks: dict[tuple, Tensor] = {}
    heads = range(queries.q.shape[1])
    kinds = [(part.where.of_head(queries.head + h), h % q.shape[1], h % k.shape[1]) for h in heads]
    for where, i, j in dict.fromkeys(kinds):
        a, b = q_ends[:, :, i, :, None], k_ends[:, :, j, None]  # [6 B N 1], [6 B 1 M]
        any_pair, every = where.cover(a[0], a[2], b[0], b[2])
        any_pair = any_pair & (a[1] <= b[3]) & (b[1] <= a[3]) & (a[4] & b[4]).bool()
        every = every & any_pair & (a[5] & b[5]).bool()
        kinds_of_blocks[where, i, j] = torch.stack((any_pair & ~every, every)).int()
    blocks = torch.stack(
        [kinds_of_blocks[kind] for kind in (kinds if len(kinds_of_blocks) > 1 else kinds[:1])], 2
    )  # [2 B H N M]
    q_pos, k_pos, rows, head = cut(queries.pos, of_q, 2), cut(request.keys.pos, of_k, 2), request.rows, queries.head

    def is_allowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        q, k = at(q_pos, b, h, i), at(k_pos, b, h, j)
        row = b if rows is None else rows[b]
        return pattern(row, h + head, q.clamp_min(0), k.clamp_min(0)) & (q >= 0) & (k >= 0)

    pattern, lengths = part.where, (q_pos.shape[2], k_pos.shape[2])
    (any_pair, every), number = blocks.sum(-1).int(), blocks.argsort(dim=-1, descending=True, stable=True).int()
    mask = BlockMask.from_kv_blocks(any_pair, number[0], every, number[1], size, is_allowed, lengths)
    return FlexCall(mask, blocks.sum((0, 3, 4)).expand(queries.q.shape[:2]).sum(), of_q, of_k)


def _ends(pos: Int[Tensor, "B H L"], size: int, n: int) -> Int[Tensor, "6 B H N"]:
    """Return each block's first position and remainder by n, the last ones, any real token, all real."""
    x = F.pad(pos, (0, -pos.shape[2] % size), value=-1).unflatten(2, (-1, size))
    real, x = x >= 0, torch.stack((x, x % n))
    last = torch.where(real, x, 0).amax(-1)
    first = torch.where(real, x, FAR).amin(-1).minimum(last)
    return torch.cat((first, last, torch.stack((real.any(-1), real.all(-1)))))


def _read_call(request: Request, call: FlexCall, lse: bool) -> AttentionOutput:
    piece = request if call.q is call.k is None else request.piece(call.q, call.k)
    q, k, v = (x if torch.is_grad_enabled() else x.detach() for x in (piece.queries.q, piece.keys.k, piece.keys.v))
    bias = None if piece.bias is None else piece.bias.bind(piece)
    flex: Any = compiled(flex_attention) if q.device.type == "cuda" else flex_attention
    options = {"scale": request.scale, "enable_gqa": q.shape[1] != k.shape[1], "return_aux": AuxRequest(lse=lse)}
    with torch._dynamo.config.patch(recompile_limit=GRAPHS):
        y, aux = flex(q, k, v, bias, call.mask, **options)
    back = None if call.q is None else call.q.argsort(-1)
    return AttentionOutput(cut(y, back, 2), None if aux.lse is None else cut(aux.lse, back, 2))

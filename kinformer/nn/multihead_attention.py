"""MultiheadAttention: `torch.nn.MultiheadAttention` with a pattern of keys that each query may read."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.attend import attend
from kinformer.core.bias import Bias, ScoreFn
from kinformer.core.heads import Keys, Queries
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.projection import by_head
from kinformer.core.request import Request
from kinformer.core.score_matrix import attention, mask, scores, weigh_values
from kinformer.core.scores.product import Product


class AttentionMask(Bias):
    """Numbers that are added to the scores of pairs, -inf for pairs that are not read: an `attn_mask` of PyTorch.

    table: the numbers, by batch row and head or the same for all. Queries and keys are numbered from position 0.
    """

    def __init__(self, table: Float[Tensor, "#B #H T S"]):
        super().__init__()
        self.table = table

    def bind(self, piece: Request) -> ScoreFn:
        q_pos, k_pos = (part.pos.squeeze(1).clamp_min(0) for part in (piece.queries, piece.keys))
        rows, heads = self.table.shape[:2]

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            row = b if piece.rows is None else piece.rows[b]
            head = h + piece.queries.head
            return s + self.table[row * (rows > 1), head * (heads > 1), q_pos[b, i], k_pos[b, j]]

        return score


class MultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` whose queries read only the keys of a pattern.

    Choose it to give a model that exists another attention pattern: it has the same arguments, parameters (so
    `load_state_dict` takes those of PyTorch's) and results. For new models choose `Attention`, whose parts are free and
    which decodes with a cache. `batch_first` is True unless told otherwise.

        layer.self_attn = kf.MultiheadAttention(256, 4, pattern=kf.Causal() & kf.Band(63))

    y = softmax(q k^T / sqrt(head_dim) + masks) v over the keys that `pattern`, `key_padding_mask` and `attn_mask` allow

    pattern: the keys that each query reads; query t and key s stand at positions t and s. All keys unless given.
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, device, dtype: as in PyTorch.

    With `need_weights=False` the pattern is read sparsely: a window of w keys costs time and memory linear in the
    length. The weights are a matrix of all pairs.

    Differences: a query without any key to read gives the output projection of zeros, and weights of zero, where
    PyTorch gives NaN. `is_causal=True` needs no `attn_mask`.

    Errors: ValueError for a pattern together with `add_bias_kv` or `add_zero_attn`, whose keys have no position.
    Source: Vaswani et al., 2017, arXiv:1706.03762, section 3.2.2.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        pattern: Pattern | None = None,
    ):
        more = {"add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn, "kdim": kdim, "vdim": vdim}
        super().__init__(
            embed_dim, num_heads, dropout, bias, **more, batch_first=batch_first, device=device, dtype=dtype
        )
        self.pattern = Full() if pattern is None else check_pattern("pattern", pattern)
        if pattern is not None and (add_bias_kv or add_zero_attn):
            raise ValueError(
                f"pattern={pattern} says nothing of the keys that add_bias_kv and add_zero_attn append: they have no "
                "position. Leave the pattern out, or both of these"
            )
        # nn.TransformerEncoderLayer in eval mode reads these parameters by itself, without a pattern, if this is True
        self._qkv_same_embed_dim = False

    def forward(
        self,
        query: Float[Tensor, "*BT Q"],
        key: Float[Tensor, "*BS C"],
        value: Float[Tensor, "*BS D"],
        key_padding_mask: Shaped[Tensor, "*B S"] | None = None,
        need_weights: bool = True,
        attn_mask: Shaped[Tensor, "*BH T S"] | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "*BT E"], Float[Tensor, "*BHT N"] | None]:
        """The output, and the weights [B, T, N] of all N keys (with `average_attn_weights=False` [B, H, T, N]).

        query, key, value: [B, T, E], [B, S, kdim], [B, S, vdim]; [T, B, E] with `batch_first=False`, [T, E] without a
            batch.
        key_padding_mask: [B, S], True at keys that are not read, or numbers that are added to their scores.
        attn_mask: [T, S] or [B * H, T, S], True at pairs that are not read, or numbers that are added to scores.
        is_causal: whether query t reads only keys 0 to t, besides all masks.
        """
        batched = query.dim() == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._project(query, key, value)
        k_pos, table = self._masks(q, k, key_padding_mask, attn_mask)
        pattern = self.pattern & Causal() if is_causal else self.pattern
        q_pos = torch.arange(q.shape[2], device=q.device).expand(len(q), 1, -1)
        bias, dropout = None if table is None else AttentionMask(table), self.dropout if self.training else 0.0
        matrix = None
        if need_weights:
            request = Request(
                Queries(q, q_pos), Keys(k, v, k_pos, own=False), pattern, Product(), bias, q.shape[-1] ** -0.5
            )
            logits, where = scores(request), mask(request)
            matrix = attention(logits if where is None else logits.masked_fill(~where, -torch.inf))
            matrix = F.dropout(matrix, dropout)
            y = weigh_values(matrix, request)
        else:
            q_pos = k_pos if query is key and key_padding_mask is None else q_pos
            y = attend(q, k, v, q_pos=q_pos, k_pos=k_pos, pattern=pattern, bias=bias, lse=False, dropout=dropout).y
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        if matrix is not None and average_attn_weights:
            matrix = matrix.mean(1)
        if not batched:
            return y[0], None if matrix is None else matrix[0]
        return y if self.batch_first else y.transpose(0, 1), matrix

    def _project(
        self, query: Float[Tensor, "B T Q"], key: Float[Tensor, "B S C"], value: Float[Tensor, "B S D"]
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H N K"], Float[Tensor, "B H N K"]]:
        """Queries, keys and values by head; keys and values with those that `bias_k` and `add_zero_attn` append."""
        if self.in_proj_weight is None:
            matrices = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        else:
            matrices = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), matrices, biases, strict=True))
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([x, b.expand(len(x), -1, -1)], 1) for x, b in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return by_head(q, self.num_heads), by_head(k, self.num_heads), by_head(v, self.num_heads)

    def _masks(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B H N K"],
        key_padding_mask: Shaped[Tensor, "B S"] | None,
        attn_mask: Shaped[Tensor, "*BH T S"] | None,
    ) -> tuple[Int[Tensor, "B 1 N"], Float[Tensor, "#B #H #T N"] | None]:
        """Positions of the keys, -1 at padding, and the numbers that are added to scores, if any."""
        (batch, heads, length), count = q.shape[:3], k.shape[2]
        k_pos = torch.arange(count, device=q.device).expand(batch, 1, -1)
        table = None
        if attn_mask is not None:
            table = _as_numbers(attn_mask, q.dtype)
            table = table[None, None] if table.dim() == 2 else table.unflatten(0, (batch, heads))
            table = F.pad(table, (0, count - table.shape[-1]))
        if key_padding_mask is not None:
            _check_shape("key_padding_mask", key_padding_mask, (batch, count - self._appended_keys()))
            if key_padding_mask.dtype == torch.bool:
                padding = F.pad(key_padding_mask, (0, count - key_padding_mask.shape[1]))
                k_pos = k_pos.masked_fill(padding[:, None], -1)
            else:
                added = F.pad(key_padding_mask.to(q.dtype), (0, count - key_padding_mask.shape[1]))[:, None, None]
                table = added.expand(-1, -1, length, -1) if table is None else table + added
        return k_pos, table

    def _appended_keys(self) -> int:
        """How many keys `add_bias_kv` and `add_zero_attn` append."""
        return (self.bias_k is not None) + self.add_zero_attn


def _as_numbers(attn_mask: Shaped[Tensor, "*n T S"], dtype: torch.dtype) -> Float[Tensor, "*n T S"]:
    """A mask as numbers that are added to scores: -inf where a boolean mask is True."""
    if attn_mask.dtype != torch.bool:
        return attn_mask.to(dtype)
    return torch.zeros(attn_mask.shape, dtype=dtype, device=attn_mask.device).masked_fill(attn_mask, -torch.inf)


def _check_shape(name: str, mask: Tensor, expected: tuple[int, ...]) -> None:
    if mask.shape != expected:
        raise ValueError(f"{name} has another shape than the keys: got {list(mask.shape)}, expected {list(expected)}")

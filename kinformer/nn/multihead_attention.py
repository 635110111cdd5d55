"""MultiheadAttention: `torch.nn.MultiheadAttention` with an attention pattern."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.attend import attend
from kinformer.core.bias import Bias, ScoreFn
from kinformer.core.checks import check_in_range, check_multiple
from kinformer.core.heads import Keys, Queries
from kinformer.core.keyword_hints import KeywordHints, hint_keywords
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.projection import by_head
from kinformer.core.request import Request
from kinformer.core.score_matrix import attention, mask, scores, weigh_values
from kinformer.core.scores.product import Product


class AttentionMask(Bias):
    """Bias that adds a table of numbers to the scores, as the `attn_mask` of PyTorch does.

    Choose it for numbers that you have as a tensor: `attend(q, k, v, bias=AttentionMask(table))`. `MultiheadAttention`
    makes it from its masks. A boolean mask is a pattern, `PairMask(mask)`.

    table: numbers to add, [B H T S], or with size 1 for B or H if all rows or heads share them; -inf excludes a pair.
        Entry [t, s] belongs to the query at position t and the key at position s, from 0.
    """

    def __init__(self, table: Float[Tensor, "#B #H T S"]):
        super().__init__()
        if not isinstance(table, Tensor) or not table.is_floating_point() or table.dim() != 4:
            actual = (
                f"{table.dtype} of shape {list(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
            )
            raise ValueError(
                f"AttentionMask got {actual}, expected numbers [B, H, T, S], or with size 1 for B or H. Give a boolean "
                "mask [B, T, S] as the pattern PairMask(mask)"
            )
        self.table = table

    def bind(self, piece: Request) -> ScoreFn:
        q_pos, k_pos = (part.pos.squeeze(1).clamp_min(0) for part in (piece.queries, piece.keys))
        rows, heads = self.table.shape[:2]

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            row = b if piece.rows is None else piece.rows[b]
            head = h + piece.queries.head
            return s + self.table[row * (rows > 1), head * (heads > 1), q_pos[b, i], k_pos[b, j]]

        return score


class MultiheadAttention(nn.MultiheadAttention, KeywordHints):
    """PyTorch's `nn.MultiheadAttention` with an attention pattern: each query reads only some keys.

    Choose it to replace the attention of an existing PyTorch model. It has the same arguments, parameters and results,
    apart from the differences below, and `load_state_dict` accepts PyTorch's weights. For a new model choose
    `Attention`: its parts can be exchanged and it decodes with a cache.

        layer.self_attn = kf.MultiheadAttention(256, 4, pattern=kf.Causal() & kf.Band(63))

    y = softmax(q k^T / sqrt(head_dim) + masks) v over the keys that `pattern`, `key_padding_mask` and `attn_mask` allow

    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, device, dtype: as in PyTorch.
    batch_first: True for inputs [B, T, E]. The default is True here and False in PyTorch, so pass False if the layer
        that it replaces was built without it. Shapes cannot tell the layouts apart. An input [T, B, E] of a layer with
        batch_first=True runs, and its attention goes over the batch.
    pattern: keys that each query reads; query t and key s have positions t and s. None reads all keys.

    With `need_weights=False` the pattern is read sparsely: the time and memory of a window of w keys grow linearly with
    the length. With `need_weights=True` the layer computes the matrix of all pairs.

    Errors: ValueError for inputs or masks of wrong shape, for masks that are neither boolean nor floating, and for a
    nested tensor with a mask. Also for a pattern together with `add_bias_kv` or `add_zero_attn`: keys that these append
    have no position.

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 3.2.2.

    Differences: a query that may read no key gets weights of zero, and its output is the output projection of zeros.
    PyTorch gives NaN there in its fast path (self-attention in eval mode without gradients) and with
    `need_weights=True`. The flag `is_causal=True` is itself a mask. It works without an `attn_mask` and in addition to
    one. In PyTorch it is only a hint that `attn_mask` is causal. Every query reads the keys that `add_bias_kv` and
    `add_zero_attn` append. A nested tensor is also accepted with gradients and in training. `torch.jit.script` cannot
    compile the layer. Use `torch.compile`.
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
        options = {"add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn, "kdim": kdim, "vdim": vdim}
        check_in_range("dropout", dropout, 0, 1)
        check_multiple("embed_dim", embed_dim, "num_heads", num_heads)
        super().__init__(
            embed_dim, num_heads, dropout, bias, **options, batch_first=batch_first, device=device, dtype=dtype
        )
        self.pattern = Full() if pattern is None else check_pattern("pattern", pattern)
        if pattern is not None and (add_bias_kv or add_zero_attn):
            raise ValueError(
                f"pattern={pattern} cannot be combined with add_bias_kv or add_zero_attn: "
                "appended keys have no position. Leave out the pattern, or both options"
            )

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # nn.TransformerEncoderLayer in eval mode reads these parameters by itself, without a pattern, if this is True
        self._qkv_same_embed_dim = False

    def extra_repr(self) -> str:
        return "" if self.pattern == Full() else f"pattern={self.pattern}"

    @hint_keywords
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Float[Tensor, "*BHT N"] | None]:
        """Return the output, and the attention weights or None.

        The weights are [B, T, N] for all N keys, with those that `add_bias_kv` and `add_zero_attn` append.

        query, key, value: inputs [B, T, E], [B, S, kdim] and [B, S, vdim]; [T, B, E] with `batch_first=False`, and
            [T, E] without a batch. In self-attention without masks, a nested tensor of rows [T_b, E] gives a nested
            output.
        key_padding_mask: [B, S], True at keys that no query reads, or numbers to add to the scores of keys.
        need_weights: True returns the weights; False returns None and reads the pattern sparsely.
        attn_mask: [T, S] or [B * H, T, S], True at pairs that are not read, or numbers to add to the scores.
        average_attn_weights: True averages the weights over heads; False returns them as [B, H, T, N].
        is_causal: True lets query t read only keys 0 to t, in addition to all masks.
        """
        if query.is_nested or key.is_nested or value.is_nested:
            has_mask = key_padding_mask is not None or attn_mask is not None
            if has_mask or not query is key is value or query.layout != torch.strided or not self.batch_first:
                raise ValueError(
                    "nested input is not supported here: expected self-attention without masks, layout=torch.strided "
                    "and batch_first=True. Pad it and pass key_padding_mask; nn.TransformerEncoder does so with "
                    "enable_nested_tensor=False"
                )
            return self._read_nested(query, need_weights, average_attn_weights, is_causal)
        is_batched = query.dim() == 3
        query, key, value = self._to_batch_first(query, key, value)
        pairs = query.shape[1], key.shape[1]
        _check_mask("key_padding_mask", key_padding_mask, key.shape[:2] if is_batched else key.shape[1:2])
        _check_mask("attn_mask", attn_mask, pairs, (len(query) * self.num_heads, *pairs))
        q, k, v = self._project(query, key, value)
        pattern = self.pattern
        if is_causal and k.shape[2] == key.shape[1]:
            pattern = pattern & Causal()
        elif is_causal:  # a mask, because every query reads the appended keys, which have no position
            ahead = torch.ones(pairs, dtype=torch.bool, device=q.device).triu(1)
            attn_mask = ahead if attn_mask is None else _as_numbers(attn_mask, q.dtype).masked_fill(ahead, -torch.inf)
        q_pos = torch.arange(q.shape[2], device=q.device).expand(len(q), 1, -1)
        k_pos, table = _positions_and_table(q, k, key_padding_mask, attn_mask)
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
            if key_padding_mask is None and q.shape[2] == k.shape[2]:
                q_pos = k_pos  # the same object tells executors that queries and keys have the same positions
            y = attend(q, k, v, q_pos=q_pos, k_pos=k_pos, pattern=pattern, bias=bias, lse=False, dropout=dropout).y
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        if matrix is not None and average_attn_weights:
            matrix = matrix.mean(1)
        if not is_batched:
            return y[0], None if matrix is None else matrix[0]
        return y if self.batch_first else y.transpose(0, 1), matrix

    def _read_nested(
        self, x: Tensor, need_weights: bool, average_attn_weights: bool, is_causal: bool
    ) -> tuple[Tensor, Float[Tensor, "*BHT N"] | None]:
        """Apply self-attention to rows of different length: pad, read, and cut the output. Weights stay padded."""
        lengths = [len(row) for row in x.unbind()]
        padded = x.to_padded_tensor(0.0)
        padding = torch.arange(padded.shape[1], device=x.device) >= torch.tensor(lengths, device=x.device)[:, None]
        y, weights = self.forward(padded, padded, padded, padding, need_weights, None, average_attn_weights, is_causal)
        if weights is not None:
            no_query = padding[..., None] if average_attn_weights else padding[:, None, :, None]
            weights = weights.masked_fill(no_query, 0.0)
        return torch.nested.as_nested_tensor([row[:length] for row, length in zip(y, lengths, strict=True)]), weights

    def _to_batch_first(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Float[Tensor, "B T Q"], Float[Tensor, "B S C"], Float[Tensor, "B S D"]]:
        """Check the shapes of the inputs and bring the batch to the front."""
        shapes = f"got query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
        if not query.dim() == key.dim() == value.dim() or query.dim() not in (2, 3):
            raise ValueError(
                f"the inputs have the wrong numbers of dimensions: {shapes}, expected 3 each, or 2 each without a batch"
            )
        if query.dim() == 2:
            query, key, value = query[None], key[None], value[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        if not len(query) == len(key) == len(value):
            raise ValueError(
                f"the batch sizes differ: {shapes}, expected the same size of dimension {1 - self.batch_first}, "
                f"since batch_first={self.batch_first}"
            )
        if key.shape[1] != value.shape[1]:
            raise ValueError(f"key and value differ in length: {shapes}, expected a value for each key")
        for name, x, width in zip(
            ("query", "key", "value"), (query, key, value), (self.embed_dim, self.kdim, self.vdim), strict=True
        ):
            if x.shape[2] != width:
                option = "embed_dim" if name == "query" or width == self.embed_dim else f"{name[0]}dim"
                raise ValueError(f"{name} has the wrong width: {shapes}, expected {option}={width}. Give both the same")
        return query, key, value

    def _project(
        self, query: Float[Tensor, "B T Q"], key: Float[Tensor, "B S C"], value: Float[Tensor, "B S D"]
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H N K"], Float[Tensor, "B H N K"]]:
        """Return queries, keys and values by head, with the keys and values that options append."""
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


def _positions_and_table(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H N K"],
    key_padding_mask: Shaped[Tensor, "*B S"] | None,
    attn_mask: Shaped[Tensor, "*BH T S"] | None,
) -> tuple[Int[Tensor, "B 1 N"], Float[Tensor, "#B #H #T N"] | None]:
    """Return the positions of the keys, -1 at padding, and the numbers to add to the scores, or None.

    The last N - S keys are appended: masks do not cover them, and every query reads them.
    """
    (batch, heads, length), count = q.shape[:3], k.shape[2]
    k_pos = torch.arange(count, device=q.device).expand(batch, 1, -1)
    table = None
    if attn_mask is not None:
        table = _as_numbers(attn_mask, q.dtype)
        table = table[None, None] if table.dim() == 2 else table.unflatten(0, (batch, heads))
        table = F.pad(table, (0, count - table.shape[-1]))
    if key_padding_mask is not None:
        padding = F.pad(key_padding_mask, (0, count - key_padding_mask.shape[-1])).view(batch, 1, count)
        if padding.dtype == torch.bool:
            k_pos = k_pos.masked_fill(padding, -1)
        else:
            added = padding[:, None].to(q.dtype).expand(-1, -1, length, -1)
            table = added if table is None else table + added
    return k_pos, table


def _as_numbers(attn_mask: Shaped[Tensor, "*n T S"], dtype: torch.dtype) -> Float[Tensor, "*n T S"]:
    """Return a mask as numbers to add to the scores; True in a boolean mask becomes -inf."""
    if attn_mask.dtype != torch.bool:
        return attn_mask.to(dtype)
    return torch.zeros(attn_mask.shape, dtype=dtype, device=attn_mask.device).masked_fill(attn_mask, -torch.inf)


def _check_mask(name: str, mask: Tensor | None, *shapes: tuple[int, ...]) -> None:
    if mask is None:
        return
    if isinstance(mask, Pattern):
        raise ValueError(
            f"{name} is the pattern {mask}, expected a tensor. Give MultiheadAttention(..., pattern={mask})"
        )
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(f"{name} has the wrong dtype: got {mask.dtype}, expected bool or floating. Use {name}.bool()")
    if mask.shape not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        is_swapped = name == "key_padding_mask" and mask.shape[::-1] in shapes
        advice = "Masks count queries and keys as they are passed in, without appended keys"
        if is_swapped:
            advice = (
                "The mask is [B, S] in both layouts: inputs [B, S, E] need batch_first=True, inputs [S, B, E] "
                "batch_first=False"
            )
        elif mask.dim() in (3, 4) and mask.shape[-2:] == shapes[0]:
            by_head = (
                "repeat_interleave(num_heads, 0)" if mask.dim() == 3 else "expand(-1, num_heads, -1, -1).flatten(0, 1)"
            )
            advice = f"Repeat a mask of each row for all heads: attn_mask.{by_head}"
        raise ValueError(f"{name} has the wrong shape: got {list(mask.shape)}, expected {expected}. {advice}")

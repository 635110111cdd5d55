"""look: read a text with a trained model, and return its attention maps and the loss of each token."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from kinformer.attend.executors import reference
from kinformer.core.attention_output import weights
from kinformer.core.eval_mode import evaluating
from kinformer.core.model import Model, display_name
from kinformer.core.quote import quote
from kinformer.core.request import Request
from kinformer.core.score_matrix import weigh_values
from kinformer.decoding.byte_tokenizer import tokenizer_of_model
from kinformer.decoding.prompt_rows import prompt_rows
from kinformer.lab.data.batches import device_of
from kinformer.lab.train.attention_hooks import layers_that_read
from kinformer.models.support.row_classifier import RowClassifier
from kinformer.nn.attention import Attention, extras_by_name

T = TypeVar("T")
LONGEST = 2048  # tokens of a text: a map holds every pair of tokens
CLOSE = 1e-3  # largest difference by rounding in float32, relative to the largest number of a layer's output
READS = ("text", "masked", "labelled")  # kinds of models that read one text


class AttentionMaps(NamedTuple):
    """Attention maps of a model on one text, and the loss of each token; `look` returns it.

    tokens: the bytes of each of the T tokens.
    maps: attention weights [H, T, T] by the name of the layer, from the bottom. Entry [h, i, j] is the weight of key j
        for query i in head h. A row sums to 1, or to 0 if its query reads no key.
    bits: loss of each token given the tokens before it, in bits [T]; NaN for the first token. None for a model that
        does not predict the next token.
    unseen: the reason for each attention layer that has no map, by the name of the layer.
    """

    tokens: list[bytes]
    maps: dict[str, Float[Tensor, "H T T"]]
    bits: Float[Tensor, " T"] | None
    unseen: dict[str, str]


def look(model: Model, text: str | bytes | Sequence[int] | Mapping[str, Any] | Int[Tensor, "*B T"]) -> AttentionMaps:
    """Read a text with a trained model, and return its attention maps and the loss of each token.

    Choose it to see which tokens each head attends to, and which tokens the model did not expect.

        import kinformer as kf
        seen = kf.look(kf.load("runs/tour/gpt"), "def main():")
        print(seen.maps.keys(), seen.bits)

    The weights are computed again from the queries, keys and biases of each attention call. Calls over several sets of
    keys, such as a window and global tokens, are merged by their log-sum-exp. A map is returned only if the keys are
    single tokens and the weights reproduce the output of the layer. Other layers, such as linear attention or attention
    to compressed states, are in `unseen`.

    model: a model that reads one text: a language model, a masked model or a classifier. A class token that it puts
        before a text is a token of the maps.
    text: the text; the model's own tokenizer reads it, or else each byte is a token. Or its token ids: a list, a tensor
        [T] or [1, T], or a dict of one row as a tokenizer of transformers returns it.

    Errors: ValueError for another kind of model, and for a text with fewer than 2 or more than 2,048 tokens. ValueError
    for a text if the model was trained on token ids of an unknown tokenizer. IndexError for a text that is longer than
    the model's table of positions. TypeError for other values, such as a list of texts.
    """
    if not isinstance(model, Model):
        advice = (
            "Give kf.load(FOLDER)" if isinstance(model, str | Path) else "Give kf.gpt(), or a model of kf.load(FOLDER)"
        )
        raise TypeError(f"wrong model for look: got {quote(model)}, expected a model of kinformer. {advice}")
    if model.reads not in READS:
        raise ValueError(
            f"look failed: {display_name(model)} reads {model.reads}, expected a model that reads one text, such as gpt"
        )
    tokenizer = tokenizer_of_model(model)
    ids = list(tokenizer.encode(text)) if isinstance(text, str | bytes) else _ids(text, model)
    if not 2 <= len(ids) <= LONGEST:
        raise ValueError(
            f"look failed: got a text of {len(ids):,} tokens, expected 2 to {LONGEST:,}. Give another text"
        )
    tokens = torch.tensor([ids], device=device_of(model))
    (tokens, logits), maps, unseen = attention_maps(model, lambda: _read(model, tokens), {"": len(ids) + model.own})
    bits = _bits(logits[0], tokens[0]) if model.predicts_next else None
    return AttentionMaps([tokenizer.decode([token]) for token in tokens[0].tolist()], maps, bits, unseen)


def attention_maps(
    model: Model, read: Callable[[], T], lengths: Mapping[str, int]
) -> tuple[T, dict[str, Float[Tensor, "H T T"]], dict[str, str]]:
    """Return the result of a call for one row, and the map of each attention layer or why it has none.

    The call runs in eval mode, without gradients.

    model: the model that `read` calls.
    read: function that reads one row without padding.
    lengths: number of tokens that a layer reads, by the first part of the layer's name, and for all others under "".
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    calls: dict[str, list[_Call]] = {name: [] for name in layers}
    inputs: dict[str, list[Tensor]] = {name: [] for name in layers}
    outputs: dict[str, list[Tensor]] = {name: [] for name in layers}

    def note(layer: str, executor: str, request: Request) -> None:
        if layer in calls:
            calls[layer].extend(_calls(request))

    hooks = [
        part.register_forward_pre_hook(partial(_keep_first_argument, kept[name]))
        for name, layer in layers.items()
        for part, kept in ((layer, inputs), (layer.aggregation, outputs))
    ]
    try:
        with evaluating(model), layers_that_read(model, note):
            result = read()
    finally:
        for hook in hooks:
            hook.remove()
    maps, unseen = dict[str, Tensor](), dict[str, str]()
    for name, layer in layers.items():
        count = lengths.get(name.partition(".")[0], lengths.get("", 0))
        with torch.no_grad():
            attention = _map_of(layer, calls[name], inputs[name], outputs[name], count)
        if isinstance(attention, str):
            unseen[name] = attention
        else:
            maps[name] = attention
    return result, maps, unseen


def _ids(text: Any, model: Model) -> list[int]:
    """Return the token ids of one row; errors for several rows and for other values."""
    if isinstance(text, list | tuple) and text and all(isinstance(part, str | bytes) for part in text):
        raise TypeError(f"look reads one text: got a list of {len(text):,} texts. Call look once for each")
    rows = prompt_rows(text, model)
    if len(rows) != 1 or bool((rows < 0).any()):
        got = f"{len(rows):,} rows" if len(rows) != 1 else "padding"
        raise ValueError(f"look reads one row of token ids without padding: got {got}. Give one row of real tokens")
    return rows[0].tolist()


def _read(model: Any, tokens: Int[Tensor, "1 T"]) -> tuple[Int[Tensor, "1 t"], Tensor]:
    """Return the tokens that the model reads, with a class token if it adds one, and its scores."""
    if isinstance(model, RowClassifier):
        return model.pooling.rows(tokens, mark=model.vocab), model.read(tokens).y
    return tokens, model.logits(tokens).y


def _keep_first_argument(kept: list[Tensor], module: Any, arguments: tuple[Any, ...]) -> None:
    kept.append(arguments[0])


def _bits(logits: Float[Tensor, "T N"], tokens: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
    nll = F.cross_entropy(logits[:-1].float(), tokens[1:], reduction="none") / math.log(2)
    return torch.cat([nll.new_full((1,), math.nan), nll]).cpu()


class _Call(NamedTuple):
    """Weights and output of one row of an attention call; a mechanism may fold blocks or buckets into rows.

    heads: indices of the heads in the layer.
    own: whether the keys belong to the sequence of the queries.
    weights: softmax over the keys of this call.
    values: the values of the keys, by query head.
    y: the output, with `lse` by which several calls are merged.
    q_pos, k_pos: positions; -1 is padding.
    """

    heads: Int[Tensor, "H 1"]
    own: bool
    weights: Float[Tensor, "H T S"]
    values: Float[Tensor, "H S V"]
    y: Float[Tensor, "H T V"]
    lse: Float[Tensor, "H T"]
    q_pos: Int[Tensor, "H T"]
    k_pos: Int[Tensor, "H S"]


def _calls(request: Request) -> Iterator[_Call]:
    lse = reference.read(request.replace(lse=True, dropout=0.0)).lse
    assert lse is not None
    batch, heads, count = request.queries.q.shape[:3]
    attention = weights(request, lse, torch.arange(count, device=lse.device).expand(batch, -1))  # [B H T S]
    y = weigh_values(attention, request)
    positions = [pos.expand(batch, heads, -1) for pos in (request.queries.pos, _by_query_head(request.keys.pos, heads))]
    values = _by_query_head(request.keys.v, heads)
    index = request.queries.head + torch.arange(heads)[:, None]
    for row in zip(attention, values, y, lse, *positions, strict=True):
        yield _Call(index, request.keys.own, *(tensor.cpu() for tensor in row))


def _by_query_head(x: Shaped[Tensor, "B G *S"], heads: int) -> Shaped[Tensor, "B H *S"]:
    return x.repeat_interleave(heads // x.shape[1], 1)


def _map_of(
    layer: Attention,
    calls: Sequence[_Call],
    inputs: Sequence[Float[Tensor, "1 T D"]],
    outputs: Sequence[Float[Tensor, "1 H t V"]],
    count: int,
) -> Float[Tensor, "H T T"] | str:
    """Merge the calls of a layer into one map, or return why they give none."""
    name, heads = type(layer.mechanism).__name__, layer.sizes.heads
    if layer.cross:
        return "its keys are another sequence"
    if not outputs:
        return "the layer was not called"
    if len(inputs) > 1:
        return "the layer is called several times"
    if not calls:
        return f"{name} does not read its keys through `attend`"
    output, close = torch.cat(list(outputs), 2)[0].double().cpu(), _tolerance(outputs[0])  # an output for each segment
    if not bool(output.isfinite().all()):
        return "its output is not finite"
    last = max(int(max(call.q_pos.max(), call.k_pos.max())) for call in calls)
    tokens = last < count == inputs[0].shape[1] == output.shape[1] and all(
        call.own and int(call.heads.max()) < heads for call in calls
    )
    if not tokens or not _reads_single_tokens(layer, calls, inputs[0]):
        return f"the queries or keys of {name} are not single tokens of the text"
    # the last row and column collect padding
    total = torch.full((heads, count + 1), -math.inf, dtype=torch.float64)
    for call in calls:
        at = call.heads, _place(call.q_pos, count)
        total[at] = torch.logaddexp(total[at], call.lse.double())
    attention = torch.zeros(heads, count + 1, count + 1, dtype=torch.float64)
    y = torch.zeros(heads, count + 1, output.shape[-1], dtype=torch.float64)
    compared = torch.ones(heads, count, dtype=torch.bool)
    for call in calls:
        at = call.heads, _place(call.q_pos, count)
        share = (call.lse.double() - total[at]).exp().nan_to_num(0.0)[..., None]
        pairs = call.heads[..., None], at[1][..., None], _place(call.k_pos, count)[:, None]
        attention.index_put_(pairs, share * call.weights.double(), accumulate=True)
        if call.y.shape[-1] == y.shape[-1]:
            y.index_put_(at, share * call.y.double(), accumulate=True)
        else:
            compared[at] = False  # a few global queries read inputs in place of values
    wrong = (y[:, :count] - output).abs().amax(-1) * compared
    if wrong.max() > close * output.abs().max():
        return f"{name} changes the output of its attention calls"
    return attention[:, :count, :count].float()


def _reads_single_tokens(layer: Attention, calls: Sequence[_Call], x: Float[Tensor, "1 T D"]) -> bool:
    """Whether each value that the calls read belongs to the token at its position, and is no mixture of tokens."""
    heads = layer.sizes.heads
    keys = layer.projection.keys(x, torch.arange(x.shape[1], device=x.device)[None])
    own = [keys.v, x[:, None]]  # global queries may read inputs in place of values
    if layer.key_side is not None:  # or values of a projection of their own
        own += extras_by_name(layer.key_side(x), layer.key_extras, layer.sizes.key_heads).values()
    every = [_by_query_head(values, heads)[0].cpu() for values in own]
    for call in calls:
        fitting = [values for values in every if values.shape[-1] == call.values.shape[-1]]
        real = call.k_pos >= 0
        differences = [
            (call.values - values[call.heads, call.k_pos.clamp_min(0)]).abs().amax(-1)[real].amax()
            for values in fitting
        ]
        if real.any() and min(differences, default=math.inf) > _tolerance(x) * call.values.abs().max():
            return False
    return True


def _tolerance(x: Tensor) -> float:
    """The largest relative difference by rounding in the number format of a tensor."""
    return max(CLOSE, 2 * torch.finfo(x.dtype).eps)


def _place(pos: Int[Tensor, "H T"], count: int) -> Int[Tensor, "H T"]:
    return torch.where(pos < 0, count, pos)

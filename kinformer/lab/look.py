"""look: read a text with a trained model, and return its attention maps and the loss of each token."""

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.bridge.hf_folder import load_folder
from kinformer.core.checks import check_at_least
from kinformer.core.eval_mode import evaluating
from kinformer.core.model import Model, display_name
from kinformer.core.quote import quote
from kinformer.core.request import Request
from kinformer.core.warn import warn
from kinformer.decoding.byte_tokenizer import add_special_tokens, tokenizer_of_model
from kinformer.decoding.generate import is_beyond_training
from kinformer.decoding.prompt_rows import prompt_rows
from kinformer.lab.attention_weights.head_numbers import HeadNumbers
from kinformer.lab.attention_weights.layer_attention import LayerAttention, layer_attention
from kinformer.lab.attention_weights.map_sizes import CELLS, LONGEST, WHOLE
from kinformer.lab.attention_weights.retrieved_keys import RetrievedKeys, keys_from_memory, recorded_lookups
from kinformer.lab.attention_weights.token_letters import token_bytes
from kinformer.lab.data.batches import device_of
from kinformer.lab.train.attention_hooks import layers_that_read
from kinformer.models.support.row_classifier import RowClassifier
from kinformer.nn.attention import Attention

T = TypeVar("T")
READS = ("text", "masked", "labelled")  # kinds of models that read one text
# unit and title of the number of steps or layers that each token takes, by the last word of the model's report
DEPTHS = {"steps": ("steps", "number of steps"), "exit": ("layers", "number of layers")}


class AttentionMaps(NamedTuple):
    """Attention maps of a model on one text, and the loss of each token; `look` returns it.

    tokens: the bytes of each of the T tokens. A token may end within a letter of several bytes.
    maps: attention weights [H, T, T] by the name of the layer, from the bottom. Entry [h, i, j] is the weight of key j
        for query i in head h. A row sums to 1, or to 0 if its query reads no key. If `cell` is above 1, a map is
        [H, C, C]: an entry is the weight of a block of keys, as a mean over a block of queries.
    bits: loss of each token given the tokens before it, in bits [T]; NaN for the first token. None for a model that
        does not predict the next token.
    unseen: the reason for each attention layer that has no map, by the name of the layer.
    heads: distance, entropy and weight on the first tokens of each head, by the name of the layer.
    depths: number of steps or layers that each token takes, [T], by the name of the model's report. Empty for a model
        that gives every token the same number.
    retrieved: the keys that each token retrieves from a memory or a datastore, by the name of the layer or model.
    cell: number of tokens of a block.
    """

    tokens: list[bytes]
    maps: dict[str, Float[Tensor, "H C C"]]
    bits: Float[Tensor, " T"] | None
    unseen: dict[str, str]
    heads: Mapping[str, HeadNumbers] = MappingProxyType({})
    depths: Mapping[str, Float[Tensor, " T"]] = MappingProxyType({})
    retrieved: Mapping[str, RetrievedKeys] = MappingProxyType({})
    cell: int = 1


def look(
    model: nn.Module,
    text: str | bytes | Sequence[int] | Mapping[str, Any] | Shaped[Tensor, "*B T"],
    *,
    cells: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> AttentionMaps:
    """Read a text with a trained model, and return its attention maps and the loss of each token.

    Choose it to see which tokens each head attends to, and which tokens the model did not expect. `kinformer look`
    writes the same as a page.

        import kinformer as kf
        seen = kf.look(kf.load("runs/tour/gpt"), "def main():")
        print(seen.maps.keys(), seen.bits)

    The weights are computed again from the queries, keys and biases of each attention call. Calls over several sets of
    keys, such as a window and global tokens, are merged by their log-sum-exp. A map is returned only if the keys are
    single tokens and the weights reproduce the output of the layer. Other layers, such as linear attention or attention
    to compressed states, are in `unseen`.

    A long text gets maps of blocks. The weights of some queries at a time are in memory, so memory grows with the
    length of the text and not with its square.

    model: a model that reads one text: a language model, a masked model or a classifier. A class token that it puts
        before a text is a token of the maps. Or a model of transformers that `load` can read, which is converted. Or
        any module with `Attention` layers, which is called with `text`.
    text: the text; the model's own tokenizer reads it, or else each byte is a token. A model of another library also
        reads the special tokens of its tokenizer: [CLS] and [SEP] around the text for BERT, and the begin token for
        Llama. Or its token ids, which are read as they are: a list, a tensor [T] or [1, T], or a dict of one row as
        a tokenizer of transformers returns it. For any other module: the tensor of one row that it is called with.
    cells: largest number of rows of a map. Longer texts get blocks of equal numbers of tokens. With None, a text
        of up to 2,048 tokens has a cell for every pair, and a longer one has at most 128 rows.
    on_progress: function that takes the number of layers that are done.

    Errors: ValueError for another kind of model, and for a text with fewer than 2 or more than 16,384 tokens.
    ValueError for a text if the model was trained on token ids of an unknown tokenizer, and for a text that is longer
    than the model's table of positions. TypeError for other values, such as a list of texts. CheckpointError for
    a model of transformers that cannot be converted.
    """
    if cells is not None:
        check_at_least("cells", cells, 1)
    model = _as_model(model, text)
    if not isinstance(model, Model):
        return _look_at_module(model, text, cells, on_progress)
    if model.reads not in READS:
        raise ValueError(
            f"look failed: {display_name(model)} reads {model.reads}, expected a model that reads one text, such as gpt"
        )
    tokenizer = tokenizer_of_model(model)
    is_text = isinstance(text, str | bytes)
    ids = add_special_tokens(model, tokenizer, tokenizer.encode(text)) if is_text else _ids(text, model)
    _check_length(model, len(ids))
    cell = _cell(len(ids), cells)
    tokens = torch.tensor([ids], device=device_of(model))
    decode = partial(token_bytes, tokenizer)
    with recorded_lookups(model, lambda ids: b"".join(decode(ids))) as lookups:
        (tokens, out), layers, unseen, memories = _read_layers(
            model, lambda: _read(model, tokens), {"": len(ids) + model.own}, cell, on_progress
        )
        retrieved = {**memories, **lookups(out.aux)}
    bits = _bits(out.y[0], tokens[0]) if model.predicts_next else None
    return AttentionMaps(
        decode(tokens[0].tolist()),
        {name: layer.cells for name, layer in layers.items()},
        bits,
        unseen,
        {name: layer.numbers for name, layer in layers.items()},
        _depths(out.aux, tokens.shape[1]),
        retrieved,
        cell,
    )


def attention_maps(
    model: nn.Module, read: Callable[[], T], lengths: Mapping[str, int]
) -> tuple[T, dict[str, Float[Tensor, "H T T"]], dict[str, str]]:
    """Return the result of a call for one row, and the map of each attention layer or why it has none.

    The call runs in eval mode, without gradients.

    model: the model that `read` calls.
    read: function that reads one row without padding.
    lengths: number of tokens that a layer reads, by the part of its name before the first dot; "" is the default.
    """
    result, layers, unseen, _ = _read_layers(model, read, lengths)
    return result, {name: layer.cells for name, layer in layers.items()}, unseen


def _as_model(model: Any, text: Any) -> nn.Module:
    """Return a model or module that can be looked at; a model of transformers is converted, if `text` is no text."""
    if isinstance(model, Model):
        return model
    if isinstance(model, nn.Module) and any(isinstance(part, Attention) for part in model.modules()):
        return model
    save = getattr(model, "save_pretrained", None)
    if isinstance(model, nn.Module) and callable(save) and hasattr(model, "config"):
        if isinstance(text, str | bytes):
            raise TypeError(
                f"look failed: got a text for a {type(model).__name__} of transformers, which has no tokenizer. Call "
                "kf.look(model, tokenizer(text))"
            )
        with tempfile.TemporaryDirectory() as folder, _without_progress_bars():  # the bridge reads folders
            save(folder)
            converted: nn.Module = load_folder(Path(folder))
        return converted
    advice = "Give kf.load(FOLDER)" if isinstance(model, str | Path) else "Give kf.gpt(), or a model of kf.load(FOLDER)"
    raise TypeError(
        f"wrong model for look: got {quote(model)}, expected a model of kinformer or of transformers, or a module with "
        f"Attention layers. {advice}"
    )


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Switch off the progress bars of transformers, which would report files that nobody asked for."""
    logging: Any = sys.modules.get("transformers.utils.logging")  # a model of transformers has imported it
    was_enabled = logging is not None and logging.is_progress_bar_enabled()
    if was_enabled:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _look_at_module(
    module: nn.Module, inputs: Any, cells: int | None, on_progress: Callable[[int], None] | None
) -> AttentionMaps:
    """Call a module with a tensor, and return the maps of its attention layers, without losses."""
    if not isinstance(inputs, Tensor) or not inputs.dim():
        raise TypeError(
            f"look calls a module with one tensor: got {quote(inputs)}, expected a tensor of one row. Pass a "
            "tensor in place of the text, such as torch.randn(1, 10, 64)"
        )
    is_ids = not inputs.is_floating_point() and inputs.dim() < 3 and inputs.shape[:-1].numel() == 1
    length = inputs.shape[-1] if is_ids else max(inputs.shape[1:-1], default=inputs.shape[0])
    cell = _cell(length, cells)
    _, layers, unseen, memories = _read_layers(module, lambda: module(inputs), {}, cell, on_progress)
    names = inputs.flatten().tolist() if is_ids else range(length)
    return AttentionMaps(
        [str(name).encode() for name in names],
        {name: layer.cells for name, layer in layers.items()},
        None,
        unseen,
        {name: layer.numbers for name, layer in layers.items()},
        {},
        memories,
        cell,
    )


def _cell(length: int, cells: int | None) -> int:
    """Return the number of tokens of a block; ValueError for a text that is too short or too long."""
    if not 2 <= length <= LONGEST:
        tokens = "1 token" if length == 1 else f"{length:,} tokens"
        raise ValueError(f"look failed: got a text of {tokens}, expected 2 to {LONGEST:,}. Give another text")
    most = (length if length <= WHOLE else CELLS) if cells is None else cells
    return -(-length // most)


def _check_length(model: Model, length: int) -> None:
    """Refuse a text with more tokens than learned positions, and warn beyond the rows of the training."""
    if model.longest is not None and length > model.longest:
        raise ValueError(
            f"look failed: this model reads at most {model.longest:,} tokens; got {length:,}. Give a shorter text"
        )
    beyond_table = model.window is not None and length > model.window
    if beyond_table or is_beyond_training(model, length):
        warn(
            f"got {length:,} tokens, but the model was trained on rows of {model.trained_length:,}: maps and losses "
            "beyond that may make no sense; give a shorter text"
        )


class _LayerCalls(NamedTuple):
    """The calls of one attention layer while its model reads.

    requests: its attention calls.
    inputs, outputs: inputs of the layer, and inputs of its aggregation.
    """

    requests: list[Request]
    inputs: list[Tensor]
    outputs: list[Tensor]


def _read_layers(
    model: nn.Module,
    read: Callable[[], T],
    lengths: Mapping[str, int],
    cell: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[T, dict[str, LayerAttention], dict[str, str], dict[str, RetrievedKeys]]:
    """Call a model; return the result, the attention of each layer or why it has none, and the keys from memories.

    The map of a layer is computed as soon as it returns, so only its queries and keys are in memory.

    lengths: as in `attention_maps`; a layer without an entry reads as many tokens as its input has.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    calls = {name: _LayerCalls([], [], []) for name in layers}
    results: dict[str, LayerAttention | str] = dict.fromkeys(layers, "the layer was not called")
    results |= _other_attention(model)
    memories: dict[str, RetrievedKeys] = {}

    def note(layer: str, executor: str, request: Request) -> None:
        if layer in calls:
            calls[layer].requests.append(request)

    def judge(name: str, layer: Attention, *_: Any) -> None:
        count = lengths.get(name.partition(".")[0], lengths.get(""))
        requests, inputs, outputs = calls[name]
        results[name] = layer_attention(layer, requests, inputs, outputs, count, cell)
        if len(inputs) == 1 and (keys := keys_from_memory(layer, requests, inputs[0].shape[1])) is not None:
            memories[name] = keys
        requests.clear()
        if on_progress is not None:
            on_progress(sum(bool(layer_calls.inputs) for layer_calls in calls.values()))

    with evaluating(model), _hooks(layers, calls, judge), layers_that_read(model, note):
        result = read()
    maps = {name: attention for name, attention in results.items() if isinstance(attention, LayerAttention)}
    unseen = {name: reason for name, reason in results.items() if isinstance(reason, str)}
    return result, maps, unseen, memories


def _other_attention(model: nn.Module) -> dict[str, LayerAttention | str]:
    """Return the reason for each layer of attention that is no `Attention`, by its name."""
    reasons: dict[str, LayerAttention | str] = {}
    for name, module in model.named_modules():
        cls = type(module)
        returns_weights = isinstance(module, nn.MultiheadAttention)
        is_foreign = cls.__name__.endswith("Attention") and not cls.__module__.startswith("kinformer.")
        inside = any(isinstance(part, Attention) for part in module.modules())
        if (
            (returns_weights or is_foreign)
            and not inside
            and not any(name.startswith(f"{outer}.") for outer in reasons)
        ):
            title = "torch.nn.MultiheadAttention" if cls is nn.MultiheadAttention else cls.__name__
            other = ", or call the layer with need_weights=True" if returns_weights else ""
            reasons[name] = f"it is a {title}, and look records only kf.Attention. Use kf.Attention in its place{other}"
    return reasons


@contextmanager
def _hooks(
    layers: Mapping[str, Attention], calls: Mapping[str, _LayerCalls], judge: Callable[..., None]
) -> Iterator[None]:
    """Record inputs and outputs of layers, and judge each layer when it returns."""
    hooks = [
        part.register_forward_pre_hook(partial(_keep_first_argument, kept))
        for name, layer in layers.items()
        for part, kept in ((layer, calls[name].inputs), (layer.aggregation, calls[name].outputs))
    ]
    hooks += [layer.register_forward_hook(partial(judge, name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _keep_first_argument(kept: list[Tensor], module: Any, arguments: tuple[Any, ...]) -> None:
    kept.append(arguments[0])


def _ids(text: Any, model: Model) -> list[int]:
    """Return the token ids of one row; errors for several rows and for other values."""
    if isinstance(text, list | tuple) and text and all(isinstance(part, str | bytes) for part in text):
        raise TypeError(f"look reads one text: got a list of {len(text):,} texts. Call look once for each")
    rows = prompt_rows(text, model)
    if len(rows) != 1 or bool((rows < 0).any()):
        got = f"{len(rows):,} rows" if len(rows) != 1 else "padding"
        raise ValueError(f"look reads one row of token ids without padding: got {got}. Give one row of real tokens")
    return rows[0].tolist()


def _read(model: Any, tokens: Int[Tensor, "1 T"]) -> tuple[Int[Tensor, "1 t"], Any]:
    """Return the tokens that the model reads, with a class token if it adds one, and its output."""
    if isinstance(model, RowClassifier):
        return model.pooling.rows(tokens, mark=model.vocab), model.read(tokens)
    return tokens, model.logits(tokens)


def _bits(logits: Float[Tensor, "T N"], tokens: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
    nll = F.cross_entropy(logits[:-1].float(), tokens[1:], reduction="none") / math.log(2)
    return torch.cat([nll.new_full((1,), math.nan), nll]).cpu()


def _depths(aux: Mapping[str, Tensor], count: int) -> dict[str, Float[Tensor, " T"]]:
    """Return the number of steps or layers of each token, by the name of the model's report."""
    return {
        name: value[0].detach().float().cpu()
        for name, value in aux.items()
        if name.rpartition(".")[2] in DEPTHS and value.shape == (1, count)
    }

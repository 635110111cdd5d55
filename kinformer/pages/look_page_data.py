"""page_data: the numbers of a page of `kinformer look`, as its script reads them."""

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinformer.lab.attention_weights.head_numbers import HeadNumbers
from kinformer.lab.attention_weights.retrieved_keys import NAMED, RetrievedKeys
from kinformer.lab.attention_weights.token_letters import token_letters
from kinformer.lab.look import AttentionMaps

EMPTY = "∅"  # a token without text, such as a begin token


class TokenTint(NamedTuple):
    """A number of each token that the page can show as the colour of the text.

    title: name of the number.
    unit: its unit.
    values: the numbers; None for a token without one.
    top: number that gets the strongest colour.
    """

    title: str
    unit: str
    values: list[float | None]
    top: float


def page_data(result: AttentionMaps, tints: Sequence[TokenTint], names: Mapping[str, str]) -> dict[str, Any]:
    """Return texts of tokens, numbers of tokens and heads, maps, and retrieved keys, as values of JSON.

    result: the maps.
    tints: numbers that the page shows as colours of the text.
    names: short name of each layer.
    """
    texts = token_letters(result.tokens)
    return {
        "tokens": [_visible(str(text)) for text in texts],
        "letters": [_visible(text.letters, "") for text in texts] if any(text.cut for text in texts) else None,
        "tints": [tint._asdict() for tint in tints],
        "layers": [_layer(result, name, attention, names[name]) for name, attention in result.maps.items()],
        "retrieved": [_retrieved(keys) for keys in result.retrieved.values()],
    }


def _visible(text: str, empty: str = EMPTY) -> str:
    """Return a text with visible line breaks and spaces."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") or empty


def _layer(result: AttentionMaps, name: str, attention: Tensor, short: str) -> dict[str, Any]:
    numbers, side = head_numbers(result, name), attention.shape[1]
    # the square root keeps small weights apart: 255 steps, and an error of at most 0.004
    codes = (255 * attention.clamp(0, 1).sqrt()).round().to(torch.uint8)
    return {
        "name": short,
        "heads": len(attention),
        "n": tokens_of(result, attention),
        "c": side,
        "cell": result.cell,
        "map": base64.b64encode(zlib.compress(codes.numpy().tobytes(), 9)).decode(),
        "distance": json_numbers(numbers.distance),
        "entropy": json_numbers(numbers.entropy),
        "first": json_numbers(numbers.first_token),
    }


def head_numbers(result: AttentionMaps, name: str) -> HeadNumbers:
    """Return the numbers of the heads of a layer, which are NaN if the maps come without them.

    result: the maps.
    name: name of the layer.
    """
    missing = torch.full((len(HeadNumbers._fields), len(result.maps[name])), math.nan)
    return result.heads.get(name, HeadNumbers(*missing))


def _retrieved(keys: RetrievedKeys) -> dict[str, Any]:
    """Return the best keys of each token as lists of head, place, weight and distance."""
    heads, count, k = keys.places.shape
    rows: list[list[list[float | None]]] = [[] for _ in range(count)]
    none = torch.full((heads, count, k), math.nan)
    tensors = (keys.places, *(none if part is None else part for part in (keys.weights, keys.distances)))
    for head in range(heads):
        lists = [column[head, :, :NAMED].tolist() for column in tensors]
        for token, (places, weights, distances) in enumerate(zip(*lists, strict=True)):
            for place, weight, distance in zip(places, weights, distances, strict=True):
                if place >= 0:
                    numbers = [None if math.isnan(x) else round(x, 4) for x in (weight, distance)]
                    rows[token].append([head, place, *numbers])
    texts = {place: [_visible(str(part)) for part in token_letters(text)] for place, text in keys.texts.items()}
    is_memory = keys.distances is None
    columns = [keys.weights is not None, not is_memory]
    return {"heads": heads, "keys": rows, "texts": None if is_memory else texts, "columns": columns}


def tokens_of(result: AttentionMaps, attention: Tensor) -> int:
    """Return the number of tokens of a map, which may differ from the tokens of the text.

    result: the maps of all layers.
    attention: the map.
    """
    count, side = len(result.tokens), attention.shape[1]
    return count if -(-count // result.cell) == side else side * result.cell


def json_numbers(values: Tensor, digits: int = 4) -> list[float | None]:
    """Return numbers for JSON, which has no NaN and no infinity.

    values: the numbers.
    digits: digits after the point.
    """
    return [round(value, digits) if math.isfinite(value) else None for value in values.tolist()]

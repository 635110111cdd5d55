"""RetrievedKeys: the keys that each token retrieves from a memory or from a datastore."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.neighbours import Neighbours
from kinformer.core.request import Request
from kinformer.core.score_matrix import full_mask
from kinformer.lab.attention_weights.query_tile import by_query_head, softmax_over_keys
from kinformer.models.nearest_neighbour_lm import NearestNeighbourLM
from kinformer.models.spalm import SPALM
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.retrieval import Retrieval

NAMED = 5  # nearest entries of a token whose texts are read from the datastore
BEFORE, AFTER = 12, 6  # tokens of context before and after the token of an entry


class RetrievedText(NamedTuple):
    """The text around an entry of a datastore.

    before: text up to the token of the key.
    next: the token that followed.
    after: text after that.
    """

    before: bytes
    next: bytes
    after: bytes


class RetrievedKeys(NamedTuple):
    """The k keys that a model retrieved for each of T tokens.

    H is the number of heads that retrieve keys of their own: the heads of a layer, or 1 for a datastore.

    places: positions of the keys in the text, or numbers of entries in the datastore, best first; -1 for none.
    weights: softmax over the k keys; None for `SPALM`, whose weights depend on its embeddings too.
    distances: squared L2 distances to the query; None for a memory, which is searched by product.
    share: weight of the retrieved keys in the result, 0 to 1; None if one softmax covers them and other keys.
    texts: text around an entry of the datastore, by number, for the 5 nearest of each token; empty for a memory.
    """

    places: Int[Tensor, "H T k"]
    weights: Float[Tensor, "H T k"] | None
    distances: Float[Tensor, "H T k"] | None
    share: Float[Tensor, "H T"] | None
    texts: Mapping[int, RetrievedText] = MappingProxyType({})


def keys_from_memory(layer: Attention, calls: Sequence[Request], count: int) -> RetrievedKeys | None:
    """Return the keys that a layer with `Retrieval` took from its memory; None for another layer.

    layer: the layer.
    calls: its attention calls for one row. A search gives each query a row with its own keys.
    count: number of tokens of the text.
    """
    mechanism, heads = layer.mechanism, layer.sizes.heads
    searches = [call for call in calls if call.rows is not None]
    if not isinstance(mechanism, Retrieval) or not searches:
        return None
    width = max(call.keys.k.shape[2] for call in searches)
    places = torch.full((heads, count, width), -1)
    weights = torch.zeros(heads, count, width)
    for call in searches:
        # [N H 1 ..] for N queries, each of them a row
        batch = len(call.queries.q)
        q_pos = call.queries.pos[:, :1, 0].expand(batch, 1).cpu()[:, 0]
        k_pos = by_query_head(call.keys.pos, heads).expand(batch, -1, -1)
        # a search of few keys also returns keys that the pattern excludes
        k_pos = torch.where(full_mask(call)[:, :, 0], k_pos, -1).cpu()  # [N H k]
        softmax = softmax_over_keys(call)[0][:, :, 0].float().cpu()  # [N H k]
        order = softmax.argsort(dim=-1, descending=True, stable=True)
        n, real = order.shape[-1], q_pos >= 0
        places[:, q_pos[real], :n] = k_pos.gather(-1, order)[real].transpose(0, 1)
        weights[:, q_pos[real], :n] = softmax.gather(-1, order)[real].transpose(0, 1)
    gate = None if mechanism.gate is None else mechanism.gate.detach().sigmoid().float().cpu()
    # a query without a key in the memory gets nothing from it
    share = None if gate is None else gate[:, None] * (places >= 0).any(-1)
    return RetrievedKeys(places, weights, None, share)


@contextmanager
def recorded_lookups(
    model: nn.Module, decode: Callable[[Sequence[int]], bytes]
) -> Iterator[Callable[[Mapping[str, Tensor]], dict[str, RetrievedKeys]]]:
    """Record the searches of a model in datastores, while the context is entered.

    Yields a function that returns the retrieved keys of the last search by the name of the module. It takes the values
    that the model reported, such as the gate of `SPALM`.

    model: the model, which reads one row.
    decode: function that returns the text of tokens.
    """
    searchers = {name: part for name, part in model.named_modules() if isinstance(part, NearestNeighbourLM | SPALM)}
    neighbours: dict[str, Neighbours] = {}

    def record(name: str, search: Callable[..., Neighbours], *arguments: Any) -> Neighbours:
        neighbours[name] = search(*arguments)
        return neighbours[name]

    for name, part in searchers.items():
        search = part.find_neighbours
        vars(part)["find_neighbours"] = lambda *given, name=name, search=search: record(name, search, *given)
    try:
        yield lambda aux: {
            name: _retrieved(searchers[name], nearest, aux, decode) for name, nearest in neighbours.items()
        }
    finally:
        for part in searchers.values():
            del vars(part)["find_neighbours"]


def _retrieved(
    model: Any, neighbours: Neighbours, aux: Mapping[str, Tensor], decode: Callable[[Sequence[int]], bytes]
) -> RetrievedKeys:
    distances, tokens, places = (part[0].detach().cpu() for part in neighbours)  # [T k]
    places = torch.where(tokens >= 0, places, -1)
    weights, share = None, None
    if isinstance(model, NearestNeighbourLM):
        weights = torch.where(tokens >= 0, (-distances.float() / model.temperature).softmax(-1), 0.0)[None]
        share = torch.full((1, len(places)), float(model.weight)) * (places >= 0).any(-1)
    elif "gate" in aux:
        share = 1 - aux["gate"].detach().float().cpu()
    named = places[:, :NAMED].unique().tolist()
    texts = {place: _text(model.store, place, decode) for place in named if place >= 0}
    return RetrievedKeys(places[None], weights, distances.float()[None], share, texts)


def _text(store: Any, place: int, decode: Callable[[Sequence[int]], bytes]) -> RetrievedText:
    """Return the text around an entry; a store in memory has its tokens in the order of its text."""
    if hasattr(store, "context"):
        context = store.context(place, BEFORE, AFTER)
        return RetrievedText(decode(context.before), decode([context.next]), decode(context.after))
    tokens = store.values()
    before, after = tokens[max(place - BEFORE, 0) : place], tokens[place + 1 : place + 1 + AFTER]
    return RetrievedText(*(decode(part.tolist()) for part in (before, tokens[place : place + 1], after)))

"""Clusters of queries: what each query takes of each key, as the mean of its cluster does or by itself."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.pages.pictures.support.layers import attentions, calls, clustered, joined, weighed
from kinformer.pages.pictures.support.panel import CELLS, Panel, Picture

MOST, TINY = 96, 1e-6  # queries that are drawn; weights that differ by less are alike
KINDS = ("as the mean of its cluster takes it", "weighed by the query itself")


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A picture of the lowest layer that clusters its queries, of its first head."""
    for place, layer in attentions(example).items():
        mechanism = layer.mechanism
        if not isinstance(mechanism, Clustered):
            continue
        count = mechanism.grouping.clusters
        size = min(length or CELLS * -(-2 * count // CELLS), MOST)
        (call,) = calls(layer, clustered(size, layer.d))
        weight = weighed(call)[0].detach().abs()
        alike = weighed(call._replace(mechanism=Clustered(mechanism.grouping, scale=mechanism.scale)))[0].detach()
        kind = 1 + ((weight - alike).abs() > TINY).long()
        cluster, step = mechanism.clusters(call.queries).cluster[0, 0], -(-size // CELLS)
        sort, still = cluster.argsort(stable=True), torch.arange(size)
        panels = (
            _panel("queries in order of position", weight, kind, still, step),
            _panel("queries sorted by cluster", weight, kind, sort, step, cluster[sort]),
        )
        where = joined([place])
        caption = f"{type(mechanism).__name__}{', ' + where if where else ''}, head 0: what queries take of keys"
        note = f"{size} tokens of five kinds, a cell is {step} by {step}; " if step > 1 else "tokens of five kinds; "
        note += f"{len(cluster.unique())} clusters of at most {count} have queries, before any training"
        yield Picture(caption, KINDS[: int(kind.max())], panels, note=note)
        return


def _panel(
    title: str,
    weight: Float[Tensor, "T S"],
    kind: Int[Tensor, "T S"],
    order: Int[Tensor, " T"],
    step: int,
    cluster: Int[Tensor, " T"] | None = None,
) -> Panel:
    """A line for so many queries, in an order, named by the cluster that begins there; a column for so many keys."""
    pool = torch.nn.functional.avg_pool2d
    level, own = (pool(x[order][None].float(), step, ceil_mode=True)[0] for x in (weight, kind))
    names = [str(n) for n in range(0, len(order), step)]
    if cluster is None:
        return Panel(title, own.round().long(), level / level.amax(), tuple(names), tuple(names))
    begins = [n == 0 or bool(cluster[n] != cluster[n - step]) for n in range(0, len(order), step)]
    lines = tuple(f"cluster {int(cluster[n * step])}" if new else "" for n, new in enumerate(begins))
    return Panel(title, own.round().long(), level / level.amax(), lines, tuple(names))

"""Pictures of clustered attention: weights from the mean query of a cluster, or from the query itself."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import avg_pool2d

from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.pages.pictures.support.attention_calls import call_of, first_head, read_weights
from kinformer.pages.pictures.support.drawer import of_mechanisms
from kinformer.pages.pictures.support.picture_panels import CELLS, Panel, Picture, numbers, of_cells, of_most

MOST, TINY = 96, 1e-6  # most queries that are drawn; weights that differ by less count as equal
KINDS = ("weight of the cluster centroid", "weight of the query itself")


@of_mechanisms(Clustered, first=True)
def pictures(mechanism: Clustered, layer: Attention, where: str, length: int | None) -> Picture:
    """Draw the attention weights of the lowest layer with clustered attention, in its first head."""
    count = mechanism.grouping.clusters
    size = min(length or CELLS * -(-2 * count // CELLS), MOST)
    call, step = call_of(layer, size), -(-size // CELLS)
    weight = first_head(call)
    plain = call._replace(mechanism=Clustered(mechanism.grouping, scale=mechanism.scale))
    kind = 1 + ((weight - read_weights(plain)[0].detach()).abs() > TINY).long()
    cluster = mechanism.clusters(call.queries).cluster[0, 0]
    order = cluster.argsort(stable=True)
    begins = [n == 0 or bool(cluster[order][n] != cluster[order][n - step]) for n in range(0, size, step)]
    lines = tuple(f"cluster {int(cluster[order][n * step])}" if new else "" for n, new in enumerate(begins))
    panels = (
        _panel("queries by position", weight, kind, step, numbers(len(begins), step)),
        _panel("queries sorted by cluster", weight[order], kind[order], step, lines),
    )
    note = f"{size} tokens of five kinds{of_cells(step, ', ')}; " if step > 1 else "tokens of five kinds; "
    note += f"{len(cluster.unique())} of {count} clusters have queries; untrained weights"
    caption = f"{type(mechanism).__name__}{where}, head 0: attention weights"
    return Picture(caption, KINDS[: int(kind.max())], panels, note=note)


def _panel(
    title: str, weight: Float[Tensor, "T S"], kind: Int[Tensor, "T S"], step: int, lines: tuple[str, ...]
) -> Panel:
    """Return a panel whose cells are means over `step` queries and `step` keys."""
    level, kinds = (avg_pool2d(x[None].float(), step, ceil_mode=True)[0] for x in (weight, kind))
    return Panel(title, kinds.round().long(), of_most(level), lines, numbers(level.shape[1], step))

"""Shared code of recipes from BERT: check of the source, longer positions, new layers of attention."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from kinformer.convert.support.changed_model import attention_layers
from kinformer.core.collected_outputs import wants_and_sends
from kinformer.core.conversion import WeightSource
from kinformer.core.layer import Layer
from kinformer.core.model import Model, display_name
from kinformer.core.residual_block import ResidualBlock
from kinformer.nn.attention import Attention
from kinformer.nn.positions.learned import Learned

# keywords of the source that longformer and bigbird have too
TAKEN = ("d", "depth", "heads", "head_dim", "kinds", "vocab", "dropout", "hidden", "mask", "eps")
PUBLISHED = {"position": "learned", "norm": "post", "drawn": 0, "segments": None}  # keywords of published encoders
TIMES = 8  # new positions for each old one: 4,096 for 512, as in Longformer's paper
POSITIONS = "position.table.weight"


def bert_keywords(model: Model, recipe: str) -> dict[str, Any]:
    """Return the keywords of a `bert` in its published form, as BERT, RoBERTa and DistilBERT have it.

    model: the model.
    recipe: name of the recipe, for the error message.

    Errors: ValueError, in one line, for another member or another form.
    """
    record: Any = getattr(model, "member", None)
    if record is None or record.name != "bert" or record.changes:
        changed = " that another conversion has changed" if getattr(record, "changes", ()) else ""
        raise ValueError(
            f"the conversion {recipe} starts from a bert: got a {display_name(model)}{changed}. Load a BERT, RoBERTa "
            "or DistilBERT folder, or train bert"
        )
    keywords = dict(record.keywords)
    patterns = keywords["pattern"] if isinstance(keywords["pattern"], tuple) else (keywords["pattern"],)
    wrong = {name: keywords[name] for name, value in PUBLISHED.items() if keywords[name] != value}
    wrong |= {} if set(patterns) == {"Full()"} else {"pattern": keywords["pattern"]}
    for name, value in wrong.items():
        expected = PUBLISHED.get(name, "Full()")
        raise ValueError(
            f"the conversion {recipe} does not fit this bert: got {name}={value!r}, expected {expected!r} as in "
            "published models"
        )
    return keywords


def trained_positions(model: Model) -> int:
    """Return the number of positions that the model has learned.

    It is the length of its table, or of the longest row of its training.

    model: the source.
    """
    assert model.window is not None  # `bert_keywords` demands a table of positions
    return model.window


def resolve_length(length: int | None, model: Model) -> int:
    """Return the longest row of the converted model: 8 times the source's by default.

    length: the option, or None.
    model: the source.

    Errors: ValueError if the option is shorter than the rows that the source reads.
    """
    least = trained_positions(model)
    if length is None:
        return TIMES * least
    if length < least:
        raise ValueError(f"length={length} is shorter than the rows of {least} tokens that the source reads. Give more")
    return length


def tile_positions(source: Model, length: int) -> dict[str, WeightSource]:
    """Return the source of a longer table of positions: copies of the trained table in order.

    source: the source.
    length: number of rows of the new table.
    """
    period = trained_positions(source)
    return {POSITIONS: WeightSource("tiled", (POSITIONS,), partial(_tile, period=period, length=length))}


def _tile(table: Tensor, *, period: int, length: int) -> Tensor:
    return table[:period].repeat(-(-length // period), 1)[:length]


def lengthen(model: Model, length: int) -> None:
    """Give a model a table of this many learned positions, with any weights.

    model: the model, which is changed.
    length: number of positions.
    """
    old: Any = model.position
    model.position = Learned(old.table.embedding_dim, length).to(old.table.weight)
    note_length(model, length)


def note_length(model: Model, length: int) -> None:
    """Note that the positions of a converted model are trained up to a length, because they are copies.

    Otherwise `Model.window` would stay the training length of the source, and evaluation would cut longer rows.
    """
    if model.trained_length is not None:
        model.trained_length = length


def replace_attention(model: Model, make: Callable[[int, Attention], Layer]) -> None:
    """Put another layer in place of the self-attention of each block.

    model: the model of blocks in a Stack, which is changed.
    make: makes the new layer from the number of the block and its old layer.
    """
    for number, (name, layer) in enumerate(attention_layers(model)):
        model.set_submodule(name, make(number, layer))
    body: Any = model.body
    for block in body.layers:  # blocks and stacks note at their construction what their layers want and send
        block.wants, block.sends = wants_and_sends(block.layers, rising=False)
    body.wants, body.sends = wants_and_sends(body.layers, rising=True)


def move_blocks(source: Model, converted: Model) -> dict[str, WeightSource]:
    """Return the sources of the tensors of blocks, if these have other names in the new model.

    source: the source.
    converted: the new model, with as many blocks; tensors of new parts are left out.
    """
    new, sources = converted.state_dict(), dict[str, WeightSource]()
    for old_block, new_block in zip(_blocks(source), _blocks(converted), strict=True):
        for tensor, _ in source.get_submodule(old_block).named_parameters():
            old_name, new_name = f"{old_block}.{tensor}", f"{new_block}.{tensor}"
            if new_name in new and new_name != old_name:
                sources[new_name] = WeightSource("moved", (old_name,))
    return sources


@dataclass(frozen=True)
class StackedRows:
    """Rows `first` to `last` of a tensor: the computation of a part of stacked matrices.

    first, last: first row, and the row after the last one; None for the end.
    """

    first: int
    last: int | None

    def __call__(self, stacked: Tensor) -> Tensor:
        return stacked[self.first : self.last]


def _blocks(model: Model) -> list[str]:
    return [name for name, part in model.named_modules() if isinstance(part, ResidualBlock)]

"""`kinformer cost MEMBER [key=value ...]`: what a training takes, before it is begun."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from kinformer.cli.errors import refuse_useless
from kinformer.cli.options import BATCH, LENGTH, Batch, Json, Keywords, Length, Member
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import parse_member

if TYPE_CHECKING:
    from kinformer.core.memory import Remembered
    from kinformer.lab.cost.cost import Cost
    from kinformer.lab.cost.temporal_range import TemporalRange


def cost(
    ctx: typer.Context,
    member: Member,
    keywords: Keywords = None,
    *,
    batch: Batch = BATCH,
    length: Length = LENGTH,
    as_json: Json = False,
) -> None:
    """Say what training a member on such batches takes, and what decoding does.

    Parameters, additions and multiplications, memory at its highest, bytes of a decoding state, and which executor
    reads each layer. Found by running a few random rows on the CPU; nothing is kept. Pairs of a query
    and a key are counted as PyTorch counts them where attention is full or causal, else those that are read.

    A fresh process takes what is told of a whole one within 15%, but where blocks of some megabytes come and go, as of
    guided_attention and talking_heads at 2 x 1,024: the C library's heap breaks up, in each run otherwise (711 and 948
    MB of one training). MALLOC_MMAP_THRESHOLD_=1000000 in the environment keeps that at 493 MB, as is told then.

    A memory is filled first: up to 4,096 tokens of a row are read before those that are counted. For a member with a
    memory or with windows, the temporal range is printed too: how many tokens back the earliest token stands that can
    still change an output, through all layers. Attention over a segment of L tokens, a memory of m states and m_cm
    compressed states scores L^2 + L (m + m_cm) pairs in each layer and head.
    """
    choice = parse_member(member, keywords or ())

    from kinformer.cli.support.memory_limits import decides_length, refuse_too_large
    from kinformer.cli.support.progress_bar import progress
    from kinformer.core.model import Forecaster
    from kinformer.lab.cost.cost import STAGES
    from kinformer.lab.cost.cost import cost as cost_of
    from kinformer.lab.cost.free_memory import free_memory
    from kinformer.lab.units import size

    refuse_too_large(choice, batch, length)
    with from_user(ValueError, LookupError), progress("counting", STAGES, "counts") as hear:
        try:
            model = choice.build(0)
            if decides_length(model):
                refuse_useless(ctx, f"on {choice.text}, which fixes the length of rows itself", "length")
            measured = cost_of(model, batch, length, hear)
        except (MemoryError, RuntimeError) as error:
            raise UserError(f"{choice.text}: two rows of {length:,} tokens cannot be run here: {error}") from error
    if as_json:
        memories = {name: {**part._asdict(), "pairs": part.pairs} for name, part in measured.memories.items()}
        more = {"step_flops": measured.step_flops, "memories": memories}
        print(json.dumps({"member": choice.text, **asdict(measured), **more}, indent=2))
        return
    series = isinstance(model, Forecaster)  # whose windows are as long as it says
    each = f"{model.context:,} known rows and {model.horizon:,} that come" if series else f"{length:,}"
    print(f"{choice.text}, batches of {batch:,} x {each}")
    rows = {
        "parameters": f"{measured.parameters:,} ({size(measured.weights)} with buffers)",
        "forward": f"{_giga(measured.flops)} additions and multiplications",
        "training step": _giga(measured.step_flops),
        "activations": size(measured.activations),
        "memory": _memory(measured, free_memory()),
        "decoding state": "none: it reads a whole row at once"
        if measured.state is None
        else f"{size(measured.state)} a row",
        "read by": "; ".join(_read_by(measured)) or "its mechanisms themselves",
    }
    if measured.temporal_range is not None:
        rows["temporal range"] = _range(measured.temporal_range)
    if measured.memories:
        rows["attention"] = "; ".join(_pairs(measured.memories))
    for name, text in rows.items():
        print(f"{name:<16}{text}")


def _giga(flops: int) -> str:
    return f"{flops / 1e9:,.4g} GFLOP"


def _memory(measured: "Cost", free_bytes: int | None) -> str:
    from kinformer.lab.units import size

    whole = "" if measured.process is None else f", {size(measured.process)} of a whole process"
    free = "" if free_bytes is None else f"; {size(free_bytes)} are free here"
    return f"{size(measured.peak)} of tensors at the highest{whole}{free}"


def _range(tokens: "TemporalRange") -> str:
    if not tokens.exact:
        return f"at most {tokens.most:,} tokens back"
    if tokens.least == tokens.most:
        return f"{tokens.most:,} tokens back"
    return f"{tokens.least:,} to {tokens.most:,} tokens back, by position"


def _pairs(memories: "Mapping[str, Remembered]") -> list[str]:
    """The scores of a segment, by what its tokens read, layers that read alike together."""
    texts = {}
    for layer, part in memories.items():
        kinds = {"": part.length, " of memory": part.memory, " compressed": part.compressed, " searched": part.searched}
        keys = " + ".join(f"{count:,}{kind}" for kind, count in kinds.items() if count)
        texts[layer] = f"{part.length:,} x ({keys}) = {part.pairs:,} pairs of a segment and head"
    return _alike(texts)


def _read_by(measured: "Cost") -> list[str]:
    """Executors with the layers that they read, those that read alike together."""
    texts = {}
    for layer, readers in measured.readers.items():
        texts[layer] = ", ".join(name if times == 1 else f"{name} {times} times" for name, times in readers.items())
    return _alike(texts)


def _alike(texts: dict[str, str]) -> list[str]:
    """What is said of layers, with the number of layers of which the same is said."""
    counts = Counter(texts.values())
    return [f"{text} ({count} layer{'s' if count > 1 else ''})" for text, count in counts.items()]

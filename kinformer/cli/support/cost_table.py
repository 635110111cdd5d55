"""The lines that `kinformer cost` prints."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kinformer.core.memory import MemoryCost
from kinformer.core.model import Forecaster
from kinformer.lab.byte_units import size
from kinformer.lab.cost.cost import Cost
from kinformer.lab.cost.free_memory import free_memory
from kinformer.lab.cost.temporal_range import TemporalRange


def print_json(text: str, model: Any, measured: Cost, batch: int, length: int) -> None:
    """Print what was measured of a member, which is written as `text`, for programs."""
    memories = {name: {**part._asdict(), "pairs": part.pairs} for name, part in measured.memories.items()}
    details = {"step_flops": measured.step_flops, "memories": memories}
    print(json.dumps({"member": text, **asdict(measured), **details}, indent=2))


def print_table(text: str, model: Any, measured: Cost, batch: int, length: int) -> None:
    """Print what was measured of a member, which is written as `text`, a line each."""
    series = isinstance(model, Forecaster)  # whose windows are as long as it says
    each = f"{model.context:,} known rows and {model.horizon:,} that come" if series else f"{length:,}"
    print(f"{text}, batches of {batch:,} x {each}")
    state = "none: it reads a whole row at once" if measured.state is None else f"{size(measured.state)} a row"
    rows = {
        "parameters": f"{measured.parameters:,} ({size(measured.weights)} with buffers)",
        "forward": f"{_gigaflops(measured.flops)} additions and multiplications",
        "training step": _gigaflops(measured.step_flops),
        "activations": size(measured.activations),
        "memory": _memory_text(measured, free_memory()),
        "decoding state": state,
        "read by": "; ".join(_readers_by_layer(measured)) or "its mechanisms themselves",
        **({} if measured.temporal_range is None else {"temporal range": _range_text(measured.temporal_range)}),
        **({"attention": "; ".join(_score_pairs(measured.memories))} if measured.memories else {}),
    }
    for name, line in rows.items():
        print(f"{name:<16}{line}")


def _gigaflops(flops: int) -> str:
    return f"{flops / 1e9:,.4g} GFLOP"


def _memory_text(measured: Cost, free_bytes: int | None) -> str:
    whole = "" if measured.process is None else f", {size(measured.process)} of a whole process"
    free = "" if free_bytes is None else f"; {size(free_bytes)} are free here"
    return f"{size(measured.peak)} of tensors at the highest{whole}{free}"


def _range_text(tokens: TemporalRange) -> str:
    if not tokens.exact:
        return f"at most {tokens.most:,} tokens back"
    if tokens.least == tokens.most:
        return f"{tokens.most:,} tokens back"
    return f"{tokens.least:,} to {tokens.most:,} tokens back, by position"


def _score_pairs(memories: Mapping[str, MemoryCost]) -> list[str]:
    """The scores of a segment, by what its tokens read, layers that read alike together."""
    texts = {}
    for layer, part in memories.items():
        kinds = {"": part.length, " of memory": part.memory, " compressed": part.compressed, " searched": part.searched}
        keys = " + ".join(f"{count:,}{kind}" for kind, count in kinds.items() if count)
        texts[layer] = f"{part.length:,} x ({keys}) = {part.pairs:,} pairs of a segment and head"
    return _count_equal_texts(texts)


def _readers_by_layer(measured: Cost) -> list[str]:
    """Executors with the layers that they read, those that read alike together."""
    texts = {}
    for layer, readers in measured.readers.items():
        texts[layer] = ", ".join(name if times == 1 else f"{name} {times} times" for name, times in readers.items())
    return _count_equal_texts(texts)


def _count_equal_texts(texts: dict[str, str]) -> list[str]:
    """What is said of layers, with the number of layers of which the same is said."""
    counts = Counter(texts.values())
    return [f"{text} ({count} layer{'s' if count > 1 else ''})" for text, count in counts.items()]

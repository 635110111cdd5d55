"""The output of `kinformer cost`, as a table or as JSON."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from kinformer.core.memory import MemoryCost
from kinformer.core.model import Forecaster
from kinformer.lab.byte_units import size
from kinformer.lab.cost.cost import Cost
from kinformer.lab.cost.free_memory import free_memory
from kinformer.lab.cost.temporal_range import TemporalRange

CPU = torch.device("cpu")


def print_json(text: str, measured: Cost, device: torch.device = CPU, precision: str = "float32") -> None:
    """Print the cost of training a member as JSON.

    text: the member as the user writes it.
    measured: the measured cost.
    device, precision: the device and the number format of the measurement.
    """
    memories = {name: {**part._asdict(), "pairs": part.pairs} for name, part in measured.memories.items()}
    details = {"step_flops": measured.step_flops, "memories": memories, "device": str(device), "precision": precision}
    print(json.dumps({"member": text, **asdict(measured), **details}, indent=2))


def print_table(
    text: str,
    model: Any,
    measured: Cost,
    batch: int,
    length: int,
    device: torch.device = CPU,
    precision: str = "float32",
) -> None:
    """Print the cost of training a member as a table with one quantity per line.

    text: the member as the user writes it.
    model: the model; for a forecaster, its own row length is printed instead of `length`.
    measured: the measured cost.
    batch: rows of a batch.
    length: tokens of a row.
    device, precision: the device and the number format of the measurement.
    """
    series = isinstance(model, Forecaster)  # a forecaster fixes the length of its windows
    each = f"({model.context:,} known + {model.horizon:,} forecast rows)" if series else f"{length:,} tokens"
    print(f"{text}, batches of {batch:,} x {each}, {precision} on {device}")
    state = "none: the model reads a whole row at once" if measured.state is None else f"{size(measured.state)} per row"
    rows = {
        "parameters": f"{measured.parameters:,} ({size(measured.weights)} with buffers)",
        "forward pass": f"{_gigaflops(measured.flops)} (additions and multiplications)",
        "training step": _gigaflops(measured.step_flops),
        "activations": size(measured.activations),
        "memory": _memory_text(measured, device),
        "decoding state": state,
        "executors": "; ".join(_readers_by_layer(measured)) or "none: its mechanisms compute attention themselves",
        **({} if measured.temporal_range is None else {"temporal range": _range_text(measured.temporal_range)}),
        **({"scores": "; ".join(_score_pairs(measured.memories))} if measured.memories else {}),
    }
    for name, line in rows.items():
        print(f"{name:<16}{line}")


def _gigaflops(flops: int) -> str:
    return f"{flops / 1e9:,.4g} GFLOP"


def _memory_text(measured: Cost, device: torch.device) -> str:
    whole = "" if measured.process is None else f", {size(measured.process)} for the whole process"
    free_bytes, place = free_memory(device), "this machine" if device.type == "cpu" else device
    free = "" if free_bytes is None else f"; {size(free_bytes)} free on {place}"
    return f"{size(measured.peak)} for tensors at peak{whole}{free}"


def _range_text(tokens: TemporalRange) -> str:
    if not tokens.exact:
        return f"at most {tokens.most:,} tokens back"
    if tokens.least == tokens.most:
        return f"{tokens.most:,} tokens back"
    return f"{tokens.least:,} to {tokens.most:,} tokens back, depending on the position"


def _score_pairs(memories: Mapping[str, MemoryCost]) -> list[str]:
    """The number of attention scores per segment and head, as queries x keys; equal layers share a text."""
    texts = {}
    for layer, part in memories.items():
        kinds = {"": part.length, " of memory": part.memory, " compressed": part.compressed, " searched": part.searched}
        keys = " + ".join(f"{count:,}{kind}" for kind, count in kinds.items() if count)
        texts[layer] = f"{part.length:,} x ({keys}) = {part.pairs:,} per segment and head"
    return _count_equal_texts(texts)


def _readers_by_layer(measured: Cost) -> list[str]:
    """The executors that compute the attention of each layer; equal layers share a text."""
    texts = {}
    for layer, readers in measured.readers.items():
        texts[layer] = ", ".join(name if times == 1 else f"{name} {times} times" for name, times in readers.items())
    return _count_equal_texts(texts)


def _count_equal_texts(texts: dict[str, str]) -> list[str]:
    """Each distinct text once, with the number of layers that have it."""
    counts = Counter(texts.values())
    return [f"{text} ({count} layer{'s' if count > 1 else ''})" for text, count in counts.items()]

"""Law own_weights: each layer has weights of its own and is applied once per call.

The example of a part may declare exceptions in `shares`.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from kinformer.core.layer import Context, Layer
from kinformer.laws.support.subject import Subject, TrainingSubject

SAYS = "each layer has weights of its own, except weights that the example declares in `shares`"
OVER = ("layer", "model")
LENGTH = 7


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Yield a sentence for each weight that two layers share, and each layer that is applied twice.

    subject: a layer or model with the part to test.

    A layer may be applied once to a token in one call of the enclosing layer. Two parameters over the same memory count
    as one weight. An embedding lies outside of all layers, so an output head with the weight of the embedding is
    allowed. The mapping `shares` of the example allows further names of weights and layers. A name in `shares` that
    matches no shared weight is reported too.
    """
    groups = [*_of_several_layers(subject), *_applied_again(subject)]
    for names in groups:
        if not any(all(fnmatchcase(name, declared) for name in names) for declared in subject.shares):
            yield _sentence(names)
    for declared in subject.shares:
        if not any(all(fnmatchcase(name, declared) for name in names) for names in groups):
            yield f"shares= names {declared!r}, but no layers share such a weight. Remove it from shares="


def _sentence(names: list[str]) -> str:
    if len(names) == 1:
        fault = f"layers share weights: the layer {names[0]} is applied several times to a token in one call"
    else:
        fault = f"layers share weights: {names[0]} and {names[1]} are the same weight"
    return f"{fault}. Give each layer weights of its own, or declare the sharing in shares= of the example"


def _of_several_layers(subject: Subject | TrainingSubject) -> list[list[str]]:
    """Return groups of names, one for each weight that belongs to several layers."""
    with torch.random.fork_rng(devices=[]):
        module = subject.make()  # not cast: a cast would separate two parameters over the same memory
    layers = [name for name, part in module.named_modules(remove_duplicate=False) if isinstance(part, Layer)]
    names = list(module.named_parameters(remove_duplicate=False))
    groups: list[list[str]] = []
    end = -1
    for begin, last, name in sorted((*_memory(weight), name) for name, weight in names):
        if begin < end:
            groups[-1].append(name)
        else:
            groups.append([name])
        end = max(end, last)
    return sorted(sorted(group) for group in groups if len({_owner(name, layers) for name in group}) > 1)


def _memory(weight: nn.Parameter) -> tuple[int, int]:
    """Return the memory range of a weight: its first address, and the first address after it."""
    last = sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))
    begin = weight.data_ptr()
    return begin, begin + (last + 1 if weight.numel() else 0) * weight.element_size()


def _owner(name: str, layers: list[str]) -> str:
    """Return the innermost layer that a weight belongs to, "" for none."""
    return max((layer for layer in layers if name.startswith(f"{layer}.")), key=len, default="")


def _applied_again(subject: Any) -> list[list[str]]:
    """Return layers with weights that read a position twice or more in a call of the enclosing layer."""
    module = subject.build()
    with _calls(module) as repeated, torch.no_grad():
        subject.call(module, subject.ragged(LENGTH))
    return [[name] for name in sorted(repeated)]


@contextmanager
def _calls(module: Any) -> Iterator[set[str]]:
    """Collect the names of layers that are applied repeatedly, in the set that this context yields."""
    repeated: set[str] = set()
    open_calls: list[tuple[int, Counter]] = []  # of each running layer: its rows, and (layer, position) read inside

    def open_call(part: nn.Module, inputs: tuple, name: str) -> None:
        ctx = next(argument for argument in inputs if isinstance(argument, Context))
        if open_calls and not ctx.remember:
            rows, reads = open_calls[-1]
            reads.update((name, position) for position in ctx.pos[ctx.pos >= 0].tolist())
            if max((count for (layer, _), count in reads.items() if layer == name), default=0) > rows:
                repeated.add(name)
        open_calls.append((len(ctx.pos), Counter()))

    def close_call(part: nn.Module, inputs: tuple, out: Any) -> None:
        open_calls.pop()

    hooks = []
    for name, part in module.named_modules():
        if isinstance(part, Layer) and any(True for _ in part.parameters()):
            hooks.append(part.register_forward_pre_hook(lambda part, inputs, name=name: open_call(part, inputs, name)))
            hooks.append(part.register_forward_hook(close_call))
    try:
        yield repeated
    finally:
        for hook in hooks:
            hook.remove()

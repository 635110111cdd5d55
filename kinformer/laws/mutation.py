"""Law 15, mutation: a forward changes no buffer, no parameter, nothing that it was handed, no mapping of an Out."""

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.layer import Context, Out
from kinformer.laws.broken import Broken
from kinformer.laws.subject import Subject

LENGTH = 9
MAPPINGS = ("aux", "up", "stats")


def check(subject: Subject) -> None:
    """Forward and backward in eval and train mode, with and without a state; what a state held may be used up."""
    shared = [Out._field_defaults[name] for name in MAPPINGS]
    try:
        _all(subject, subject.build())
        if any(shared):
            raise Broken("a forward writes to the empty mapping that every Out shares")
    finally:
        for mapping in shared:
            mapping.clear()  # so that what is judged next does not suffer


def _all(subject: Subject, module: nn.Module) -> None:
    before = {name: tensor.detach().clone() for name, tensor in _numbers(module).items()}
    for training in (False, True):
        module.train(training)
        states = [None] if subject.no_state(module) else [None, subject.start(module, 3, LENGTH)]
        for state in states:
            _forward(subject, module, state)
            for name, tensor in _numbers(module).items():
                if name not in before or not torch.equal(tensor, before[name]):
                    mode = "train" if training else "eval"
                    raise Broken(
                        f"a forward in {mode} mode changes {name}; what must change once per step belongs in after_step"
                    )


def _numbers(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter, buffer and tensor attribute."""
    named = [*module.named_parameters(), *module.named_buffers()]
    plain = [
        (f"{place}.{name}", value)
        for place, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    ]
    return dict(named + plain)


def _forward(subject: Subject, module: Any, state: Any) -> None:
    batch = subject.ragged(LENGTH)
    kept = [t.clone() for t in (batch.x, batch.pos, batch.source, batch.source_pos) if t is not None]
    outs: list[tuple[Out, dict[str, dict[str, Tensor]]]] = []

    def note(part: nn.Module, inputs: tuple, out: Any) -> None:
        if isinstance(out, Out):
            outs.append((out, {name: dict(getattr(out, name)) for name in MAPPINGS}))

    def guard(part: nn.Module, inputs: tuple) -> tuple:
        return tuple(_guarded(value) if isinstance(value, Context) else value for value in inputs)

    hooks = [part.register_forward_hook(note) for part in module.modules()]
    hooks += [part.register_forward_pre_hook(guard) for part in module.modules()]
    try:
        out = subject.call(module, batch, state)
    except TypeError as error:
        if "mappingproxy" in str(error):
            raise Broken(f"a forward writes to ctx.below: {error}") from error
        raise
    finally:
        for hook in hooks:
            hook.remove()
    _plain_stats(out, module.training)
    if out.y.requires_grad:
        out.y.sum().backward()
        module.zero_grad()
    for returned, mappings in outs:
        for name, entries in mappings.items():
            now = getattr(returned, name)
            if now.keys() != entries.keys() or any(now[key] is not entries[key] for key in entries):
                raise Broken(f"the mapping {name} of a part's Out is written to after it was returned: {sorted(now)}")
    if not all(
        map(torch.equal, kept, [t for t in (batch.x, batch.pos, batch.source, batch.source_pos) if t is not None])
    ):
        raise Broken("a forward writes to its inputs")


def _plain_stats(out: Out, training: bool) -> None:
    if out.stats and not training:
        raise Broken(f"stats {sorted(out.stats)} are for after_step, and none is given in eval mode")
    attached = sorted(name for name, value in out.stats.items() if value.requires_grad)
    if attached:
        raise Broken(f"stats {attached} have a gradient; detach them")


def _guarded(ctx: Context) -> Context:
    below = MappingProxyType(dict(ctx.below))
    return Context(ctx.pos, ctx.run, ctx.only, ctx.also, ctx.source, ctx.source_pos, below)

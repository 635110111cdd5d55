"""What a keyword of a member changes: the values it may take, and what can be seen of the model that it builds."""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from kinformer.core.keyword_conditions import has_effect
from kinformer.core.keywords import signature
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern

ROWS, LENGTH = 2, 26
VALUES: dict[str, tuple[Any, ...]] = {  # of keywords whose annotation says too little
    "pattern": ("Causal() & Band(2)", "Band(3)"),
    "tables": ("Blocks(((), (0,)), 2)",),
    "permutations": (("1-0", "0-1"), ("0-1", "1-0")),
    "shares": ((2, 0), (0, 2)),
    "stack": ("gpt(d=8, depth=1, heads=2, length=64)",),
    "layers": ("M", "L", "LM"),
    "guides": (("next", "delimiter"), ("period", "next"), ()),
    "scales": ((0, 3), (1,)),
    "shape": ((1, 2, 4), (2, 3, 4)),
    "tile": ((1, 2), (4, 2)),
    "around": ((0, 1), (2, 1)),
    "search": ("hnsw",),
    "observations": ((2,), (5,)),
    "targets": (1, 3),
    "every": (1, 2),
    "frozen": (True, 1),
    "spans": ("dynamic", "1 / (1 + x)", "Step(2, 5)"),
    **dict.fromkeys(("g2g", "g2l", "l2g", "l2l"), ("Band(1)", "~Full()")),
}


class Model(NamedTuple):
    """What is seen of a model without running it; `refusal` in place of it where there is none."""

    tensors: object = None
    parts: object = None
    refusal: str = ""


def values(name: str, annotation: Any, current: Any) -> list[Any]:
    """Other values that a keyword may take, likely ones first."""
    options = list(VALUES.get(name, ()))
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    for kind in typing.get_args(annotation) if union else (annotation,):
        options += _of_kind(kind, current)
    fresh: list[Any] = []
    for option in options:
        if not any(type(option) is type(other) and option == other for other in (*fresh, current)):
            fresh.append(option)
    return fresh


def _of_kind(kind: Any, current: Any) -> tuple[Any, ...]:
    if kind is types.NoneType:
        return (None,)
    if kind is bool:
        return (True, False)
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)
    number = current if isinstance(current, int | float) and not isinstance(current, bool) else 5
    if kind is int:
        return (number * 2, number + 1, number // 2, 0, 1, 3)
    if kind is float:
        return (number * 0.5 + 0.05, 0.0, 1.0, 2.0)
    if typing.get_origin(kind) is tuple:
        (item, _) = typing.get_args(kind)
        literals = typing.get_args(item) if typing.get_origin(item) is Literal else ()
        return ((literals[0],), (literals[-1],)) if literals else ((2, 3), (1, 2)) if item is int else ()
    return ()


class Watched:
    """A member, and what was seen of the models that it built, by their keywords."""

    def __init__(self, function: Callable[..., Any]):
        self.function, self.parameters = function, signature(function).parameters
        self.models, self.runs = dict[str, Model](), dict[str, object]()

    def useful(self, keywords: Mapping[str, Any], *names: str) -> dict[str, Any]:
        """The keywords that have an effect beside the others, and those of these names."""
        needs: Any = self.function.needs  # type: ignore[attr-defined]
        return {key: value for key, value in keywords.items() if key in names or has_effect(key, needs, keywords)}

    def build(self, keywords: Mapping[str, Any]) -> Model:
        """What is seen of a model before it runs."""
        key = repr(sorted(keywords.items()))
        if key not in self.models:
            try:
                model = self._made(keywords)
                self.models[key] = Model(_tensors(model), _parts(model))
            except (ValueError, TypeError) as error:
                self.models[key] = Model(refusal=str(error))
        return self.models[key]

    def run(self, keywords: Mapping[str, Any]) -> object:
        """What is seen of a model that reads a batch."""
        key = repr(sorted(keywords.items()))
        if key not in self.runs:
            self.runs[key] = _behaviour(self._made(keywords))
        return self.runs[key]

    def _made(self, keywords: Mapping[str, Any]) -> Any:
        with _equal_draws():
            return self.function(**keywords)

    def useless(self, base: Mapping[str, Any], name: str, most: int) -> list[Any]:
        """Values of a keyword that are taken and change nothing; none where one of the `most` tried changes something.

        base: a value of every keyword.
        """
        before, same = self.useful(base), list[Any]()
        for value in values(name, self.parameters[name].annotation, base[name])[:most]:
            model = self.build(self.useful({**base, name: value}, name))
            assert "\n" not in model.refusal, model.refusal
            if not model.refusal and model != self.build(before):
                return []
            same += [] if model.refusal else [value]
        changes = (self.run(self.useful({**base, name: value}, name)) != self.run(before) for value in same)
        return [] if any(changes) else same


@contextmanager
def _equal_draws() -> Iterator[None]:
    """While this lasts, numbers that a constructor draws depend on their shape, not on what was drawn before."""
    counts: dict[tuple[int, ...], int] = {}

    def seeded(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def equal_draw(tensor: Tensor, *args: Any, generator: Any = None, **keywords: Any) -> Tensor:
            count = counts[tuple(tensor.shape)] = counts.get(tuple(tensor.shape), 0) + 1
            seed = torch.Generator().manual_seed(hash((tuple(tensor.shape), count)) % 2**40)
            return draw(tensor, *args, generator=seed, **keywords)

        return equal_draw

    originals = {name: getattr(Tensor, name) for name in ("normal_", "uniform_")}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            for name, draw in originals.items():
                setattr(Tensor, name, seeded(draw))
            yield
        finally:
            for name, draw in originals.items():
                setattr(Tensor, name, draw)


def _tensors(model: nn.Module) -> object:
    return [(name, t.requires_grad, _digest(t)) for name, t in (*model.named_parameters(), *model.named_buffers())]


def _digest(tensor: Tensor) -> object:
    plain = tensor.detach().double().flatten().nan_to_num(7.0)
    return tuple(tensor.shape), float(plain.sum()), float(plain @ torch.arange(1.0, len(plain) + 1, dtype=plain.dtype))


def _parts(model: nn.Module) -> object:
    """Every module with its plain attributes."""
    return [
        (name, type(part).__name__, {key: _plain(value) for key, value in vars(part).items() if _shown(key)})
        for name, part in model.named_modules()
    ]


def _shown(name: str) -> bool:
    return not name.startswith("_") and name not in ("training", "member")


def _plain(value: Any) -> object:
    """Numbers, names and patterns as they are, in containers too; of anything else its type."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, Pattern):
        return repr(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, [_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return getattr(value, "__name__", type(value).__name__)


def _behaviour(model: Any) -> object:
    """The loss at the begin of training, what is judged in eval mode, and a fresh state."""
    longest = getattr(model, "longest", None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        batch = model.sample(ROWS, LENGTH if longest is None else min(LENGTH, longest), 0)
        with torch.no_grad():
            loss = model.train()(batch, progress=0.0)
            judged = _seen(model.eval().judge(batch).totals)
        try:
            state = _seen(model.start(2, LENGTH))
        except (NoState, ValueError) as error:
            state = str(error)
    return float(loss.total), _seen(dict(loss.parts)), _seen(loss.stats), judged, state


def _seen(value: Any) -> object:
    if isinstance(value, Tensor):
        return _digest(value)
    if isinstance(value, Mapping):
        return {str(key): _seen(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_seen(item) for item in value]
    return _seen(value.inside) if hasattr(value, "inside") else _plain(value)

"""From an example of a part, whatever its kind, to the subjects that a law watches."""

from collections.abc import Callable, Iterator
from typing import Any

from kinformer import discover
from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.loss import Penalty
from kinformer.core.memory import Memory
from kinformer.core.pattern import Pattern
from kinformer.core.position import Position
from kinformer.core.projection import Projection
from kinformer.feedforward.mlp import MLP
from kinformer.laws.batch import holds_tensors, varied
from kinformer.laws.subject import Subject
from kinformer.mechanisms.linear import FullLinear, Linear
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full

Make = Callable[[], Any]


class Placed(Layer):
    """A position added to the layer's input, as a model adds it to embedded tokens."""

    def __init__(self, d: int, position: Position):
        super().__init__()
        self.d, self.position = d, position

    def forward(self, x: Any, state: State | None, ctx: Context) -> Out:
        return Out(x + self.position(ctx.pos), state)


def attention(make: Callable[[], Any], heads: int = 2, **parts: Make) -> Make:
    """A factory of Attention(16, heads, ...) whose mechanism and parts are made afresh."""
    return lambda: Attention(16, heads, make(), **{name: part() for name, part in parts.items()})


def _pattern(p: Pattern) -> Iterator[dict[str, Any]]:
    if holds_tensors(p):
        p = varied(p)
        yield {
            "make": attention(lambda: Softmax(Causal(), lse=True)),
            "only": p,
            "pattern": Causal(),
            "place": "ctx.only",
        }
        near = Causal() & Band(1)
        yield {
            "make": attention(lambda: Softmax(near)),
            "also": p,
            "only": Causal(),
            "pattern": near,
            "place": "ctx.also",
        }
        yield {"make": attention(lambda: Softmax(Full())), "only": p, "pattern": Full(), "place": "ctx.only"}
        return
    yield {
        "make": attention(lambda: Softmax(Causal() & p, lse=True)),
        "pattern": Causal() & p,
        "place": "Causal() & it",
    }
    yield {"make": attention(lambda: Softmax(p)), "pattern": p, "place": "by itself"}


def _bias(make: Make) -> Iterator[dict[str, Any]]:
    yield {"make": attention(lambda: Softmax(Causal(), make())), "place": "on 2 heads under Causal()"}
    yield {"make": attention(lambda: Softmax(Full(), make())), "place": "on 2 heads under Full()"}


def _position(make: Make) -> Iterator[dict[str, Any]]:
    if isinstance(make(), Position):
        yield {"make": lambda: Placed(16, make())}
    else:
        yield {"make": attention(lambda: Softmax(Causal()), rotary=make)}


def _projection(make: Make) -> Iterator[dict[str, Any]]:
    part: Projection = make()
    yield {"make": attention(lambda: Softmax(Causal()), part.heads, projection=make)}
    across = {"projection": make, "cross": lambda: True}
    yield {"make": attention(lambda: Softmax(Full()), part.heads, **across), "source": True, "place": "across"}


def _mechanism(make: Make) -> Iterator[dict[str, Any]]:
    yield {"make": attention(make)}


def _map(make: Make) -> Iterator[dict[str, Any]]:
    yield {"make": attention(lambda: Linear(make())), "place": "in Linear"}
    yield {"make": attention(lambda: FullLinear(make())), "place": "in FullLinear"}


def _memory(make: Make) -> Iterator[dict[str, Any]]:
    """Beside the set of keys that the memory itself names, where it names one."""
    part: Memory = make()
    own = next((value for value in vars(part).values() if isinstance(value, Pattern)), None)
    pattern = Causal() if own is None else Causal() & own
    yield {"make": attention(lambda: Softmax(pattern, lse=True), memory=make)}


def _aggregation(make: Make) -> Iterator[dict[str, Any]]:
    yield {"make": attention(lambda: Softmax(Causal()), aggregation=make)}


def _norm(make: Make) -> Iterator[dict[str, Any]]:
    yield {"make": lambda: PreNorm(Attention(16, 2, Softmax(Causal())), MLP(16), norm=lambda d: make())}


def _layer(make: Make) -> Iterator[dict[str, Any]]:
    yield {"make": make, "width": make().d}


def _model(make: Make) -> Iterator[dict[str, Any]]:
    part = make()
    yield {"make": make, "width": part.d, "vocab": part.vocab, "source": hasattr(part, "encoder")}


def _none(make: Make) -> Iterator[dict[str, Any]]:
    return iter(())


FORMS: dict[str, Callable[[Any], Iterator[dict[str, Any]]]] = {
    "patterns": _pattern,
    "biases": _bias,
    "positions": _position,
    "projections": _projection,
    "mechanisms": _mechanism,
    "maps": _map,
    "memories": _memory,
    "aggregations": _aggregation,
    "feedforward": _layer,
    "norms": _norm,
    "blocks": _layer,
    "depth": _layer,
    "losses": _none,
    "models": _model,
    "members": _model,
}


def subjects(kind: str, name: str, example: Any, *, effort: int = 1) -> tuple[Subject, ...]:
    """The subjects that an example makes; `name` is how a law's message calls it."""
    return tuple(Subject(name, **form, effort=effort) for form in FORMS[kind](example))


def discovered(kind: str) -> Iterator[tuple[str, str, Any]]:
    """(module, "kind.module.n", example) of every example of a kind."""
    count: dict[str, int] = {}
    for module, example in discover.examples(kind):
        n = count[module] = count.get(module, -1) + 1
        yield module, f"{kind}.{module}.{n}", example


def penalties() -> Iterator[tuple[str, Penalty]]:
    """Every Penalty of the folder of losses, by module and name."""
    for module, found in discover.modules("losses").items():
        for name, value in vars(found).items():
            if isinstance(value, Penalty):
                yield f"losses.{module}.{name}", value

"""Masking: attention weights times a function of the distance, renormalised, such as windows of each head."""

import ast
import math
import operator
import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.bias import Bias, Distances, ScoreFn, at, check_bias_heads
from kinformer.core.checks import check_at_least, check_flag, check_option, check_whole_numbers
from kinformer.core.request import Request
from kinformer.nn.biases.bias_by_distance import of_distances

Nearest = Literal[0, 1]


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "min": torch.minimum,
    "max": torch.maximum,
}
SIGNS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Formula:
    """A function of x, parsed from text and evaluated safely.

    The text may hold x, numbers, + - * / **, comparisons < <= > >= (1 if true, else 0) and exp, log, sqrt, min, max.

    Errors: ValueError, in one line, for any other text.
    """

    def __init__(self, text: str):
        self.text = text
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise ValueError(f"{text!r} does not parse: {error.msg}; write for example '1 / (1 + x)'") from None
        _value(self._tree, torch.ones(1), text)

    def __call__(self, x: Tensor) -> Tensor:
        """The value of the function at each x."""
        return _value(self._tree, x, self.text).expand_as(x)

    def __repr__(self) -> str:
        return f"Formula({self.text!r})"


def _value(node: ast.expr, x: Tensor, text: str) -> Tensor:
    match node:
        case ast.Name(id="x"):
            return x
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool) and math.isfinite(number):
            return torch.full_like(x, number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, x, text)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in SIGNS:
            comparison: Tensor = SIGNS[type(sign)](_value(left, x, text), _value(right, x, text))
            return comparison
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in SIGNS:
            return SIGNS[type(sign)](_value(left, x, text), _value(right, x, text)).to(x.dtype)
        case ast.Call(func=ast.Name(id=name), args=[first, *others], keywords=[]) if name in FUNCTIONS and len(
            others
        ) == (name in ("min", "max")):
            return FUNCTIONS[name](*(_value(argument, x, text) for argument in (first, *others)))
    raise ValueError(
        f"cannot read {text!r}: {ast.unparse(node)!r} is not a function of x. Write for example exp(-x / 8)"
    )


class Masking(Bias):
    """a_ij = m(x) exp(s_ij) / sum_r m(x_ir) exp(s_ir): attention that a masking function restricts, renormalised.

    Subclasses give m. It is 1 everywhere in plain attention, a ramp in an adaptive span, a step in a window. Keys with
    m(x) = 0 are not read at all; what lies beyond `reach` the mechanism `Restricted` does not even keep.

    nearest: x of the nearest key: 0 makes x = |i - j|, 1 makes it |i - j| - 1, as published code of spans counts.
    itself: False keeps a query from reading its own position.

    Source: Sukhbaatar et al., 2019, arXiv:1905.07799, section 2.2; as one form of many: Lin et al., 2021,
    arXiv:2106.04554, section 4.6.2.
    """

    def __init__(self, *, nearest: Nearest = 0, itself: bool = True):
        super().__init__()
        self.nearest, self.itself = check_option("nearest", nearest, Nearest), check_flag("itself", itself)

    @property
    def reach(self) -> float:
        """The furthest distance at which any m is above 0, or a bound of it that asks no tensor; inf for any."""
        return math.inf

    @property
    def max_distance(self) -> float:
        """The furthest distance at which any m is above 0; `reach` where no part of it is rounded up."""
        return self.reach

    @abstractmethod
    def factor(self, piece: Request, x: Tensor, b: Tensor, h: Tensor, i: Tensor) -> Tensor:
        """m(x), from 0 up, of query i of head h in row b of a piece; x comes in float32 or better."""

    def bind(self, piece: Request) -> ScoreFn:
        q_pos, k_pos = piece.queries.pos, piece.keys.pos
        exact = torch.promote_types(piece.queries.q.dtype, torch.float32)  # bfloat16 cannot tell distance 256 from 257

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (at(q_pos, b, h, i) - at(k_pos, b, h, j)).abs()
            m = self.factor(piece, (distance - self.nearest).to(exact), b, h, i)
            inside = m > 0 if self.itself else (m > 0) & (distance > 0)
            # a plain log would have a NaN gradient where m is 0
            return s + torch.where(inside, torch.log(torch.where(inside, m, 1.0)), -torch.inf).to(s.dtype)

        return score


class FunctionMasking(Masking):
    """Attention restricted by a function of the distance, `FunctionMasking(lambda x: 1 / (1 + x))`, or by a module.

    m: from distances x, in positions, a float tensor of any shape, to numbers from 0 up that broadcast to it.
    reach: the furthest distance at which m is above 0, where there is one.
    nearest, itself: see `Masking`.

    Source: Lin et al., 2021, arXiv:2106.04554, section 4.6.2.
    """

    def __init__(
        self, m: Callable[[Tensor], Tensor], *, reach: float = math.inf, nearest: Nearest = 0, itself: bool = True
    ):
        super().__init__(nearest=nearest, itself=itself)
        if not callable(m):
            raise ValueError(f"m={m!r}: give a function of distances, such as lambda x: 1 / (1 + x)")
        self.m, self._reach = m, reach

    @property
    def reach(self) -> float:
        return self._reach

    def factor(self, piece: Request, x: Tensor, b: Tensor, h: Tensor, i: Tensor) -> Tensor:
        return self.m(x)

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        return of_distances(self, request, far)


class StepMasking(Masking):
    """m(x) = 1 where x is at most the head's window, else 0: hard windows of several sizes, multi-scale attention.

    windows: of each head, in positions.
    nearest, itself: see `Masking`.

    Errors: ValueError where the layer has another number of heads. Source: Guo et al., 2020, arXiv:1912.00544.
    """

    def __init__(self, windows: tuple[int, ...], *, nearest: Nearest = 0, itself: bool = True):
        super().__init__(nearest=nearest, itself=itself)
        self.windows = check_whole_numbers("windows", windows, 0)
        check_at_least("the number of windows", len(windows), 1)

    @property
    def reach(self) -> float:
        return max(self.windows) + self.nearest

    def factor(self, piece: Request, x: Tensor, b: Tensor, h: Tensor, i: Tensor) -> Tensor:
        check_bias_heads(f"StepMasking of {len(self.windows)} windows", len(self.windows), piece)
        # no table, which compiled flex cannot make in a score function
        return (x <= sum((h == n) * window for n, window in enumerate(self.windows))).to(x.dtype)

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        return of_distances(self, request, far)


def parse_masking(text: str, heads: int, longest: int, *, nearest: Nearest = 0, itself: bool = True) -> Masking:
    """Parse a masking function: "Step(4, 16)" with one window per head, or a formula such as "1 / (1 + x)".

    heads: number of heads of the layer. longest: keys further away are not read. Errors: ValueError for other texts.
    """
    if match := re.fullmatch(r"Step\((\d+(?:, ?\d+)*)\)", text.strip()):
        windows = tuple(int(window) for window in match[1].split(","))
        if len(windows) != heads:
            raise ValueError(f"{text} has {len(windows)} windows for {heads} heads; give one for each")
        return StepMasking(tuple(min(window, longest - nearest) for window in windows), nearest=nearest, itself=itself)
    return FunctionMasking(Formula(text), reach=longest, nearest=nearest, itself=itself)


class _Decay(torch.nn.Module):
    """exp(-rate x): for the example."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-self.rate * x)


EXAMPLES = (
    lambda: FunctionMasking(_Decay()),
    lambda: FunctionMasking(lambda x: (1 - x / 5).clamp_min(0), reach=4, itself=False),
    lambda: StepMasking((1, 4)),
)

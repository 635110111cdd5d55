"""Masking: attention weights multiplied by a function of the distance and renormalised."""

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
from kinformer.core.quote import quote
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
    """Function of the distance x, parsed from text and evaluated without running code of the text.

    text: expression of x, numbers, + - * / **, comparisons < <= > >= (1 if true, else 0) and the functions exp, log,
        sqrt, min and max.

    Errors: ValueError for any other text.
    """

    def __init__(self, text: str):
        self.text = text
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise ValueError(f"{quote(text)} does not parse: {error.msg}. Write for example '1 / (1 + x)'") from None
        _value(self._tree, torch.ones(1), text)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the value of the function at each x."""
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
        f"cannot read {quote(text)}: {quote(ast.unparse(node))} is not a function of x. Write for example exp(-x / 8)"
    )


class Masking(Bias):
    """Base class: attention weights multiplied by a function m of the distance x and renormalised.

    a_ij = m(x_ij) exp(s_ij) / sum_r m(x_ir) exp(s_ir)

    Here s_ij is the score of query i and key j. Subclasses implement `factor`, which returns m. In plain attention m is
    1 everywhere, in an adaptive span it falls along a ramp, and in a window it is 1 inside and 0 outside. Keys with
    m(x) = 0 are not read. The mechanism `Restricted` does not even keep keys beyond the distance `reach` in its cache.

    nearest: distance |i - j| at which x is 0. With 0, x = |i - j|; with 1, x = |i - j| - 1, as in published code of
        spans.
    itself: if False, a query does not read its own position.

    Source: Sukhbaatar et al., 2019, arXiv:1905.07799, section 2.2; as a class of forms: Lin et al., 2021,
    arXiv:2106.04554, section 4.6.2.
    """

    def __init__(self, *, nearest: Nearest = 0, itself: bool = True):
        super().__init__()
        self.nearest, self.itself = check_option("nearest", nearest, Nearest), check_flag("itself", itself)

    @property
    def reach(self) -> float:
        """Largest distance at which any m is above 0, or an upper bound; inf if there is no limit.

        The number is stored on the host, so no tensor is read from the device.
        """
        return math.inf

    @property
    def max_distance(self) -> float:
        """Largest distance at which any m is above 0; equal to `reach` unless `reach` is rounded up."""
        return self.reach

    @abstractmethod
    def factor(self, piece: Request, x: Tensor, b: Tensor, h: Tensor, i: Tensor) -> Tensor:
        """Return m(x), at least 0, for query i of head h in row b.

        piece: queries and keys that are computed together, a part of an attention call.
        x: distances, in float32 or a wider dtype.
        b, h, i: indices of row, head and query within the piece.
        """

    def bind(self, piece: Request) -> ScoreFn:
        q_pos, k_pos = piece.queries.pos, piece.keys.pos
        exact = torch.promote_types(piece.queries.q.dtype, torch.float32)  # bfloat16 cannot tell distance 256 from 257

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (at(q_pos, b, h, i) - at(k_pos, b, h, j)).abs()
            m = self.factor(piece, (distance - self.nearest).to(exact), b, h, i)
            inside = m > 0 if self.itself else (m > 0) & (distance > 0)
            # a plain log would have a NaN gradient if m is 0
            return s + torch.where(inside, torch.log(torch.where(inside, m, 1.0)), -torch.inf).to(s.dtype)

        return score


class FunctionMasking(Masking):
    """Attention weights multiplied by any given function of the distance, which may be a module.

    Choose it for a masking function of your own, such as `FunctionMasking(lambda x: 1 / (1 + x))`.

    m: function from distances x in positions, a float tensor of any shape, to numbers from 0 up that broadcast to x.
    reach: largest distance at which m is above 0; inf if there is no limit.
    nearest, itself: see `Masking`.

    Errors: ValueError if `m` is not callable. Source: Lin et al., 2021, arXiv:2106.04554, section 4.6.2.
    """

    def __init__(
        self, m: Callable[[Tensor], Tensor], *, reach: float = math.inf, nearest: Nearest = 0, itself: bool = True
    ):
        super().__init__(nearest=nearest, itself=itself)
        if not callable(m):
            raise ValueError(
                f"m={quote(m)} is not callable. Pass a function of distances, such as lambda x: 1 / (1 + x)"
            )
        self.m, self._reach = m, reach

    @property
    def reach(self) -> float:
        return self._reach

    def factor(self, piece: Request, x: Tensor, b: Tensor, h: Tensor, i: Tensor) -> Tensor:
        return self.m(x)

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        return of_distances(self, request, far)


class StepMasking(Masking):
    """Windows with sharp ends and one size for each head, as in multi-scale attention.

    m(x) = 1 if x is at most the window of the head, else 0

    Attention weights are multiplied by m(x), where x is the distance of a key, and renormalised.

    windows: window of each head, in positions.
    nearest, itself: see `Masking`.

    Errors: ValueError if the layer has a different number of heads. Source: Guo et al., 2019, arXiv:1912.00544.
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
        # a sum and no table: compiled FlexAttention cannot create a table in a score function
        return (x <= sum((h == n) * window for n, window in enumerate(self.windows))).to(x.dtype)

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        return of_distances(self, request, far)


def parse_masking(text: str, heads: int, longest: int, *, nearest: Nearest = 0, itself: bool = True) -> Masking:
    """Parse a masking function from a text.

    text: "Step(4, 16)" with one window for each head, or a formula such as "1 / (1 + x)".
    heads: number of heads of the layer.
    longest: largest distance, in positions; keys further away are not read.
    nearest, itself: see `Masking`.

    Errors: ValueError for any other text, and if the number of windows is not `heads`.
    """
    if match := re.fullmatch(r"Step\((\d+(?:, ?\d+)*)\)", text.strip()):
        windows = tuple(int(window) for window in match[1].split(","))
        if len(windows) != heads:
            raise ValueError(f"{text} has {len(windows)} windows for {heads} heads. Give one window per head")
        return StepMasking(tuple(min(window, longest - nearest) for window in windows), nearest=nearest, itself=itself)
    return FunctionMasking(Formula(text), reach=longest, nearest=nearest, itself=itself)


class _Decay(torch.nn.Module):
    """exp(-rate x), for the example."""

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

"""Formula: a function of distances, parsed from text such as "1 / (1 + x)"."""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "min": torch.minimum, "max": torch.maximum
}  # fmt: skip
SIGNS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge
}  # fmt: skip


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

"""Hints of named tuples that a call returns: arithmetic with the tuple is refused and names its tensor."""

from typing import Any

from torch import Tensor

_OPERATORS = "add sub mul truediv floordiv matmul pow".split()
_METHODS = ("neg", "abs", "float", "int", *_OPERATORS, *(f"r{name}" for name in _OPERATORS))


def hint_value(kind: type, says: str, value: str, further: str = "", **advice: str) -> None:
    """Let a NamedTuple refuse the uses of a tensor with advice, in place of those of a tuple.

    Without this, `out * 2` would be the tuple twice. The methods are set outside of the class, so that mypy knows its
    names.

    kind: the class.
    says: the beginning of each message, such as "a layer returns Out".
    value: the expression of the tensor, such as "layer(x).y".
    further: the end of the message about a use as a tensor.
    advice: the expression to write for a missing attribute of this name.
    """
    message = f"{says}, which holds more than a tensor; use its value: {value}{further}"

    def refuse(*call: object) -> Any:
        raise TypeError(message)

    def refuse_name(result: object, name: str) -> Any:
        expression = advice.get(name) or (f"{value}.{name}" if hasattr(Tensor, name) else None)
        raise AttributeError(f"{says}, which has no {name!r}" + (f"; write {expression}" if expression else ""))

    def item(result: Any, index: Any) -> Any:
        return refuse() if isinstance(index, tuple) else tuple.__getitem__(result, index)

    hints = dict.fromkeys(_METHODS, refuse) | {"getattr": refuse_name, "getitem": item}

    for method, hint in hints.items():
        setattr(kind, f"__{method}__", hint)
    setattr(kind, "__torch_function__", classmethod(refuse))  # noqa: B010  (functions of PyTorch call it)

"""Law heads: a part that is made for a fixed number of heads refuses other numbers of heads.

The refusal is an error of one line. It must refuse fewer heads too, because it would use the settings of the wrong
heads.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from kinformer.core.bias import Bias
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.patterns.full import Full
from kinformer.core.score import Score
from kinformer.laws.support.findings import Unjudged
from kinformer.laws.support.queries_and_keys import draw_queries_and_keys
from kinformer.nn.mechanisms.softmax import Softmax

SAYS = "a number of heads that the part does not support is refused with an error of one line"
OVER = ("mechanism", "score", "bias")
HEADS = (4, 3, 2)  # numbers of heads in the examples
MORE, FEWER = (6, 8), (1, 2, 3)
Part = TypeVar("Part", Queries, Keys)


def judge(part: Mechanism | Score | Bias) -> Iterator[str]:
    """Call a part with more and fewer heads than it is made for; yield each number that it accepts.

    part: the mechanism, score or bias to test.

    The part must refuse these numbers with an error of one line. It is called without a layer around it, so no layer
    checks the number of heads. A part that accepts more heads is assumed to support any number.
    """
    if isinstance(part, Score):
        part = Softmax(Full(), score=part)
    mechanism = (Softmax(Full(), part) if isinstance(part, Bias) else part).double().eval()
    heads, queries, keys = _find_heads(mechanism)
    answers = {(n, n): _refusal(mechanism, _with_heads(queries, n), _with_heads(keys, n)) for n in MORE}
    is_specific = all(answer is not None for answer in answers.values())
    fewer = [(1, heads), *((n, n) for n in FEWER if n < heads)] if is_specific else []
    answers |= {
        (n, key_heads): _refusal(mechanism, _with_heads(queries, n), _with_heads(keys, key_heads))
        for n, key_heads in fewer
    }
    for (asking, key_heads), answer in answers.items():
        case = f"{asking} query head{'s' if asking > 1 else ''} with {key_heads} key head{'s' if key_heads > 1 else ''}"
        if answer is None and (asking, key_heads) in fewer:
            yield f"a part made for {heads} heads accepts {case}; raise a ValueError of one line"
        elif answer is not None and not _in_one_line(answer):
            message = str(answer).strip().splitlines()[0]
            yield f"{case} give {type(answer).__name__}: {message}; raise a ValueError of one line instead"


def _find_heads(mechanism: Mechanism) -> tuple[int, Queries, Keys]:
    """Return a number of heads that the mechanism accepts, with its queries and keys."""
    refusal: Exception | None = None
    for heads in HEADS:
        try:
            queries, keys = draw_queries_and_keys(mechanism, heads=heads, groups=heads)
        except (ValueError, NoState) as error:
            refusal = error
            continue
        refusal = _refusal(mechanism, queries, keys)
        if refusal is None:
            return heads, queries, keys
    raise Unjudged(f"the part refuses each of {HEADS} heads: {refusal}")


def _refusal(mechanism: Mechanism, queries: Queries, keys: Keys) -> Exception | None:
    """Return the error of a call, or None if the call succeeds."""
    try:
        mechanism(queries, keys, None, Context(queries.pos[:, 0], run=True, full=True, labels=queries.labels))
    except Exception as error:
        return error
    return None


def _with_heads(part: Part, heads: int) -> Part:
    """Return queries or keys with a number of heads: the first heads, repeated if there are too few."""

    def take_heads(x: Tensor) -> Tensor:
        return x[:, torch.arange(heads) % x.shape[1]]

    def take_heads_of_extras(extras: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: take_heads(side) for name, side in extras.items()}

    if isinstance(part, Queries):
        return part._replace(q=take_heads(part.q), extras=take_heads_of_extras(part.extras))
    return part._replace(k=take_heads(part.k), v=take_heads(part.v), extras=take_heads_of_extras(part.extras))


def _in_one_line(error: Exception) -> bool:
    return isinstance(error, ValueError | NoState) and "\n" not in str(error)

"""Law groups: query heads that share key heads give the result of heads with copies of the keys."""

from collections.abc import Iterator

from torch import Tensor

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.bias import Bias
from kinformer.core.heads import Keys
from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.patterns.full import Full
from kinformer.core.score import Score
from kinformer.laws.support.comparisons import agree
from kinformer.laws.support.findings import Unjudged, findings
from kinformer.laws.support.queries_and_keys import TOKENS, draw_queries_and_keys
from kinformer.nn.mechanisms.softmax import Softmax

SAYS = "query heads that share key heads give the result of copied key heads, or are refused"
OVER = ("mechanism", "score", "bias")
SIZES = ((2, 1), (4, 2), (4, 1))  # heads of queries and of keys
SOURCE = TOKENS - 3


def judge(part: Mechanism | Score | Bias) -> Iterator[str]:
    """Compare query heads that share key heads with query heads that have copies of these.

    part: the mechanism, score or bias to test.

    The test yields a sentence for each difference. Two or four query heads share one or two key heads. The keys come
    from the row itself, from a source of another length, and from a source of the same length. A part may also refuse
    shared key heads with an error of one line.
    """
    if isinstance(part, Score):
        part = Softmax(Full(), score=part)
    mechanism = (Softmax(Full(), part) if isinstance(part, Bias) else part).double().eval()
    refused, judged = "", 0
    for heads, groups in SIZES:
        for source in (0, SOURCE, TOKENS):
            try:
                queries, keys = draw_queries_and_keys(mechanism, heads=heads, groups=groups, source=source)
            except (ValueError, NoState) as error:  # the part refuses when a layer is built
                refused = refused or f"refused: {error}"
                continue
            ctx = Context(queries.pos[:, 0], run=True, full=True, labels=queries.labels)
            copies = _copy_heads(keys, heads // groups)
            try:
                expected = mechanism(queries, copies, None, ctx).y
            except Exception:
                continue  # made for another number of heads, or refuses equal heads too: other laws check that
            try:
                actual = mechanism(queries, keys, None, ctx).y
            except (ValueError, NoState) as error:
                refused = refused or f"refused: {error}"
                if "\n" in str(error):
                    yield f"{groups} key heads for {heads} query heads give an error of more than one line: {error}"
                continue
            case = f"{heads} query heads that share {groups} key heads{' of a source' if source else ''}"
            yield from findings(_check_same, actual, expected, f"{case} give a different result than copied key heads")
            judged += 1
    if not judged:
        raise Unjudged(refused or "the part refuses all tried numbers of heads")


def _copy_heads(keys: Keys, times: int) -> Keys:
    def repeat_heads(x: Tensor) -> Tensor:
        return x.repeat_interleave(times, 1)

    extras = {name: repeat_heads(side) for name, side in keys.extras.items()}
    return keys._replace(k=repeat_heads(keys.k), v=repeat_heads(keys.v), extras=extras)


def _check_same(actual: AttentionOutput, expected: AttentionOutput, sentence: str) -> None:
    agree(actual.y, expected.y, sentence)
    if actual.lse is not None and expected.lse is not None:
        agree(actual.lse, expected.lse, f"{sentence} (lse)")

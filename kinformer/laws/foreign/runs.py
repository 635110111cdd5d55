"""Law runs: a plain call gives finite logits, and two equal calls give equal logits."""

from collections.abc import Iterator

from kinformer.laws.foreign.support.black_box import BlackBox
from kinformer.laws.foreign.support.differences import difference

SAYS = "a call gives finite logits, and the same call gives the same logits"
OVER = "module"


def judge(box: BlackBox) -> Iterator[str]:
    """Call a model twice in eval mode, and yield a sentence if the logits are not finite or differ.

    box: the model.
    """
    tokens = box.tokens(2, box.fit(160))
    first = box.call(tokens).logits
    if not first.isfinite().all():
        count = int((~first.isfinite()).sum())
        yield f"{count} of {first.numel()} logits of {tokens.shape[1]} tokens are NaN or infinite"
        return
    largest = difference(box.call(tokens, seed=1).logits, first)
    if largest.share > 1e-5:
        yield f"the same call in eval mode gives logits that differ by {largest}; draw no random numbers in eval mode"

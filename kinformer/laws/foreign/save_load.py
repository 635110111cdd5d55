"""Law save_load: a model gives the same logits after saving and loading."""

from collections.abc import Iterator

from kinformer.laws.foreign.support.black_box import BlackBox
from kinformer.laws.foreign.support.differences import check_near
from kinformer.laws.foreign.support.saving import save_and_load
from kinformer.laws.support.findings import findings

SAYS = "after saving and loading, the logits are the same"
OVER = "module"
LENGTH = 16


def judge(box: BlackBox) -> Iterator[str]:
    """Save and load a model, and yield a sentence if its logits differ.

    box: the model. The weights have noise, so that a weight that is not saved shows.
    """
    yield from findings(_check, box)


def _check(box: BlackBox) -> None:
    tokens = box.tokens(2, box.fit(LENGTH))
    functions = "save_pretrained and from_pretrained" if hasattr(box.model, "save_pretrained") else "state_dict"
    check_near(
        box.call(tokens, model=save_and_load(box)).logits,
        box.call(tokens).logits,
        lambda largest: (
            f"after {functions}, the logits at position {largest.column} differ by {largest}; save every number as a "
            "parameter or a persistent buffer"
        ),
    )

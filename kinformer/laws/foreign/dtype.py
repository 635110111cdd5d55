"""Law dtype: logits in bfloat16 are finite and stay near the logits of float32."""

from collections.abc import Iterator

import torch

from kinformer.laws.foreign.support.black_box import BlackBox, one_line
from kinformer.laws.support.findings import Broken, Unjudged, findings

SAYS = "logits in bfloat16 are finite and near the logits of float32"
OVER = "module"
MOST = 0.25  # largest median error of a token, as a share of the spread of its logits; a sound model has about 0.02
QUARTER = 4


def judge(box: BlackBox) -> Iterator[str]:
    """Compare logits in bfloat16 with float32, and yield a sentence if they differ.

    box: the model. Both precisions have the same rounded weights. The error is the median over tokens, because rounding
        may flip a hard choice for a few tokens. The last quarter of the row, with large positions, is also tested.
    """
    if not any(parameter.is_floating_point() for parameter in box.original.parameters()):
        raise Unjudged("the model has no parameters")
    yield from findings(_check, box)


def _check(box: BlackBox) -> None:
    tokens = box.tokens(1, box.longest)
    length = tokens.shape[1]
    low_model = box.copy(torch.bfloat16)
    try:
        low = box.call(tokens, model=low_model).logits.float()
    except Exception as error:
        raise Broken(f"the model cannot be called in bfloat16: {one_line(error)}") from error
    exact = box.call(tokens, model=low_model.float()).logits
    for name, logits in (("float32", exact), ("bfloat16", low)):
        if not logits.isfinite().all():
            count = int((~logits.isfinite()).sum())
            raise Broken(f"{count} of {logits.numel()} logits of {length} tokens are NaN or infinite in {name}")
    centred = exact - exact.mean(-1, keepdim=True)
    size = centred.norm(dim=-1) if exact.shape[-1] > 1 else exact.norm(dim=-1)
    errors = (low - exact).norm(dim=-1) / size.clamp(min=1e-12)
    for part, where in ((errors, f"{length} tokens"), (errors[:, -max(1, length // QUARTER) :], "the last quarter")):
        if float(part.median()) > MOST:
            raise Broken(
                f"in bfloat16, the median error over {where} is {float(part.median()):.2g} of the logits' "
                f"spread, expected at most {MOST}"
            )

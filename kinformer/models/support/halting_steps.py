"""Steps: how many of an adaptive depth each token took, as models are judged."""

from collections.abc import Mapping

from jaxtyping import Bool
from torch import Tensor

from kinformer.core.layer import Out
from kinformer.core.model import sum_and_count


def halting_steps(out: Out, real: Bool[Tensor, "B T"]) -> Mapping[str, tuple[Tensor, Tensor]]:
    """The steps that `ACT` or `RecurrentACT`, as the body, reports of a reading; nothing of another body."""
    return {"steps": sum_and_count(out.aux["steps"], real)} if "steps" in out.aux else {}

"""halting_steps: the number of steps per token in models with adaptive computation time, as a metric."""

from collections.abc import Mapping

from jaxtyping import Bool
from torch import Tensor

from kinformer.core.layer import Out
from kinformer.core.model import sum_and_count


def halting_steps(out: Out, real: Bool[Tensor, "B T"]) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Return the summed steps of an `ACT` or `RecurrentACT` body, and the number of tokens.

    The result is empty for other bodies, which take no adaptive number of steps.

    out: output of the model.
    real: True for the tokens to count.
    """
    return {"steps": sum_and_count(out.aux["steps"], real)} if "steps" in out.aux else {}

"""RotaryScaling: the contract of scaled rotary positions, for rows longer than in training."""

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.named_part import part_named


class RotaryScaling(KeywordHints, ABC):
    """Base class of scalings of rotary positions: slower rotations, for rows longer than in training.

    `Rotary(head_dim, scaling=...)` takes one. A scaling has no weights and does not depend on a row's length, so keys
    in a cache stay valid. Methods that depend on the length, such as dynamic NTK, are no scalings.

    attention_scaling: factor of the rotated dimensions of queries and keys; their part of a score grows by its square.
    """

    kind: ClassVar[str] = "rotary scaling"  # the word for it in error messages

    @property
    def attention_scaling(self) -> float:
        return 1.0

    @abstractmethod
    def scale(self, frequencies: Float[Tensor, " N"], base: float) -> Float[Tensor, " N"]:
        """Return the scaled frequencies of N pairs of dimensions, in radians per position.

        frequencies: the unscaled frequencies; pair n turns by base^(-n/N) per position.
        base: the base of the frequencies.
        """


def scaling_named(text: str | None) -> RotaryScaling | None:
    """Return the scaling for a text such as "yarn:factor=4,length=4096"; None for None.

    The name is the name of a file in a folder `scalings`. The numbers are keywords of the class in that file.

    text: the name of the scaling, with keywords after a colon.

    Errors: ValueError, in one line, if the name, a keyword or a number is unknown.
    """
    return None if text is None else part_named("scalings", RotaryScaling, text)  # type: ignore[type-abstract]


def check_original_length(name: str, length: int | None) -> None:
    """Check the trained length of a scaling: a whole number of at least 1.

    name: name of the scaling for messages.
    length: the longest row of the original training, in tokens; None if it is missing.

    Errors: ValueError.
    """
    if length is None:
        raise ValueError(f"{name} failed: got no length, expected the longest row of the training. Give length=")
    check_at_least("length", length, 1)

"""LoRALinear: a linear map with a frozen matrix and a trained change of low rank."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class LoRALinear(nn.Linear):
    """Linear map whose matrix W is frozen while a change of rank r is trained beside it.

        y = (W + s B A) x + b

    `adapt` turns an nn.Linear into it in place, and `plain` turns it back. The names of W and b stay as they are, so
    code that knows the model still finds them; `lora_a` and `lora_b` come in addition. `weight` is W + s B A, for code
    that reads rows of the matrix, such as `QKV`. A call computes B (A x) instead. So no gradient of the size of W is
    computed, and during the training bfloat16 does not round small changes away beside large weights. A merge into
    weights of bfloat16 does: of a change of 0.3% of the weights it loses about half. Train weights in float32.

    A matrix that stacks several maps, such as `QKV.qkv`, has a pair A_i, B_i for each of them.

    widths: numbers of rows of the stacked maps; A has r rows for each of them.
    scale: the factor s.

    Source: Hu et al., 2021, arXiv:2106.09685, section 4.1.
    """

    lora_a: nn.Parameter  # [N r, in]
    lora_b: nn.Parameter  # [out, r]
    widths: tuple[int, ...]
    scale: float

    @staticmethod
    def adapt(linear: nn.Linear, rank: int, scale: float, widths: Sequence[int], generator: torch.Generator) -> None:
        """Turn an nn.Linear into a LoRALinear in place; its outputs stay the same, because B starts at 0.

        A starts as in the code of the paper's authors, uniform up to 1 / sqrt(in).

        linear: the linear map.
        rank: the rank r of the change of each stacked map.
        scale: the factor s of the change.
        widths: numbers of rows of the stacked maps.
        generator: source of the random numbers of A, on the CPU.
        """
        weight = linear.weight
        shape = len(widths) * rank, linear.in_features
        bound = linear.in_features**-0.5
        a = torch.empty(shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
        lora_a = nn.Parameter(a.to(weight))
        lora_b = nn.Parameter(weight.new_zeros(linear.out_features, rank))
        # nothing below allocates memory, so a failure leaves no module half adapted
        weight.requires_grad_(False)
        linear.__class__ = LoRALinear
        assert isinstance(linear, LoRALinear)
        linear.widths, linear.scale, linear.lora_a, linear.lora_b = tuple(widths), scale, lora_a, lora_b

    @property
    def base(self) -> nn.Parameter:
        """The frozen matrix W."""
        base = self._parameters["weight"]
        assert base is not None
        return base

    @property
    def weight(self) -> Float[Tensor, "O I"]:  # type: ignore[override]
        """The matrix with its change, W + s B A."""
        return self.base + self._change_of_rows() @ self.lora_a

    def forward(self, x: Float[Tensor, "*N I"]) -> Float[Tensor, "*N O"]:
        return F.linear(x, self.base, self.bias) + F.linear(F.linear(x, self.lora_a), self._change_of_rows())

    def _change_of_rows(self) -> Float[Tensor, "O Nr"]:
        """Return s B, with the B_i of the stacked maps as blocks of a diagonal."""
        b = self.scale * self.lora_b
        return b if len(self.widths) == 1 else torch.block_diag(*b.split(self.widths))

    def plain(self, weight: nn.Parameter) -> None:
        """Turn this module back into an nn.Linear in place.

        weight: its matrix.
        """
        self._parameters["weight"] = weight
        del self.lora_a, self.lora_b, self.widths, self.scale
        self.__class__ = nn.Linear  # type: ignore[assignment]

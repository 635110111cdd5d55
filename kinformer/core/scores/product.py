"""Product: the scaled product of query and key."""

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.heads import number_of_groups
from kinformer.core.request import Request
from kinformer.core.score import Score


class Product(Score):
    """Scaled product of query and key, the default score.

    score_ij = scale q_i.k_j

    With H query heads and G key heads, query head h reads key head h // (H / G). The keys of a group are not copied.
    Errors: ValueError if the query heads cannot share the key heads evenly. Source: Vaswani et al., 2017,
    arXiv:1706.03762, section 3.2.1.
    """

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        q, k = request.queries.q, request.keys.k
        groups = k.shape[1]
        q = q * request.scale  # scaled before the product, which may otherwise overflow float16
        if number_of_groups(q.shape[1], groups) == 1:
            products = q @ k.mT  # [B H T K] [B H K S]
        else:
            by_group = q.unflatten(1, (groups, -1))  # [B G R T K]
            products = torch.einsum("bgrtk,bgsk->bgrts", by_group, k).flatten(1, 2)
        change = self.checked_change(request)
        return products if change is None else products + change

    def checked_change(self, request: Request) -> Float[Tensor, "#B #H T S"] | None:
        """Return the result of `change` after a check that it needs no gradient.

        Errors: ValueError if the change requires a gradient, because no executor (a way to compute attention) computes
        it.
        """
        change = self.change(request)
        if change is not None and change.requires_grad:
            raise ValueError(
                f"{type(self).__name__}.change requires a gradient, which attention does not compute; implement "
                "forward instead"
            )
        return change

    def change(self, request: Request) -> Float[Tensor, "#B #H T S"] | None:
        """Return numbers to add to the products of queries and keys, or None; a subclass may override it.

        No gradient flows through the numbers. A number of -inf excludes a pair.
        """
        return None


EXAMPLES = (Product,)

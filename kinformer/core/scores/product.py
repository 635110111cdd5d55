"""Product: the scaled product of query and key."""

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.heads import number_of_groups
from kinformer.core.request import Request
from kinformer.core.score import Score


class Product(Score):
    """scale q_i.k_j: what attention scores are unless you want something else.

    Head h reads key head h // (H / G); keys of a group are not copied. Errors: ValueError for heads that cannot share
    key heads evenly. Source: Vaswani et al., 2017, arXiv:1706.03762, section 3.2.1.
    """

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        q, k = request.queries.q, request.keys.k
        groups = k.shape[1]
        q = q * request.scale  # before the product, which may be beyond float16 without it
        if number_of_groups(q.shape[1], groups) == 1:
            products = q @ k.mT  # [B H T K] [B H K S]
        else:
            by_group = q.unflatten(1, (groups, -1))  # [B G R T K]
            products = torch.einsum("bgrtk,bgsk->bgrts", by_group, k).flatten(1, 2)
        change = self.checked_change(request)
        return products if change is None else products + change

    def checked_change(self, request: Request) -> Float[Tensor, "#B #H T S"] | None:
        """`change`, for whoever adds it; ValueError where something would learn through it, as no executor lets it."""
        change = self.change(request)
        if change is not None and change.requires_grad:
            raise ValueError(f"{type(self).__name__}.change has a gradient, which is lost; write forward in its place")
        return change

    def change(self, request: Request) -> Float[Tensor, "#B #H T S"] | None:
        """What a subclass adds to products: numbers through which nothing learns; -inf shuts a pair out."""
        return None


EXAMPLES = (Product,)

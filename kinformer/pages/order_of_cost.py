"""formula: an order of cost as readers write it."""

SIGNS = {"**2": "²", "**3": "³", "**": "^", " * ": " · "}


def formula(cost: str) -> str:
    """Return an order of cost as readers write it, such as "L² / blocks" for "L**2 / blocks".

    cost: the order of cost, as `@member(cost=...)` declares it.
    """
    for code, sign in SIGNS.items():
        cost = cost.replace(code, sign)
    return cost

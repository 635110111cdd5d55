"""The order of cost of a member (a named model): an expression such as "L * window", which `@member(cost=...)` takes.

The expression says how the number of operations of a forward pass grows. Everything that it does not name is constant
or grows with L at most, such as linear layers. `tests/members/test_order_of_cost.py` compares it with counted
operations.
"""

import ast
from collections.abc import Iterable

# names for the size of an input, and their units
SIZES = {"L": "tokens in a row", "elements": "elements of a set", "pixels": "values of a picture", "steps": "steps"}
FUNCTIONS = ("log", "sqrt")


def check_cost(cost: str, keywords: Iterable[str]) -> str:
    """Return an order of cost if it is one, for the declaration of a member.

    cost: an arithmetic expression in a size of the input (`SIZES`), keywords of the member, `log` and `sqrt`.
    keywords: the keywords of the member.

    Errors: TypeError if the text is not an expression, or if it contains another name.
    """
    try:
        tree = ast.parse(cost, mode="eval")
    except SyntaxError:
        raise TypeError(f"wrong cost: got {cost!r}, expected an expression such as 'L * window'") from None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if unknown := names.difference(keywords, SIZES, FUNCTIONS):
        raise TypeError(
            f"wrong cost: got {cost!r} with the name {min(unknown)!r}, expected keywords of the member and "
            f"{', '.join((*SIZES, *FUNCTIONS))}"
        )
    return cost

"""tokenwise: a check that a layer computes each token separately, as an MLP does.

Parts use it if they pass tokens to an inner layer in another arrangement than rows.
"""

from kinformer.core.checks import check_part
from kinformer.core.layer import Layer
from kinformer.core.mechanism import NoState
from kinformer.core.state import leaves


def check_tokenwise(name: str, layer: Layer, use: str) -> Layer:
    """Return a layer after a check that it computes each token separately, as an MLP does.

    name: the parameter's name in the message.
    layer: the layer to check.
    use: the end of the message after "cannot": the purpose of the layer.

    Errors: ValueError if the layer computes tokens together, or passes values to later blocks (`sends`).
    """
    check_part(name, layer, Layer, "one, such as MLP(d)")
    kind = type(layer).__name__
    try:
        together = bool(leaves(layer.start(1, 1)))
    except NoState:
        raise ValueError(f"{kind} reads a whole row at once and cannot {use}; give an MLP") from None
    if together:
        raise ValueError(f"{kind} has a state, so it reads tokens together and cannot {use}; give an MLP")
    if layer.sends:
        raise ValueError(f"{kind} passes {min(layer.sends)!r} of whole rows to later blocks; give an MLP")
    return layer

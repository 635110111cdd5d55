"""tokenwise: a check for layers that read each token separately.

Parts need it if they pass tokens to a layer in another form than a row.
"""

from kinformer.core.checks import check_part
from kinformer.core.layer import Layer
from kinformer.core.mechanism import NoState
from kinformer.core.state import leaves


def check_tokenwise(name: str, layer: Layer, use: str) -> Layer:
    """Return a layer that reads each token separately and sends nothing up.

    name: the parameter's name in the message.
    layer: the layer to check.
    use: the verb for the message: a purpose that the layer cannot serve.

    Errors: ValueError for any other layer.
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
        raise ValueError(f"{kind} sends {min(layer.sends)!r} up, which belongs to a whole row; give an MLP")
    return layer

"""Threshold: the confidence at which a token leaves early; one number, or one per layer but the last."""

from kinformer.core.checks import check_in_range

Threshold = float | tuple[float, ...]  # for all layers, or one for each but the last


def check_threshold(threshold: Threshold, low: float, high: float) -> Threshold:
    """Return an exit threshold, or raise ValueError if a number of it is outside low to high.

    threshold: one number, or one for each layer but the last.
    """
    if not isinstance(threshold, tuple):
        return check_in_range("threshold", threshold, low, high)
    return tuple(check_in_range(f"threshold[{n}]", value, low, high) for n, value in enumerate(threshold))


def threshold_of_layer(threshold: Threshold, layer: int) -> float:
    """Return the exit threshold of a layer.

    threshold: one number, or one for each layer but the last.
    layer: number of the layer, from 1.

    Errors: ValueError for a layer without a threshold.
    """
    if not isinstance(threshold, tuple):
        return threshold
    if layer > len(threshold):
        raise ValueError(
            f"no exit threshold for layer {layer}: got {len(threshold)} thresholds, expected at least {layer}. Pass "
            "one for each layer but the last"
        )
    return threshold[layer - 1]


def check_threshold_count(threshold: Threshold, depth: int) -> None:
    """Raise ValueError if exit thresholds per layer do not match a stack of `depth` layers.

    threshold: one number, which fits any depth, or a tuple with one for each layer but the last.
    """
    if isinstance(threshold, tuple) and len(threshold) != depth - 1:
        problem = f"got {len(threshold)} thresholds for {depth} layers"
        raise ValueError(
            f"{problem}. Pass {depth - 1} of them, because the last layer has none, or one number for all layers"
        )

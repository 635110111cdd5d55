"""Threshold: the number that a token's confidence is held against, for all layers or for each layer but the last."""

from kinformer.core.checks import check_in_range

Threshold = float | tuple[float, ...]  # of all layers, or of each but the last


def check_threshold(threshold: Threshold, low: float, high: float) -> Threshold:
    """The same; ValueError for a number that is not between these two."""
    if not isinstance(threshold, tuple):
        return check_in_range("threshold", threshold, low, high)
    return tuple(check_in_range(f"threshold[{n}]", value, low, high) for n, value in enumerate(threshold))


def threshold_of_layer(threshold: Threshold, layer: int) -> float:
    """The threshold of a layer, counted from 1; ValueError for a layer without one."""
    if not isinstance(threshold, tuple):
        return threshold
    if layer > len(threshold):
        raise ValueError(
            f"no threshold for layer {layer}: got {len(threshold)} thresholds, expected at least {layer}. Pass one for "
            "each layer but the last"
        )
    return threshold[layer - 1]


def check_threshold_count(threshold: Threshold, depth: int) -> None:
    """ValueError for thresholds by layer of another number of layers."""
    if isinstance(threshold, tuple) and len(threshold) != depth - 1:
        problem = f"{len(threshold)} thresholds came for {depth} layers"
        raise ValueError(f"{problem}; give {depth - 1}, none for the last, or one number")

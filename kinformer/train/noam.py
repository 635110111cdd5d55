"""noam: the learning rate of the 2017 Transformer."""


def noam(step: int, d: int, warmup: int = 4000) -> float:
    """The learning rate of step 1, 2, ...: a line up to (d * warmup)^-1/2 at `warmup`, then falling as 1 / sqrt(step).

    Choose it for post-norm models, with Adam at betas (0.9, 0.98) and eps 1e-9, as in the paper. Source: Vaswani et
    al., 2017, arXiv:1706.03762, equation 3.
    """
    if step < 1 or warmup < 1:
        raise ValueError(f"step={step} and warmup={warmup} must be at least 1; the first step is 1")
    return d**-0.5 * min(step**-0.5, step * warmup**-1.5)

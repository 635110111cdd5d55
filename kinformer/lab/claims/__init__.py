"""Claims of papers, one per file, measured with models of this library against fixed thresholds.

Each file defines `claim(seeds)`, which measures one claim in about a minute and returns numbers, a verdict and plots.
A threshold is the value that a measured number must reach. All were fixed before the code was written.

The verdict "holds" means that every number meets its threshold, with an effect of more than two standard errors over
the seeds. The verdict "does not hold" means that at least one number misses its threshold by more than two standard
errors, or shows no effect at all. Otherwise the claim is "not resolved"; more seeds may resolve it. A claim that
fails here may hold in the paper, because the sizes are often much smaller here.

Every file in this folder is found by its name and runs as `kinformer claim NAME`.
"""

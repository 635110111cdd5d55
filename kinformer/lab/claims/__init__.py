"""Claims of papers, one per file, measured with models of this library against fixed thresholds.

Each file defines `claim(seeds)`, which measures one claim and returns numbers, a verdict and plots. A run with three
seeds takes half a minute to about 20 minutes. A threshold is the value that a measured number must reach. A threshold
of the paper is taken if it gives one, and otherwise our own; each was fixed before the reported run.

The verdict "holds" means that every mean over the seeds meets its threshold and differs from "no effect" by more than
two standard errors. The verdict "does not hold" means that a mean misses its threshold by more than two standard
errors. It also stands for a measure whose values are all equal and show no effect. Otherwise the claim is "not
resolved"; more seeds may resolve it. Two standard errors of three seeds cover the true mean in 82% of cases, and of two
seeds in 70%. A claim that fails here may hold in the paper, because the sizes are often much smaller here.

Every file in this folder is found by its name and runs as `kinformer claim NAME`.
"""

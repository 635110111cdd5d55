"""Claims of papers, one per file, measured in this library against fixed thresholds.

Each file defines `claim(seeds)`, which measures one claim in about a minute and returns numbers, a verdict and plots. A
claim holds if every number meets its threshold with an effect of more than two standard errors over the seeds;
`Measure` and `Claim` define the verdicts. The thresholds were fixed before the code was written. Every file in this
folder is found by its name and runs as `kinformer claim NAME`.
"""

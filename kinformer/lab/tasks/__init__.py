"""Synthetic tasks to test models, one file each; the option `--data task=NAME,...` trains on one."""

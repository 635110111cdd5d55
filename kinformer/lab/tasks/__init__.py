"""Synthetic tasks to test models, one file each; `--data task=NAME,size=8` trains on one."""

"""Synthetic tasks that show what a model can do, one file each; `--data task=NAME,size=8` trains on one."""

"""Tasks: made-up problems, a file each, that tell what a model can do; `--data task=NAME,size=8` trains on one."""

"""Environments that test an agent's memory, one file each; the option `--data env=NAME` uses one."""

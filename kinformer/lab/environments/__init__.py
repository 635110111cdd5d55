"""Environments that test an agent's memory, one file each; `--data env=NAME,corridor=9` uses one."""

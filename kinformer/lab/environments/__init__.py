"""Environments: worlds that ask what an agent remembers, a file each; `--data env=NAME,corridor=9` acts in one."""

"""Pieces of commands, which may import torch; each command is a file of the folder above."""

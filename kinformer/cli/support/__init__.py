"""Pieces of commands, which may import torch; a command itself is a file of the folder above."""

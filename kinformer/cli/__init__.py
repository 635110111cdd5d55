"""The command line: one file per command. Commands import torch when they run, so --help is fast."""

"""Entry point of `python -m kinformer` and `torchrun -m kinformer train`: the command line."""

from kinformer.cli.__main__ import main

if __name__ == "__main__":
    main()

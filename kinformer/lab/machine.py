"""The words that reports use for the machine and the versions of a measurement."""

import os
import platform

import torch

from kinformer import __version__


def describe_processor() -> str:
    """Return the processor with its cores and PyTorch's threads, such as "x86_64, cores: 2, threads: 2"."""
    processor = platform.processor() or platform.machine()
    return f"{processor}, cores: {os.cpu_count()}, threads: {torch.get_num_threads()}"


def describe_machine() -> str:
    """Return the processor, and the versions of Python, PyTorch and kinformer."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, kinformer {__version__}"
    return f"{describe_processor()}; {versions}"

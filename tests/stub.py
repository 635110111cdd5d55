"""Writes kinformer/__init__.pyi, from which type checkers and editors know the public names: `python -m tests.stub`."""

import subprocess
import sys
from pathlib import Path

import kinformer
from kinformer.core.discover import part_names
from kinformer.core.public_names import CONTRACTS

STUB = Path(kinformer.__file__).with_suffix(".pyi")


def stub_text() -> str:
    """One import for each public name, sorted and formatted by ruff."""
    home = part_names() | CONTRACTS
    imports = "\n".join(f"from kinformer.{home[name]} import {name} as {name}" for name in home)
    text = f"# Written by `python -m tests.stub`.\n{imports}\n\n__version__: str\n__all__: list[str]\n"
    return _run_ruff(_run_ruff(text, "check", "--fix"), "format")


def _run_ruff(text: str, *command: str) -> str:
    arguments = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(STUB), "-"]
    return subprocess.run(arguments, input=text, capture_output=True, text=True, check=True, cwd=STUB.parents[1]).stdout


if __name__ == "__main__":
    STUB.write_text(stub_text(), encoding="utf-8")

"""run_uncompiled: compiled code calls what is marked as it stands, and its import brings no compiler."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.models.support.run_uncompiled import run_uncompiled

ROOT = Path(__file__).parents[2]


def test_compiled_code_calls_it_as_it_stands() -> None:
    compiling: list[bool] = []

    @run_uncompiled
    def looked(x: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        compiling.append(torch.compiler.is_compiling())
        return x * float(x.sum())  # a graph could not look at numbers

    def call(x: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        return looked(x + 1) - 1

    x = torch.arange(3.0)
    try:
        compiled = torch.compile(call, backend="eager")
        assert torch.equal(compiled(x), call(x)) and compiling == [False, False]
        assert torch.equal(compiled(x + 1), call(x + 1)) and compiling == [False] * 4
    finally:
        torch._dynamo.reset()


@pytest.mark.prove
def test_members_are_there_without_a_compiler() -> None:
    code = "import sys; from kinformer.core.discover import members; members(); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

"""Law 4 over every executor, pattern and bias; expressions of patterns drawn."""

import os
import random
from pathlib import Path

import pytest
import torch

import kinformer.execute
from kinformer.discover import examples
from kinformer.laws import impl as law
from kinformer.laws.pattern import draw

ATOMS = [pattern for _, pattern in examples("patterns")]
EXECUTORS = sorted(
    path.stem
    for path in Path(kinformer.execute.__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "reference")
)
PROVE = os.environ.get("KINFORMER_PROVE") == "1"


@pytest.mark.parametrize("seed", range(150 if PROVE else 30))
@pytest.mark.parametrize("executor", EXECUTORS)
def test_executor_equals_reference(executor, seed, record_property):
    record_property("law", "impl")
    record_property("part", f"execute.{executor}")
    law.check(executor, draw(ATOMS, 3 if PROVE else 2, random.Random(seed)), seed=seed)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_executor_refuses_what_it_cannot_do(executor):
    q = torch.randn(1, 2, 3, 4)
    pos = torch.arange(3)[None, None]
    with pytest.raises(ValueError, match="an lse"):
        kinformer.execute.attend(q, q, q, q_pos=pos, k_pos=pos, pattern=ATOMS[0], impl=executor)

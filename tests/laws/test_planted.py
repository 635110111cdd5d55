"""Faults planted in parts that the folders hold, by a change of a line or two of their text: a law says each."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from kinformer.core.example import Example
from kinformer.laws.support.verdicts import JudgedPart, Verdict, laws, verdict


class Fault(NamedTuple):
    """A line of a file, what stands there instead, and which law says what."""

    file: str
    old: str
    new: str
    law: str
    says: str


TURN, MIRROR = "[a * cos - b * sin, b * cos + a * sin], -1)", "[a * cos - b * sin, b * cos - a * sin], -1)"
MASS = """    def received_attention(
        self, queries: Queries, keys: Keys, read: AttentionOutput, ctx: Context
    ) -> Float[Tensor, "B S"]:
        return Mechanism.received_attention(self, queries, keys, read, ctx)
"""
FAULTS = [
    Fault(
        "nn.memories.compressive",
        "return Segment(self.length, self.memory + self.older)",
        "return Segment(self.length, self.memory)",
        "peek",
        "depends on position 0, outside of receptive_field=",
    ),
    Fault(
        "nn.positions.rotary",
        f"stack({TURN}",
        f"stack({MIRROR}",
        "rotation",
        "the rotation changes the length of a vector",
    ),
    Fault(
        "nn.positions.rotary", f"cat({TURN}", f"cat({MIRROR}", "rotation", "the rotation changes the length of a vector"
    ),
    Fault(
        "nn.positions.rotary",
        "angle.cos()",
        "(angle + 1).cos()",
        "rotation",
        "the rotation changes a vector at position 0",
    ),
    Fault(
        "nn.positions.rotary",
        "angle = pos[:, None, :, None].to(dtype) * turns",
        "angle = pos[:, None, :, None].to(dtype) ** 2 * turns",
        "rotation",
        "products of queries and keys at equal distances change if positions grow by 1",
    ),
    Fault(
        "nn.projections.tied_kv",
        'self.q if check_option("name", name, ("q", "k", "v")) == "q" else self.c',
        'self.c if check_option("name", name, ("q", "k", "v")) == "v" else self.q',
        "projection",
        "matrix('k') gives a different k than queries() and keys()",
    ),
    Fault(
        "nn.projections.qkv",
        "q, k, v = self.qkv(x)",
        "k, q, v = self.qkv(x)",
        "projection",
        "both() gives a different q than queries() and keys()",
    ),
    Fault(
        "nn.projections.collaborative",
        "return self.heads\n",
        "return 1\n",
        "projection",
        "v has shape [2, 2, 7, 8], but sizes() says [2, 1, 7, 8]",
    ),
    Fault(
        "nn.mechanisms.topk",
        "tolerance=partial(score_tolerance, request)",
        "tolerance=lambda column: 1e-14 * request.keys.k.norm(dim=-1).amax()",
        "peek",
        "but a large change of the columns after column",
    ),
    Fault(
        "nn.mechanisms.sinkhorn",
        "F.pad(whole, (0, 0, 1, 0))[:, :, :-1].cumsum(2) + x[:, :, :, 0]",
        "whole.cumsum(2) - whole + x[:, :, :, 0]",
        "peek",
        "but a large change of the columns after column",
    ),
    Fault(
        "nn.maps.favor",
        "math.log(size) - largest.detach() - (half - half.detach())",
        "math.log(size) - half - constant",
        "peek",
        "but a large change of the columns after column",
    ),
    Fault("nn.mechanisms.topk", MASS, "", "received_attention", "but no query reads it"),
    Fault(
        "nn.mechanisms.explicit",
        "return super().received_attention(queries, keys, read, ctx)",
        "return 2 * super().received_attention(queries, keys, read, ctx)",
        "received_attention",
        "the received attention of a key differs from the sum of the weights of its value",
    ),
    Fault(
        "nn.scores.residual",
        "self.own * own_scores + self.below * previous)",
        "previous.mul_(self.below).add_(self.own * own_scores))",
        "mutation",
        "forward writes to a tensor that other layers use: 'scores' in the up of Explicit",
    ),
    Fault(
        "models.agent",
        "batch.advantages.where(real, 0.0)",
        "batch.advantages",
        "padding",
        "NaN or infinite numbers at padding change the result (the gradient of",
    ),
    Fault(
        "models.forecast",
        "F.pad(values[:, begin:], (0, 0, 0, self.horizon))",
        "batch.values[:, begin:]",
        "peek",
        "redrawing the rows to forecast changes the forecast",
    ),
]


def planted(fault: Fault) -> ModuleType:
    """The file with its fault, run."""
    module = import_module(f"kinformer.{fault.file}")
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, f"{fault.file} has no such line, or several"
    faulty = ModuleType(module.__name__)
    exec(compile(text.replace(fault.old, fault.new), str(module.__file__), "exec"), vars(faulty))
    return faulty


def judged(fault: Fault, module: ModuleType) -> list[Verdict]:
    examples = [Example.from_entry(entry) for entry in module.EXAMPLES]
    verdicts = [verdict(fault.law, laws()[fault.law], JudgedPart.from_example("it", example)) for example in examples]
    return [verdict_said for verdict_said in verdicts if verdict_said is not None]


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.law}-{fault.file}-{n}" for n, fault in enumerate(FAULTS)])
def test_a_planted_fault_is_said(fault: Fault) -> None:
    verdicts = judged(fault, planted(fault))
    assert any(verdict_said.end == "broken" and fault.says in verdict_said.text for verdict_said in verdicts), verdicts
    assert all(verdict_said.end != "broken" for verdict_said in judged(fault, import_module(f"kinformer.{fault.file}")))

"""Law 9, compiles: what declares COMPILES = True compiles as one graph, forward and backward, and computes the same."""

from typing import Any

import torch
from torch import Tensor

from kinformer.core.layer import Out
from kinformer.laws.broken import Broken
from kinformer.laws.compare import agree, agree_out
from kinformer.laws.subject import Subject

LENGTH = 9


def check(subject: Subject, backend: str = "aot_eager") -> None:
    """A call without a state, and its gradients. Code whose annotations are checked at run time cannot compile."""
    module = subject.build().train()
    batch = subject.ragged(LENGTH)
    torch._dynamo.reset()

    def plain() -> Out:
        return subject.call(module, batch)

    want = plain()
    try:
        got = torch.compile(plain, fullgraph=True, backend=backend)()
        compiled = _gradients(module, got)
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        raise Broken(f"does not compile as one graph: {type(error).__name__}: {first}") from error
    agree_out(got, want, "compiled, it computes something else", batch.pos)
    for name, mine, theirs in zip(dict(module.named_parameters()), compiled, _gradients(module, want), strict=True):
        if mine is not None and theirs is not None:
            agree(mine, theirs, f"compiled, the gradient of {name} is another")
        elif mine is not theirs:
            raise Broken(f"compiled, {name} has a gradient in one case and none in the other")


def _gradients(module: Any, out: Out) -> tuple[Tensor | None, ...]:
    parameters = list(module.parameters())
    if not out.y.requires_grad:
        return (None,) * len(parameters)
    return torch.autograd.grad(out.y.sin().sum(), parameters, allow_unused=True)

"""Law compiles: a part compiles as one graph, forward and backward, and gives the same result."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from kinformer.core.layer import Out
from kinformer.core.state import fork
from kinformer.laws.support.comparisons import agree_gradients, agree_out, agree_states
from kinformer.laws.support.dependences import gradients
from kinformer.laws.support.findings import Broken, Unjudged, findings
from kinformer.laws.support.subject import EFFORT, ROWS, Subject, TrainingSubject

SAYS = "the part compiles as one graph and gives the same result, also with a state"
OVER = ("layer", "model")
LENGTH, CHUNK = 9, 3
BACKEND = "aot_eager" if EFFORT > 1 else "eager"  # a backend that generates code could fail for reasons of its own


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Compare compiled calls with eager calls: a call with gradients, and a decoding step.

    subject: the part or model to judge.

    The law also checks train mode if the part has a memory. With KINFORMER_PROVE=1, it also compiles a chunk before the
    decoding step, and the plain call of a model. Otherwise the loss of the model covers this call. Code with run-time
    checks of annotations cannot compile, so tests run this law in a separate process.
    """
    if hasattr(Out.__init__, "__wrapped__") or hasattr(agree_out, "__wrapped__"):
        raise Unjudged("annotations are checked at run time in this process, and such code does not compile")
    if EFFORT == 1 and isinstance(subject, Subject) and (subject.tried or subject.secondary):
        raise Unjudged("this use is compiled only with KINFORMER_PROVE=1")
    module, in_its_loss = subject.build(), EFFORT == 1 and isinstance(subject, Subject) and bool(subject.vocab)
    # under `also`, a state needs more slots than `start` provides, and a compiled cache cannot grow
    decodes = len(subject.states(module, ROWS, LENGTH)) > 1 and subject.also is None
    if in_its_loss and not decodes:
        raise Unjudged("its plain call is compiled as part of its loss, and by itself only with KINFORMER_PROVE=1")
    if not in_its_loss:
        for _ in subject.modes(module) if isinstance(subject, Subject) else (False,):
            yield from findings(_check_call, subject, module)
    if decodes:
        yield from findings(_check_decoding, subject, module)


def _check_call(subject: Any, module: Any) -> None:
    batch = subject.ragged(LENGTH)
    call = _prepare(subject, module, batch)
    expected, actual = call(None), _call_compiled(call, None)
    agree_out(actual, expected, "the compiled call gives a different result", batch.pos)
    theirs, mine = (gradients(out.y.sin().sum(), module) for out in (expected, actual))
    agree_gradients(mine, theirs, "the compiled call has different gradients")


def _check_decoding(subject: Subject, module: Any) -> None:
    batch = subject.batch([LENGTH] * ROWS)
    with torch.no_grad():
        state = subject.call(module, batch.columns(0, CHUNK), subject.start(module, ROWS, LENGTH)).state
        for lo, hi in ((CHUNK, LENGTH - 1), (LENGTH - 1, LENGTH)) if EFFORT > 1 else ((CHUNK, CHUNK + 1),):
            chunk = batch.columns(lo, hi)
            call = _prepare(subject, module, chunk)
            expected, actual = call(fork(state)), _call_compiled(call, fork(state))
            sentence = (
                f"a compiled call of {hi - lo} token{'s' if hi - lo > 1 else ''} after {lo} gives a different result"
            )
            agree_out(actual, expected, sentence, chunk.pos)
            agree_states(actual.state, expected.state, sentence)
            state = expected.state


def _prepare(subject: Any, module: Any, batch: Any) -> Callable[[Any], Out]:
    """Return a call with everything but the state fixed; the context is made outside of the graph."""
    if isinstance(subject, TrainingSubject) or subject.vocab:
        return lambda state: subject.call(module, batch, state)
    ctx = batch.context()
    return lambda state: module(batch.x, state, ctx)


def _call_compiled(call: Callable[[Any], Out], state: Any) -> Out:
    torch._dynamo.reset()  # after too many compilations, PyTorch silently runs a function in eager mode
    try:
        return torch.compile(call, fullgraph=True, backend=BACKEND)(state)
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        raise Broken(f"the part does not compile as one graph: {type(error).__name__}: {first}") from error

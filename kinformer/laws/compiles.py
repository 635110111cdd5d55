"""Law compiles: `torch.compile` makes one graph of a part, forward and backward, with the same result."""

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
    """Compare calls under `torch.compile` with eager calls, and yield each difference or error.

    subject: a layer or model with the part to test.

    Two calls are compared: a call with gradients, and a decoding step. Train mode is tested only if the part has a
    memory (states carried between chunks). With the environment variable KINFORMER_PROVE=1, two more calls are
    compiled: a longer chunk in decoding, and the call of a model without a loss. By default, only the loss of a model
    covers the latter. Code with run-time checks of annotations cannot compile, so the test-suite runs this law in a
    separate process.
    """
    if hasattr(Out.__init__, "__wrapped__") or hasattr(agree_out, "__wrapped__"):
        raise Unjudged("this process checks annotations at run time, and code with such checks does not compile")
    if EFFORT == 1 and isinstance(subject, Subject) and (subject.tried or subject.secondary):
        raise Unjudged("this use of the part is compiled only with the environment variable KINFORMER_PROVE=1")
    module, in_its_loss = subject.build(), EFFORT == 1 and isinstance(subject, Subject) and bool(subject.vocab)
    # under `also`, a state needs more slots than `start` provides, and a compiled cache cannot grow
    decodes = len(subject.states(module, ROWS, LENGTH)) > 1 and subject.also is None
    if in_its_loss and not decodes:
        raise Unjudged(
            "the call of the model is compiled as part of its loss; set KINFORMER_PROVE=1 to compile it without a loss"
        )
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

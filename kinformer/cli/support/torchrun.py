"""Commands in several processes, as torchrun starts them; only the first process prints."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from kinformer.cli.errors import after_the_first
from kinformer.lab.errors import FAILED, WRONG, UserError, from_user
from kinformer.lab.train.distributed import Form, ProcessLost, SingleProcess, processes
from kinformer.lab.train.loop import TrainingStopped


@contextmanager
def process_group(form: Form) -> Iterator[SingleProcess]:
    """Enter the process group of a command that torchrun started in several processes.

    form: "ddp" keeps all weights in each process; "shard" keeps a part of them in each.

    Only the first process prints, and it reports the failures that happen in all processes. Another process reports a
    failure only if the first process does not have it.
    """
    with from_user(ProcessLost, code=FAILED), processes(form) as group:
        if not group.rank:
            with group.detect_lost_process():
                yield group
            return
        try:
            with (
                open(os.devnull, "w") as nothing,
                redirect_stdout(nothing),
                redirect_stderr(nothing),
                group.detect_lost_process(),
            ):
                yield group
        except (UserError, ProcessLost) as error:
            code = error.code if isinstance(error, UserError) else FAILED
            if code not in (FAILED, WRONG):  # a signal, which all processes receive
                raise UserError("", code) from error
            if code == FAILED and isinstance(error.__cause__, TrainingStopped):
                after_the_first()
            raise UserError(f"process {group.rank} of 0 to {group.size - 1}: {error}", code) from error

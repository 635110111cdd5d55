"""A command in a process of its own, on a terminal, and how long it works without a word."""

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from time import monotonic

from tests.cli.fuzz.world import Seen

FIRST = 5.0  # seconds that a command may take before its first word
LOOK = 0.05
ENV = {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "200"}


def spoken(words: list[str]) -> tuple[Seen, float]:
    """What is seen of a command, and the longest that it worked in silence after its first five seconds.

    Work is the processor's time of the process where the system tells it, since other processes slow this one down.
    """
    ours, child_end = pty.openpty()
    command = [sys.executable, "-m", "kinformer.cli", *words]
    path = os.pathsep.join(folder for folder in sys.path if folder)
    env = {**os.environ, **ENV, "PYTHONPATH": path}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=child_end, stdin=subprocess.DEVNULL, env=env
    ) as process:
        os.close(child_end)
        assert process.stdout is not None
        files = {process.stdout.fileno(): b"", ours: b""}
        open_ones, last, longest, began = set(files), 0.0, 0.0, monotonic()
        while open_ones:
            ready, _, _ = select.select(open_ones, [], [], LOOK)
            now = worked(process.pid, began)
            if now > FIRST:
                longest = max(longest, now - max(last, FIRST))
            for file in ready:
                data = read(file)
                files[file] += data
                last = now
                if not data:
                    open_ones.discard(file)
        code = process.wait()
        os.close(ours)
    out, err = files_of(files, ours)
    return Seen(code, out, standing(err.replace("\r\n", "\n"))), longest


def standing(text: str) -> str:
    """What stands on a terminal in the end: of a line that was written anew what came last, without colours."""
    lines = (re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(lines)


def files_of(files: dict[int, bytes], ours: int) -> tuple[str, str]:
    """What came by stdout and by the terminal."""
    out = b"".join(data for file, data in files.items() if file != ours)
    return out.decode(errors="replace"), files[ours].decode(errors="replace")


def read(file: int) -> bytes:
    """What there is; nothing at the end, which a terminal tells by an error."""
    try:
        return os.read(file, 1 << 16)
    except OSError:
        return b""


def worked(process: int, began: float) -> float:
    """Seconds that a process has worked; since it began where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return monotonic() - began
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

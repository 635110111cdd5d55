"""Members trained by two processes, each as one would train it alone: what the tests of train/process_group.py run.

    python -m tests.lab.train.processes JOBS.json    as torchrun starts it, once for each rank

A job says which example of which member is trained, how, for how many steps, and where it is kept. The first process
prints what came of each job, a line of JSON each: the losses of its steps and its measurements.
"""

import json
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SIZE = {"vocab": 256, "dropout": 0.0, "attention_dropout": 0.0}


def run_jobs(jobs: list[dict[str, Any]], folder: Path, count: int = 2) -> list[dict[str, Any]]:
    """What so many processes, started as torchrun starts them, make of these jobs."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env["WORLD_SIZE"] = str(count)
    words = [sys.executable, "-m", "tests.lab.train.processes", str(folder / "jobs.json")]
    ranks = [
        subprocess.Popen(
            words,
            cwd=ROOT,
            env={**env, "RANK": str(n), "LOCAL_RANK": str(n)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for n in range(count)
    ]
    try:
        outputs = [rank.communicate(timeout=500) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * count, "\n".join(stderr for _, stderr in outputs)
    assert [stdout for stdout, _ in outputs[1:]] == [""] * (count - 1)
    return [json.loads(line) for line in outputs[0][0].splitlines()]


def build_example(member: str, example: int, **keywords: Any) -> Any:
    """An example of a member for bytes, without dropout unless told, always with the same weights."""
    import torch

    from kinformer.core.discover import modules
    from kinformer.core.example import Example

    file = modules("members")[member]  # which may have several members
    record = Example.from_entry(file.EXAMPLES[example]).make().member
    size = {name: value for name, value in SIZE.items() if name in record.keywords}
    torch.manual_seed(0)
    return getattr(file, record.name).rebuild(**{**record.keywords, **size, **keywords})


def data(model: Any) -> Any:
    """Bytes without sense, or pairs of sides, or labelled rows, of every length up to twelve; else what it makes up."""
    import random

    import torch

    from kinformer.lab.data.batches import Batches
    from kinformer.lab.data.labelled import LabelledData
    from kinformer.lab.data.pairs import PairData
    from kinformer.lab.data.text import TextData

    draw = random.Random(0)
    if model.reads == "pairs":
        every = [tuple(draw.randbytes(draw.randint(1, 11)) for _ in range(2)) for _ in range(40)]
        return PairData("noise", tuple(every[:33]), tuple(every[33:]), tuple(every[33:]))  # type: ignore[arg-type]
    if model.reads not in ("text", "masked", "labelled"):
        return Batches([model.sample(5, 12, seed) for seed in range(8)], [model.sample(5, 12, 9)])
    if model.reads == "labelled":
        rows = [(draw.randbytes(draw.randint(1, 11)), draw.randrange(2)) for _ in range(40)]
        return LabelledData("noise", tuple(rows[:33]), tuple(rows[33:]), tuple(rows[33:]), ("a", "b"))
    train, valid = (torch.tensor(list(draw.randbytes(count)), dtype=torch.uint8) for count in (700, 150))
    return TextData("noise", train, valid, valid)


def train_one(job: dict[str, Any], group: Any) -> dict[str, Any]:
    """What comes of a job: the loss of each step, and each measurement."""
    from kinformer.core.training_recipe import Recipe
    from kinformer.lab.train.budget import StepBudget
    from kinformer.lab.train.settings import Settings
    from kinformer.lab.train.train import train

    lines: list[dict[str, Any]] = []
    model = build_example(job["member"], job["example"], **job.get("keywords", {}))
    plan = Recipe(3e-3, schedule=job.get("schedule", "cosine"))
    settings = Settings(batch=5, length=12, plan=plan, measures=2, valid_bytes=150, **job.get("settings", {}))
    folder = Path(job["folder"]) if "folder" in job else None
    resume = job.get("resume", False)
    train(
        model,
        data(model),
        StepBudget(job["steps"]),
        settings,
        folder=folder,
        on_metrics=lines.append,
        resume=resume,
        group=group,
    )
    return {
        "loss": [line["loss"] for line in lines if "step" in line],
        "valid": [line["valid"] for line in lines if "valid" in line],
        "tokens": lines[-2]["tokens"],
    }


def main() -> None:
    """Every job, one after the other, in this process's group."""
    import torch

    from kinformer.lab.train.distributed import ProcessGroup, ShardedGroup, SingleProcess, processes

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="rows of")
    for declared in ("processes=2 changes what this", "this .* reads ahead, as its part declares"):
        warnings.filterwarnings("ignore", message=declared)
    jobs = json.loads(Path(sys.argv[1]).read_text())
    with processes() as group:
        for job in jobs:
            group.reduce_max(0.0)  # what one process did before is done
            form = {"ddp": ProcessGroup, "shard": ShardedGroup, "alone": SingleProcess}[job["form"]]
            if group.rank and form is SingleProcess:
                continue
            result = train_one(job, form())
            if group.rank == 0:
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

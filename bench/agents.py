"""Agents that learn in environments here, with and without a memory: success or return by steps, three seeds each.

`python bench/agents.py TASK [MEMBER ...]` trains what bench/results/agents.json lacks, saves each training as it ends,
prints the table and draws bench/results/agents_TASK.png. A training follows from its seed alone, so the file may be
taken away and made anew. `solves` has the trainings of `kinformer claim gtrxl_solves`, and says what they decide.
"""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from time import monotonic, process_time
from typing import Any

import torch

from kinformer.lab.claims.agent_memory import RATE
from kinformer.lab.claims.gtrxl_solves import CORRIDOR, GATES, RATES, ROLLOUTS, WIDTHS, build_claim, stack
from kinformer.lab.claims.support.agents import ENTROPY, LearningCurve, curves_plot, train_agent
from kinformer.lab.plot import Plot
from kinformer.pages.plots import save_plots

RESULTS = Path(__file__).parent / "results"
FOUND, SEEDS = RESULTS / "agents.json", (0, 1, 2)
WORTH = 0.02  # of a step of CartPole; of 1 the value is learned for longer than all of this takes
NEAR = "segment=8, memory=8"  # what these ask for lies a few steps back
STACKS = {  # about 7,000 weights each
    "gtrxl": f"gtrxl(d=16, depth=1, heads=2, {NEAR})",
    "lstm": "lstm(d=27, depth=1)",
    "no memory": "gpt(d=22, depth=1, heads=2, position=none, pattern=Causal() & Band(0))",
}


@dataclass(frozen=True)
class Task:
    """An environment, how long agents learn in it and with what settings, and the layers of each."""

    spec: str
    rollouts: int
    stacks: dict[str, str]
    measure: str = "success"
    lr: float = RATE
    settings: dict[str, Any] = field(default_factory=lambda: {"entropy": ENTROPY})


TASKS = {
    "gates": Task("t_maze,corridor=30", 60, {gate: stack(gate) for gate in WIDTHS}),
    "repeat": Task("repeat_previous", 40, STACKS, settings={"discount": 0.0, "trace": 0.0}),
    "cartpole": Task(
        f"masked_cartpole,length=200,worth={WORTH}", 40, STACKS, "returns", settings={"rows": 16, "entropy": 0.0}
    ),
}
TASKS |= {
    f"solves {lr:g}": Task(f"t_maze,corridor={CORRIDOR}", ROLLOUTS, {gate: stack(gate) for gate in GATES}, lr=lr)
    for lr in RATES
}


def saved_trainings() -> dict[str, Any]:
    """Every training that has ended."""
    return json.loads(FOUND.read_text()) if FOUND.exists() else {}


def train(name: str, member: str, seed: int) -> None:
    """A training that is not there yet: its curve, and the seconds that it took of a core."""
    task, key, began = TASKS[name], f"{name}, {member}, {seed}", process_time()
    if key in saved_trainings():
        return
    curve = train_agent(task.stacks[member], task.spec, seed, task.lr, task.rollouts, **task.settings)
    of = {"returns": tuple(value / WORTH for value in curve.returns), "success": ()} if name == "cartpole" else {}
    training = {**curve._asdict(), **of, "seconds": round(process_time() - began)}
    FOUND.write_text(json.dumps(saved_trainings() | {key: training}).replace("}, ", "},\n") + "\n")
    print(key, training["seconds"], "s", [round(value, 2) for value in training[task.measure]], flush=True)


def curves(name: str) -> dict[str, list[LearningCurve]]:
    """Of each member whose seeds are all there."""
    trainings, own = saved_trainings(), dict[str, list[LearningCurve]]()
    for member in TASKS[name].stacks:
        of = [trainings.get(f"{name}, {member}, {seed}") for seed in SEEDS]
        if all(of):
            own[member] = [LearningCurve(*(training[part] for part in LearningCurve._fields)) for training in of]
    return own


def tell(name: str) -> list[Plot]:
    """The table of a task; its picture, if all of one member is there."""
    task, own, trainings = TASKS[name], curves(name), saved_trainings()
    digits = 2 if task.measure == "success" else 0
    for member, member_curves in own.items():
        took = mean(trainings[f"{name}, {member}, {seed}"]["seconds"] for seed in SEEDS)
        cells = (
            " ".join(f"{value:.{digits}f}" for value in row)
            for row in zip(*(getattr(c, task.measure) for c in member_curves), strict=True)
        )
        print(f"| {member} | {member_curves[0].parameters:,} | {took:.0f} | {' | '.join(cells)} |")
    if not own:
        return []
    print("steps:", " | ".join(f"{value:,}" for value in next(iter(own.values()))[0].steps))
    return [curves_plot(task.spec, own, task.measure)]


def decided() -> list[Plot]:
    """What the trainings of `solves` decide; nothing before all are there."""
    by = [curves(f"solves {lr:g}") for lr in RATES]
    if any(len(entry) < len(GATES) for entry in by):
        return []
    claim = build_claim({gate: [[entry[gate][seed] for entry in by] for seed in SEEDS] for gate in GATES})
    for entry in claim.measures:
        print(f"{entry.quantity}: {entry.summary}: {entry.verdict}")
    for subject, fact in claim.facts.items():
        print(f"{subject}: {fact}")
    return list(claim.plots)


def draw(name: str, plots: list[Plot]) -> None:
    """bench/results/agents_NAME.png."""
    for plot in plots:
        save_plots([plot], "", RESULTS / f"agents_{name}.png")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("task", choices=[*(name for name in TASKS if " " not in name), "solves"])
    options.add_argument("members", nargs="*")
    options.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    options.add_argument("--minutes", type=float, default=1e9, help="begin no training after these")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    began = monotonic()
    names = [name for name in TASKS if name.split(" ")[0] == arguments.task]
    for seed in arguments.seeds:
        for name in names:
            for member in arguments.members or TASKS[name].stacks:
                if monotonic() - began < 60 * arguments.minutes:
                    train(name, member, seed)
    plots = [tell(name) for name in names]
    draw(arguments.task, decided() if arguments.task == "solves" else plots[0])


if __name__ == "__main__":
    main()

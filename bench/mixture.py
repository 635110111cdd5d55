"""Episodes of Pendulum of all qualities, of near-expert ones and chance, and a Decision Transformer that reads them.

`python bench/mixture.py EXPERT.npz FOLDER` writes the mixture into FOLDER, from which
`kinformer train decision_transformer --data offline=FOLDER` learns, and draws bench/results/pendulum.png: the return
that was asked for and the one that came.
"""

import argparse
import shutil
from pathlib import Path
from statistics import correlation, mean
from typing import Any

import torch

from kinformer.lab.claims.support.episodes import mean_return, train_member
from kinformer.lab.data.offline import EpisodeData, read
from kinformer.lab.data.support.offline_episodes import write_episodes
from kinformer.lab.data.support.play_episodes import PlaySettings, roll_out
from kinformer.members.behaviour_cloning import behaviour_cloning
from kinformer.members.decision_transformer import decision_transformer

RESULTS = Path(__file__).parent / "results"
ENV, SHARES, EPISODES = "Pendulum-v1", (0.15, 0.3, 0.45, 0.6, 1.0), 50  # the share of steps that chance takes
SMALL: dict[str, Any] = {"d": 48, "depth": 2, "heads": 2, "dropout": 0.0}
CLONED, LEARNED, RATE, ASKED, PLAYED = 1200, 1800, 3e-3, 8, 16


def mixture(expert: Path, folder: Path, seed: int) -> None:
    """Into a folder: the expert's episodes, those of its clone with so many steps by chance, and those of chance."""
    clone = train_member(behaviour_cloning, read(str(expert)), seed, CLONED, RATE, **SMALL, context=3, best=100)
    folder.mkdir(parents=True)
    shutil.copyfile(expert, folder / "expert.npz")
    for place, share in enumerate(SHARES):
        plan = PlaySettings(ENV, EPISODES, random=share, seed=EPISODES * (len(SHARES) * seed + place))
        rollouts = sorted(roll_out(None if share == 1 else clone, plan), key=lambda rollout: rollout.number)
        write_episodes(folder / f"chance_{share:g}.npz", [rollout.episode for rollout in rollouts])
        print(
            f"chance takes {share:g} of the steps: {mean(rollout.episode.total_return for rollout in rollouts):.0f}",
            flush=True,
        )


def measure_returns(data: EpisodeData, seed: int) -> list[tuple[float, float]]:
    """Quantiles of the returns of episodes, and what came where they were asked for."""
    model = train_member(decision_transformer, data, seed, LEARNED, RATE, **SMALL, context=10)
    whole = data.train.episode_returns.sort()[0]
    quantiles = [float(whole[round((n + 0.5) / ASKED * (len(whole) - 1))]) for n in range(ASKED)]
    return [(target, mean_return(model, ENV, PLAYED, target, 10**6 + seed)) for target in quantiles]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("expert", type=Path)
    options.add_argument("folder", type=Path, help="a folder of it for each seed, made where it is not there")
    options.add_argument("--seeds", type=int, default=3)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    results = []
    for seed in range(arguments.seeds):
        if not (arguments.folder / f"{seed}").exists():
            mixture(arguments.expert, arguments.folder / f"{seed}", seed)
        data = read(str(arguments.folder / f"{seed}"))
        print(data.split)
        results.append(measure_returns(data, seed))
        print(", ".join(f"{target:.0f}: {achieved:.0f}" for target, achieved in results[-1]))
        print(f"seed {seed}: correlation {correlation(*map(list, zip(*results[-1], strict=True))):.3f}", flush=True)
    draw_returns(results)


def draw_returns(results: list[list[tuple[float, float]]]) -> None:
    """What was asked and what came, by seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 4.2), layout="constrained")
    for seed, points in enumerate(results):
        axes.plot(*zip(*points, strict=True), "o-", alpha=0.7, label=f"seed {seed}")
    ends = [points for of in results for points, _ in of]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], "--", color="tab:gray", label="as asked")
    axes.set(xlabel="return asked for", ylabel=f"mean return of {PLAYED} episodes", title=ENV)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(RESULTS / "pendulum.png", dpi=110)


if __name__ == "__main__":
    main()

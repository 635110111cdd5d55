"""The command `kinformer play`: play episodes with a trained agent, or with random actions."""

import math
import os
from pathlib import Path
from typing import Annotated

import typer

from kinformer.cli.errors import refuse_existing, refuse_no_folder, refuse_useless
from kinformer.cli.options import LAST_SEED, SEED, Device, Own, RunPrecision, count, flag, trained_folder
from kinformer.lab.errors import UserError, from_user


def play(
    ctx: typer.Context,
    folder: Annotated[
        Path | None, trained_folder("that acts in environments; without it, all actions are random.")
    ] = None,
    *,
    env: Annotated[
        str,
        typer.Option(
            help="Environment to play in: a Gymnasium ID such as CartPole-v1, or an environment of kinformer such as "
            "t_maze,corridor=9."
        ),
    ],
    returns: Annotated[
        list[float] | None,
        flag(
            "return",
            "Target return (sum of rewards) of a decision_transformer, such as 500; give the option again "
            "for more; default: the highest return of its training data.",
        ),
    ] = None,
    episodes: Annotated[int, count("Number of episodes to play for each target return.")] = 10,
    random: Annotated[
        float,
        typer.Option(
            help="Share of steps in which a random action replaces the action of the agent, such as 0.3.", min=0, max=1
        ),
    ] = 0.0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="New folder for an animation of an episode, the returns and a picture of them; default: none are "
            "written."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="New FILE.npz for the episodes, which `kinformer train` reads with --data offline=FILE.npz."),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(help="Seed of the first episode; each further episode has the next seed.", min=0, max=LAST_SEED),
    ] = SEED,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
) -> None:
    """Play episodes with a trained agent, or with random actions.

    \b
    Examples:
        kinformer play runs/dt --env CartPole-v1 --return 500 --return 100
        # Save 50 episodes of random actions as training data
        kinformer play --env Pendulum-v1 --episodes 50 --save chance.npz

    A decision_transformer aims at a target return, the sum of rewards of an episode. It plays --episodes for each
    --return, and after each reward it aims at the part that is still missing. Without --return it aims at the highest
    return of its training data. Other agents take no --return.

    For each target the command prints the mean return with its standard deviation, and the lowest and highest return.
    It also prints the mean number of steps, and the success rate if the environment reports one. For three or more
    targets it also prints the correlation of target and achieved returns.

    With --out the command writes play.gif with the first episode and returns.json with the return of each episode. For
    several targets it also writes returns.png, a picture of target and achieved returns. With --save it writes the
    episodes as training data. With --random 0.3, 30% of the actions are random, so the data has episodes of mixed
    quality. Without a model all actions are random.

    If an environment fails, the command ends with an error. Episodes that had ended before are reported and saved.
    After Ctrl-C they are reported and saved too, without pictures.
    """
    if save is not None and save.suffix != ".npz":
        raise UserError(f"wrong --save: got {save}, expected a name that ends in .npz; give FILE.npz")
    if save is not None:
        refuse_no_folder(save, "--save")
    if not all(map(math.isfinite, returns or ())):
        raise UserError(
            "wrong --return: got nan or inf, expected a finite number; give a return (sum of rewards) that an "
            "episode can reach"
        )
    if folder is None and returns:
        raise UserError(
            "--return has no effect when all actions are random; leave it out, or give the folder of a model"
        )
    if folder is None:
        trained = "give the folder of a model"
        refuse_useless(ctx, "when all actions are random", "random", "device", "precision", "member", instead=trained)
    for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):  # images are saved and not shown, so no screen is needed
        os.environ.setdefault(driver, "dummy")
    with from_user(ImportError):
        # imported here, so that --help and early errors do not wait for torch or rich
        from kinformer.cli.support.play_session import play_episodes
    from kinformer.core.actor import Player
    from kinformer.lab.data.support.play_episodes import PlaySettings

    model = None
    if folder is not None:
        from kinformer.cli.support.load_model import load_model

        model = load_model(folder, member, device, precision=precision)
        if not isinstance(model, Player):
            advice = "use a model of a member such as decision_transformer"
            raise UserError(f"this model reads {model.reads} data and cannot act; {advice}")
    for path in filter(None, (out, save)):
        refuse_existing(path)
    play_episodes(
        model, PlaySettings(env, episodes, None, random, seed), tuple(dict.fromkeys(returns or (None,))), out, save
    )

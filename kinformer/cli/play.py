"""`kinformer play DIR --env ID`: what a trained model returns where it acts."""

import math
import os
from pathlib import Path
from typing import Annotated

import typer

from kinformer.cli.errors import refuse_existing, refuse_useless
from kinformer.cli.options import LAST_SEED, SEED, Device, Own, count, flag, trained_folder
from kinformer.lab.errors import UserError, from_user


def play(
    ctx: typer.Context,
    folder: Annotated[Path | None, trained_folder("of a member that acts; none: chance acts.")] = None,
    *,
    env: Annotated[str, typer.Option(help="An ID of Gymnasium, CartPole-v1, or one of ours, t_maze,corridor=9.")],
    returns: Annotated[
        list[float] | None, flag("return", "The return to ask for, such as 500; again for others.")
    ] = None,
    episodes: Annotated[int, count("How many are played, of each return.")] = 10,
    random: Annotated[float, typer.Option(help="The share of steps, 0.3, in which chance acts.", min=0, max=1)] = 0.0,
    out: Annotated[Path | None, typer.Option(help="A new folder for the animation, returns.json, a picture.")] = None,
    save: Annotated[Path | None, typer.Option(help="A new FILE.npz for the episodes: --data offline=FILE.npz.")] = None,
    seed: Annotated[int, typer.Option(help="Of the first episode; others count on.", min=0, max=LAST_SEED)] = SEED,
    device: Device = None,
    member: Own = None,
) -> None:
    """Let a model act, and say what its episodes returned: kinformer play DIR --env CartPole-v1 --return 500

    What learned from episodes (`decision_transformer`) is asked for each --return in turn, and then for what is left of
    it after each reward; asked for none, for the highest that it learned from. Other agents know no returns.

    Into --out DIR: play.gif, the first episode; returns.json, what each episode returned; and of several --return a
    picture of what was asked and what came, returns.png. --save FILE.npz keeps the episodes, to be learned from: data
    of mixed quality by --random 0.3 and the like, or without DIR, by chance alone.

    Said of each return: the mean of the episodes with their deviation, the lowest and the highest, their steps, and in
    environments that know it how many succeeded; of three returns and more also how asked and achieved correlate.

    An environment that fails ends the command with a line; what had ended before is told and kept. After Ctrl-C it is
    told and kept too, without pictures.
    """
    if save is not None and save.suffix != ".npz":
        raise UserError(f"--save {save} is no .npz; give FILE.npz")
    if not all(map(math.isfinite, returns or ())):
        raise UserError("a return is a number, and --return nan or inf is none; give one that an episode can reach")
    if folder is None and returns:
        raise UserError(
            "--return has no effect when all actions are drawn at random; leave it out, or give a folder of train"
        )
    if folder is None:
        trained = "give a folder that train wrote"
        refuse_useless(ctx, "when all actions are drawn at random", "random", "device", "member", instead=trained)
    for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):  # pictures are kept, not shown: no screen is looked for
        os.environ.setdefault(driver, "dummy")
    with from_user(ImportError):
        # imported here, so that --help and early refusals need not wait for torch or rich
        from kinformer.cli.support.play_session import play_episodes
    from kinformer.core.actor import Player
    from kinformer.lab.data.support.play_episodes import PlaySettings

    model = None
    if folder is not None:
        from kinformer.cli.support.load_model import load_model

        model = load_model(folder, member, device)
        if not isinstance(model, Player):
            advice = "use one of a member that does, like decision_transformer"
            raise UserError(f"this model reads {model.reads} and does not act; {advice}")
    for path in filter(None, (out, save)):
        refuse_existing(path)
    play_episodes(
        model, PlaySettings(env, episodes, None, random, seed), tuple(dict.fromkeys(returns or (None,))), out, save
    )

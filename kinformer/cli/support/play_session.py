"""Episodes that an agent plays in an environment: summarised, saved and drawn."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import correlation, mean, stdev

from kinformer.checkpoint.atomic_files import write
from kinformer.cli.errors import ended_by, print_warnings
from kinformer.cli.support.progress_bar import progress
from kinformer.core.actor import Player
from kinformer.core.warn import warn
from kinformer.lab.data.support.offline_episodes import write_episodes
from kinformer.lab.data.support.parallel_environments import EnvironmentFailure
from kinformer.lab.data.support.play_episodes import PlayedEpisode, PlaySettings, roll_out
from kinformer.lab.environments.support.make_environment import make
from kinformer.lab.errors import FAILED, UserError, from_user
from kinformer.lab.plot import Plot, PlotLine
from kinformer.pages.animation import save_animation
from kinformer.pages.plots import save_plots

GIF, PNG, JSON = "play.gif", "returns.png", "returns.json"


@dataclass
class PlaySession:
    """Episodes that one call of `kinformer play` has played.

    spec: the environment, such as "CartPole-v1".
    episodes: the episodes by target return (the sum of rewards to aim at); the key is None without a target.
    """

    spec: str
    episodes: dict[float | None, list[PlayedEpisode]] = field(default_factory=dict)

    @property
    def ended_episodes(self) -> list[PlayedEpisode]:
        """Episodes that have ended, of all target returns."""
        return [episode for episodes in self.episodes.values() for episode in episodes]

    def line(self, target: float | None) -> str:
        """Return a summary of the episodes of one target return: achieved return, steps and success.

        target: the target return; None without a target.
        """
        episodes = self.episodes[target]
        returns = [episode.episode.total_return for episode in episodes]
        ask = "" if target is None else f"target return {target:g}: "
        spread = f" ± {stdev(returns):.4g}" if len(returns) > 1 else ""
        success = [episode.success for episode in episodes if episode.success is not None]
        success_text = f", success rate {mean(success):.3g}" if success else ""
        cut = sum(episode.cut for episode in episodes)
        limit = f"; the step limit ended {cut} of them" if cut else ""
        steps = mean(len(episode.episode.rewards) for episode in episodes)
        spread_of_returns = f"{mean(returns):.4g}{spread} ({min(returns):.4g} to {max(returns):.4g})"
        count = f"{len(episodes)} episode{'s' * (len(episodes) > 1)}"
        return f"{ask}mean return {spread_of_returns} in {count} of {steps:.4g} steps on average{success_text}{limit}"

    @property
    def means(self) -> dict[float, float]:
        """Mean achieved return of the episodes, by target return."""
        return {
            target: mean(episode.episode.total_return for episode in episodes)
            for target, episodes in self.episodes.items()
            if target is not None and episodes
        }

    def print_summary(self) -> None:
        """Print a summary for each target return, and for 3 or more their correlation with the mean return."""
        for target, episodes in self.episodes.items():
            if episodes:
                print(f"{self.spec}: {self.line(target)}")
        means = self.means
        if len(set(means.values())) > 1 and len(means) > 2:
            print(
                f"{self.spec}: the correlation of target and mean return is "
                f"{correlation(list(means), list(means.values())):.3f}"
            )

    def keep(self, out: Path | None, save: Path | None, pictures: bool = True) -> None:
        """Write the episodes, their returns and the pictures into files.

        out: new folder for returns.json, returns.png and play.gif; None writes none of them.
        save: file for the episodes, which --data offline=FILE can read; None writes no episodes.
        pictures: False leaves out the pictures, which take time.

        Without an ended episode no file is written. Errors: OSError.
        """
        if save is not None and self.ended_episodes:
            write_episodes(save, [episode.episode for episode in self.ended_episodes])
        if out is None or not self.ended_episodes:
            return
        out.mkdir(parents=True)
        by_number = attrgetter("number")
        numbers = [
            {
                "asked": target,
                "returns": {each.number: each.episode.total_return for each in sorted(played, key=by_number)},
            }
            for target, played in self.episodes.items()
        ]
        write(out / JSON, f"{json.dumps({'env': self.spec, 'played': numbers}, indent=2)}\n".encode())
        if not pictures:
            return
        if len(self.means) > 1:
            save_plots((_plot(self),), "", out / PNG, size=(6, 5))
        frames = next((episode.frames for episode in self.ended_episodes if episode.frames), ())
        if frames:
            print(f"drawing {out / GIF}", file=sys.stderr, flush=True)
            save_animation(frames, out / GIF)


def play_episodes(
    model: Player | None, settings: PlaySettings, targets: Sequence[float | None], out: Path | None, save: Path | None
) -> None:
    """Play episodes for each target return, print a summary, and write the files.

    model: the agent; None plays random actions.
    settings: the environment, the number of episodes and further settings.
    targets: the target returns; (None,) without a target.
    out: new folder for returns.json and pictures; none if None.
    save: file for the episodes; none if None.

    Errors: UserError, after the summary and the files, if the environment fails or Ctrl-C is pressed.
    """
    session, total = PlaySession(settings.spec), settings.episodes * len(targets)
    failed: BaseException | None = None
    total_steps = 0
    with print_warnings(), progress("playing", total, "episodes") as on_progress:

        def count_steps(steps: int) -> None:
            nonlocal total_steps
            total_steps += steps
            on_progress(len(session.ended_episodes), f"{total_steps:,} steps")

        try:
            for target in targets:
                episodes = session.episodes.setdefault(target, [])
                with_frames = out is not None and target == targets[0] and draws_pictures(settings.spec)
                for episode in roll_out(
                    model, settings._replace(target_return=target, render=with_frames), count_steps
                ):
                    episodes.append(episode)
        except (EnvironmentFailure, KeyboardInterrupt) as stop:
            failed = stop
        except (ValueError, ImportError) as error:
            raise UserError(str(error)) from error
    with from_user(OSError, code=FAILED):
        session.print_summary()
        session.keep(out, save, pictures=not isinstance(failed, KeyboardInterrupt))  # pictures take long
    if failed is not None:
        code, why = (ended_by(failed), "stopped") if isinstance(failed, KeyboardInterrupt) else (FAILED, str(failed))
        raise UserError(
            f"{why}; {len(session.ended_episodes):,} of {total:,} episodes had ended and are summarised", code
        ) from failed


def draws_pictures(spec: str) -> bool:
    """Return True if an environment can draw itself as pictures; warn if it cannot.

    spec: the environment.
    """
    env = make(spec)
    modes = env.metadata.get("render_modes", ())
    env.close()
    if "rgb_array" not in modes:
        warn(f"{spec} renders no pictures, so no animation is written")
    return "rgb_array" in modes


def _plot(session: PlaySession) -> Plot:
    """A plot of the return against the target return: every episode, and the means."""
    means = dict(sorted(session.means.items()))
    lines = [PlotLine([*means], [*means.values()], "mean of episodes", "o-", "tab:blue")]
    for target in means:
        returns = [rolled.episode.total_return for rolled in session.episodes[target]]
        lines.append(PlotLine([target] * len(returns), returns, "", "o", "tab:blue", 0.25))
    lines.append(PlotLine([*means], [*means], "return = target", "--", "tab:gray"))
    return Plot(session.spec, "target return", "return", lines)

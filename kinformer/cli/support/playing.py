"""Episodes that a model plays: told, kept, and drawn."""

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import correlation, mean, stdev

from kinformer.checkpoint.files import write
from kinformer.cli.errors import FAILED, UserError, ended_by, from_user, noted
from kinformer.cli.support.progress import progress
from kinformer.core.acting import Player
from kinformer.lab.data.support.episodes import write_episodes
from kinformer.lab.data.support.parallel_environments import EnvironmentFailure
from kinformer.lab.data.support.roll_out import PlayedEpisode, PlaySettings, roll_out
from kinformer.lab.plot import Plot, PlotLine
from kinformer.pages.animation import save_animation
from kinformer.pages.plots import save_plots

GIF, PNG, JSON = "play.gif", "returns.png", "returns.json"


@dataclass
class Played:
    """What was played so far, by the return that was asked for."""

    spec: str
    found: dict[float | None, list[PlayedEpisode]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many episodes have ended."""
        return sum(map(len, self.found.values()))

    def line(self, asked: float | None) -> str:
        """What the episodes of a return came to."""
        some = self.found[asked]
        returns = [one.episode.returned for one in some]
        ask = "" if asked is None else f"asked for {asked:g}, "
        spread = f" ± {stdev(returns):.4g}" if len(returns) > 1 else ""
        success = [one.success for one in some if one.success is not None]
        more = f", success {mean(success):.3g}" if success else ""
        cut = sum(one.cut for one in some)
        limit = f", {cut} of them cut off by a limit of steps" if cut else ""
        steps = mean(len(one.episode.rewards) for one in some)
        told = f"{mean(returns):.4g}{spread} from {min(returns):.4g} to {max(returns):.4g}"
        return f"{ask}returned {told} in {len(some)} episode{'s' * (len(some) > 1)} of {steps:.4g} steps{more}{limit}"

    @property
    def means(self) -> dict[float, float]:
        """The mean return by what was asked."""
        return {
            asked: mean(one.episode.returned for one in some)
            for asked, some in self.found.items()
            if asked is not None and some
        }

    def tell(self) -> None:
        """Print it."""
        for asked, some in self.found.items():
            if some:
                print(f"{self.spec}: {self.line(asked)}")
        means = self.means
        if len(set(means.values())) > 1 and len(means) > 2:
            print(f"{self.spec}: asked and achieved correlate by {correlation(list(means), list(means.values())):.3f}")

    def keep(self, out: Path | None, save: Path | None, pictures: bool = True) -> None:
        """Write what is wanted of it."""
        if save is not None and any(self.found.values()):
            write_episodes(save, [one.episode for some in self.found.values() for one in some])
        if out is None or not any(self.found.values()):
            return
        out.mkdir(parents=True)
        numbers = [
            {"asked": asked, "returns": {one.number: one.episode.returned for one in sorted(some, key=_number)}}
            for asked, some in self.found.items()
        ]
        write(out / JSON, f"{json.dumps({'env': self.spec, 'played': numbers}, indent=2)}\n".encode())
        if not pictures:
            return
        if len(self.means) > 1:
            save_plots((_plot(self),), "", out / PNG, size=(6, 5))
        frames = next((one.frames for some in self.found.values() for one in some if one.frames), ())
        if frames:
            print(f"drawing {out / GIF}", file=sys.stderr, flush=True)
            save_animation(frames, out / GIF)


def _number(one: PlayedEpisode) -> int:
    return one.number


def played(
    model: Player | None, way: PlaySettings, asked: Sequence[float | None], out: Path | None, save: Path | None
) -> None:
    """Play a way for each of these returns, tell it and keep it.

    UserError, after that, for an environment that failed and for Ctrl-C.
    """
    found, total = Played(way.spec), way.episodes * len(asked)
    failed: BaseException | None = None
    taken = 0
    with noted(), progress("playing", total, "episodes") as hear:

        def stepped(steps: int) -> None:
            nonlocal taken
            taken += steps
            hear(found.count, f"{taken:,} steps")

        try:
            for one in asked:
                some = found.found.setdefault(one, [])
                drawn = out is not None and one == asked[0] and draws(way.spec)
                for episode in roll_out(model, way._replace(target_return=one, render=drawn), stepped):
                    some.append(episode)
        except (EnvironmentFailure, KeyboardInterrupt) as stop:
            failed = stop
        except (ValueError, ImportError) as error:
            raise UserError(str(error)) from error
    with from_user(OSError, code=FAILED):
        found.tell()
        found.keep(out, save, pictures=not isinstance(failed, KeyboardInterrupt))  # which take their time
    if failed is not None:
        code, why = (ended_by(failed), "stopped") if isinstance(failed, KeyboardInterrupt) else (FAILED, str(failed))
        raise UserError(f"{why}; {found.count:,} of {total:,} episodes had ended, and are told", code) from failed


def draws(spec: str) -> bool:
    """Does an environment draw pictures? A warning where it does not."""
    from kinformer.lab.environments.support.make_environment import make

    env = make(spec)
    modes = env.metadata.get("render_modes", ())
    env.close()
    if "rgb_array" not in modes:
        warnings.warn(f"{spec} draws no pictures, so there is no animation", stacklevel=2)
    return "rgb_array" in modes


def _plot(found: Played) -> Plot:
    """The return that was asked for against the return that came: every episode, and their means."""
    means = dict(sorted(found.means.items()))
    lines = [PlotLine([*means], [*means.values()], "mean of episodes", "o-", "tab:blue")]
    for asked in means:
        returns = [roll_out.episode.returned for roll_out in found.found[asked]]
        lines.append(PlotLine([asked] * len(returns), returns, "", "o", "tab:blue", 0.25))
    lines.append(PlotLine([*means], [*means], "as asked", "--", "tab:gray"))
    return Plot(found.spec, "return asked for", "return that came", lines)

"""Episodes of a .npz or of Minari's files: observations, actions and rewards."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy import ndarray

from kinformer.checkpoint.atomic_files import write
from kinformer.lab.data.support.npz_arrays import read_arrays
from kinformer.lab.data.support.safe_scales import refuse_flattened

WANTED = ("obs", "actions", "rewards", "episode_starts")
MINARI, OF_MINARI = "main_data.hdf5", ("observations", "actions", "rewards")
EXTRA = (
    "data sets of Minari need the package h5py, which is not installed; run `pip install '.[rl]'` in kinformer's folder"
)


class Episode(NamedTuple):
    """The steps of one episode.

    states: observations [T S].
    actions: index of each action [T] if actions are discrete, else the values of each action [T A].
    rewards: rewards [T].
    """

    states: ndarray
    actions: ndarray
    rewards: ndarray

    @property
    def total_return(self) -> float:
        """Sum of the rewards."""
        return float(self.rewards.sum())


def episodes(path: Path) -> list[Episode]:
    """Read all episodes of a .npz, of a folder of .npz files in the order of their names, or of Minari.

    path: the file or folder.

    Errors: ImportError if Minari's files are read without the package h5py; ValueError, in one line, if the data has
    another form.
    """
    all_episodes = [
        episode for file in _files(path) for episode in (_of_minari(file) if file.suffix == ".hdf5" else _of_npz(file))
    ]
    forms = {
        (episode.states.shape[1:], episode.actions.shape[1:], episode.actions.dtype.kind) for episode in all_episodes
    }
    if len(forms) > 1:
        listed = "; ".join(sorted(f"observations {s}, actions {a or 'discrete'}" for s, a, _ in forms))
        raise ValueError(
            f"{path} has episodes of different environments: {listed}; put each environment in its own folder"
        )
    return all_episodes


def write_episodes(path: Path, played: list[Episode]) -> None:
    """Write episodes atomically as a .npz that `episodes` reads.

    path: the file.
    played: the episodes.

    Errors: OSError, in one clear line, if the file cannot be written.
    """
    starts = numpy.concatenate([numpy.arange(len(episode.rewards)) == 0 for episode in played])
    states, actions, rewards = (numpy.concatenate(parts) for parts in zip(*played, strict=True))
    whole = BytesIO()
    numpy.savez(whole, obs=states, actions=actions, rewards=rewards, episode_starts=starts)
    write(path, whole.getvalue())


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if minari := [file for file in (path / "data" / MINARI, path / MINARI) if file.is_file()]:
        return minari
    if archives := sorted(path.glob("*.npz")):
        return archives
    raise ValueError(f"{path} has no episodes: expected .npz files, or data/{MINARI} of Minari. Give another folder")


def _of_npz(path: Path) -> Iterator[Episode]:
    by_name = read_arrays(path)
    if missing := [name for name in WANTED if name not in by_name]:
        names = ", ".join(by_name) or "none"
        raise ValueError(
            f"{path} lacks arrays: got {names}, expected {', '.join(missing)} too, each flat over the steps of all "
            "episodes"
        )
    states, actions, rewards, starts = (by_name[name] for name in WANTED)
    sizes = {name: len(by_name[name]) if by_name[name].ndim else 0 for name in WANTED}
    if not any(sizes.values()):
        raise ValueError(f"{path} has no steps; give episodes of at least one step")
    if len(set(sizes.values())) > 1:
        raise ValueError(f"{path} has arrays of different lengths: got {sizes}, expected one entry per step in each")
    if starts.dtype != numpy.bool_ or starts.ndim != 1 or not starts[0]:
        raise ValueError(
            f"{path} has invalid episode_starts: expected booleans [N], True at the first step of each episode, also "
            "of the first one"
        )
    _refuse_changed(str(path), states, actions, rewards)
    cuts = numpy.flatnonzero(starts)[1:]
    pieces = zip(*(numpy.split(array, cuts) for array in (states, actions, rewards)), strict=True)
    for number, (s, a, r) in enumerate(pieces):
        yield _episode(f"episode {number:,} of {path}", s, a, r)


def _of_minari(path: Path) -> Iterator[Episode]:
    try:
        import h5py
    except ImportError as error:
        raise ImportError(EXTRA) from error
    try:
        with h5py.File(path) as file:
            names = sorted((name for name in file if name.startswith("episode_")), key=lambda name: int(name[8:]))
            groups = [(name, _plain_arrays(file[name])) for name in names]
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is not a file of Minari, or is damaged: {' '.join(str(error).split())}") from error
    for name, group in groups:
        if len(group) < len(OF_MINARI):
            raise ValueError(
                f"{name} of {path} is not flat: expected plain arrays {', '.join(OF_MINARI)}. Flatten spaces with "
                "several parts, and write the data set again"
            )
    every = [[group[name] for _, group in groups] for name in OF_MINARI]
    # episodes of different shapes are refused by `episodes`
    if all(len({part.shape[1:] for part in parts}) == 1 for parts in every):
        _refuse_changed(str(path), *map(numpy.concatenate, every))
    for name, group in groups:
        where, rewards = f"{name} of {path}", group["rewards"]
        # Minari stores one more observation, after the last action
        yield _episode(where, group["observations"][: len(rewards)], group["actions"], rewards)


def _refuse_changed(place: str, states: ndarray, actions: ndarray, rewards: ndarray) -> None:
    """Refuse numbers that float32 cannot tell apart, and discrete actions that are stored as floats."""
    kinds = actions.dtype.kind == "f" and actions.ndim == 1 and len(actions) > 0
    if kinds and bool(((actions >= 0) & (actions % 1 == 0)).all()):
        raise ValueError(
            f"{place} has actions {actions.dtype}[{len(actions):,}] that are all whole numbers; store discrete actions "
            "as int64, and actions of one value as [N, 1]"
        )
    for name, values in (("observations", states), ("actions", actions), ("rewards", rewards)):
        if values.ndim and len(values):
            refuse_flattened(place, name, values)


def _plain_arrays(group: Any) -> dict[str, ndarray]:
    """Return the parts of an episode that are single arrays and not groups."""
    return {name: group[name][()] for name in OF_MINARI if name in group and hasattr(group[name], "dtype")}


def _episode(where: str, states: ndarray, actions: ndarray, rewards: ndarray) -> Episode:
    """Return an episode of flat values in float32; raise ValueError if the arrays have another form."""
    for name, array in (("observations", states), ("actions", actions), ("rewards", rewards)):
        if array.dtype.kind not in "fiub" or len(array) != len(rewards) or not len(array):
            form = f"{array.dtype}{list(array.shape)}"
            raise ValueError(f"{where} has {name} {form} and {len(rewards)} rewards, expected numbers for each step")
    flat = states.reshape(len(states), -1).astype(numpy.float32)
    worth = rewards.reshape(len(rewards), -1).astype(numpy.float32)
    kinds = actions.dtype.kind in "iub"
    done = actions.reshape(len(actions), -1).astype(numpy.int64 if kinds else numpy.float32)
    if worth.shape[1] != 1 or (kinds and (done.shape[1] != 1 or done.min() < 0)):
        expected = "one number per reward, and one integer from 0 on or any floats per action"
        raise ValueError(f"{where} has actions {actions.dtype}{list(actions.shape)}, expected {expected}")
    for name, array in (("observations", flat), ("actions", done), ("rewards", worth)):
        if not numpy.isfinite(array).all():
            step = int(numpy.argwhere(~numpy.isfinite(array))[0][0])
            raise ValueError(f"{where} has {name} that are not finite at step {step:,}; remove the episode")
    if numpy.abs(numpy.cumsum(worth, dtype=numpy.float64)).max() > numpy.finfo(numpy.float32).max:
        raise ValueError(
            f"{where} has rewards with a sum that is too large for float32; divide all rewards by a constant"
        )
    return Episode(flat, done[:, 0] if kinds else done, worth[:, 0])

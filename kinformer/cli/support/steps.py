"""Steps in an environment as a page shows them: what it shows and takes, and how it looks after some of chance's."""

from collections.abc import Iterator
from typing import Any

SHOWN = 3
TEXT = "ansi"


def environment_lines(env: Any) -> Iterator[str]:
    """Its spaces, and the first steps of an episode that is the same each time, drawn where it draws text."""
    spaces = f"it shows {env.observation_space} and takes {env.action_space}"
    draws = TEXT in env.metadata.get("render_modes", ())
    yield f"{spaces}; steps of chance, each with what it earned" if draws else spaces
    if not draws:
        return
    env.unwrapped.render_mode = TEXT
    env.action_space.seed(0)
    env.reset(seed=0)
    yield ""
    yield from _drawn(env, "")
    for _ in range(SHOWN):
        action = env.action_space.sample()
        _, reward, over, cut, _ = env.step(action)
        yield ""
        yield from _drawn(env, f"   action {action}, reward {reward:g}")
        if over or cut:
            return


def _drawn(env: Any, behind: str) -> Iterator[str]:
    """What it draws, the first line with what is told of it."""
    for n, line in enumerate(str(env.render()).splitlines()):
        yield f"  {line}{behind if n == 0 else ''}"

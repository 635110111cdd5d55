"""From text to an environment: ours, a user's and Gymnasium's, and one clear line for what is none of them."""

import sys
from pathlib import Path

import pytest

from kinformer.lab.environments.support.make_environment import make

WRONG = {
    "t_maz": "there is no environment 't_maz'; the nearest is 't_maze'",
    "t_maze,coridor=3": "no keyword 'coridor'; the nearest is 'corridor'",
    "t_maze,corridor=x": "'corridor' of 'TMaze' must be int, got 'x'",
    "t_maze,corridor=0": "corridor=0: give a whole number of at least 1",
    "t_maze,corridor": "'corridor' is not a keyword; write name=value",
    "CartPol-v1": "the nearest is 'CartPole-v1'",
    "CartPole-v9": "there is no environment 'CartPole-v9'",
    "CartPole-v1,foo=2": "cannot be made: .*unexpected keyword argument 'foo'",
    "CartPole-v1,foo": "cannot read 'foo' for CartPole-v1",
    "Foo-v0": "there is no environment 'Foo-v0'; this package has key_to_door",  # Acrobot-v1 is not near
    "qqq": "this package has key_to_door, masked_cartpole, repeat_previous, t_maze",
    "a b": "there is no environment 'a b'",
    "none.py:Maze": "there is no file or folder none.py",
    "": "there is no environment ''",
}


@pytest.mark.parametrize("spec", WRONG)
def test_what_is_no_environment_is_said_in_one_line(spec: str) -> None:
    with pytest.raises(ValueError, match=WRONG[spec]) as caught:
        make(spec)
    assert "\n" not in str(caught.value)


def test_keywords_reach_the_environment() -> None:
    assert make("t_maze,corridor=7").corridor == 7
    assert make("CartPole-v1,sutton_barto_reward=true").unwrapped._sutton_barto_reward is True
    assert make("masked_cartpole,length=11").get_wrapper_attr("_max_episode_steps") == 11


def test_a_user_s_own_file_holds_environments(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from kinformer.lab.environments.t_maze import TMaze\n"
        "class Short(TMaze):\n"
        "    def __init__(self, corridor: int = 2, render_mode: str | None = None):\n"
        "        super().__init__(corridor, render_mode)\n"
    )
    assert make(f"{file}:Short").corridor == 2
    with pytest.raises(ValueError, match="has no environment 'Long'; the nearest is 'Short'|there are Short"):
        make(f"{file}:Long")


def test_an_environment_need_not_say_what_its_keywords_take(tmp_path: Path) -> None:
    """As the one of Gymnasium's own tutorial."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from kinformer.lab.environments.t_maze import TMaze\n"
        "class GridWorld(TMaze):\n"
        "    def __init__(self, render_mode=None, size=5):\n"
        "        super().__init__(size, render_mode)\n"
        "class Asking(TMaze):\n"
        "    def __init__(self, size):\n"
        "        super().__init__(size)\n"
    )
    assert make(f"{file}:GridWorld").corridor == 5 and make(f"{file}:GridWorld,size=7").corridor == 7
    assert make(f"{file}:GridWorld", render_mode="ansi").render_mode == "ansi"
    assert make(f"{file}:Asking,size=3").corridor == 3
    for words, message in (
        (
            "GridWorld,sise=3",
            "the environment GridWorld cannot be made: it has no keyword 'sise'; the nearest is 'size'",
        ),
        ("GridWorld,size=3,size=4", "cannot read 'size=4' for GridWorld: expected name=value, and each name once"),
        ("GridWorld,size=0", "corridor=0: give a whole number of at least 1"),
        ("Asking", "the environment Asking cannot be made: .*missing 1 required positional argument: 'size'"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            make(f"{file}:{words}")
        assert "\n" not in str(caught.value) and "member" not in str(caught.value)


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"pip install '.\[rl\]'"):
        make("t_maze")

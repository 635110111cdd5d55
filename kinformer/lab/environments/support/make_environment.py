"""From "t_maze,corridor=10" or "CartPole-v1", as it stands on a command line, to an environment."""

import ast
import inspect
import warnings
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import modules
from kinformer.core.keywords import parse_keywords, split
from kinformer.core.module_import import load_user_module

if TYPE_CHECKING:
    import gymnasium

EXTRA = "gymnasium is not installed, which environments are made with; pip install 'kinformer[rl]'"


def make(spec: str, seed: int | None = None, *, render_mode: str | None = None) -> "gymnasium.Env":
    """The environment of a spec: one of ours by its name, a user's FILE.py:Class, or any ID that Gymnasium knows.

    Keywords of classes without annotations, such as Gymnasium's own, are parsed by their form.

    Behind it stand its keywords: "t_maze,corridor=10", "CartPole-v1,sutton_barto_reward=true". With a seed it has been
    reset by it, so that all episodes that follow are the same for the same seed.

    Errors: ImportError without the package Gymnasium or what an ID wants, ValueError for a name, an ID or a keyword
    that is not there, with the nearest, and for what an environment refuses; one line each.
    """
    name, *words = split(spec)
    ours = _our_files()
    if render_mode is not None:
        words.append(f"render_mode={render_mode}")
    kind = _own_kind(name) if ".py:" in name else _last_kind(ours[name]) if name in ours else None
    env = _make_known(name, words, ours) if kind is None else _build(kind, words)
    if seed is not None:
        env.reset(seed=seed)
    return env


def environment_folder() -> str:
    """The folder of environments, or nothing where what they are made with is not installed."""
    return "environments" if find_spec("gymnasium") else ""


def refuse_without_gymnasium() -> None:
    """ImportError, in one line that says what to install, where the package is not there."""
    try:
        import gymnasium  # noqa: F401
    except ImportError as error:
        raise ImportError(EXTRA) from error


def _our_files() -> dict[str, ModuleType]:
    refuse_without_gymnasium()
    return modules("environments")


def _build(kind: type, words: Sequence[str]) -> "gymnasium.Env":
    try:
        return kind(**(parse_keywords(kind, words) if _has_annotations(kind) else _by_value(kind, words)))
    except TypeError as error:
        raise ValueError(f"the environment {kind.__name__} cannot be made: {_line(error)}") from error


def _has_annotations(kind: type) -> bool:
    """True if all keywords of a class have annotations."""
    return all(parameter.annotation is not parameter.empty for parameter in inspect.signature(kind).parameters.values())


def _by_value(kind: type, words: Sequence[str]) -> dict[str, Any]:
    """Parse the keywords of a class without annotations, each by its form."""
    parameters = inspect.signature(kind).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    keywords = _parse_words(kind.__name__, words)
    for name in keywords:
        if name not in parameters and not takes_any:
            raise TypeError(f"it has no keyword {name!r}{suggest_names(name, parameters)}")
    return keywords


def _parse_words(name: str, words: Iterable[str]) -> dict[str, Any]:
    """Parse words such as size=5 as keywords; ValueError for another form or a repeated keyword."""
    keywords: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or key in keywords:
            raise ValueError(f"cannot read {word!r} for {name}: expected name=value, and each name once")
        keywords[key] = _value(value)
    return keywords


def _last_kind(module: ModuleType) -> type:
    """The environment of a file: its last class that is no helper."""
    return _kinds(module, module.__name__)[-1]


def _kinds(module: ModuleType, home: str) -> list[type]:
    import gymnasium

    inside = [value for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_")]
    return [
        value for value in inside if issubclass(value, gymnasium.Env | gymnasium.Wrapper) and value.__module__ == home
    ]


def _own_kind(where: str) -> type:
    path, name = where.rsplit(":", 1)
    try:
        module = load_user_module(path)
    except (LookupError, ImportError) as error:
        raise ValueError(str(error)) from error
    kinds = {kind.__name__: kind for kind in _kinds(module, module.__name__)}
    if name not in kinds:
        raise ValueError(f"{path} has no environment {name!r}{suggest_names(name, kinds)}")
    return kinds[name]


def _make_known(name: str, words: Iterable[str], ours: Iterable[str]) -> "gymnasium.Env":
    """One that Gymnasium makes."""
    import gymnasium

    keywords = _parse_words(name, words)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is a later version, which was not asked for
            return gymnasium.make(name, **keywords)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"{name}: {_line(error)}") from error
    except gymnasium.error.NameNotFound as error:
        suggestion = suggest_names(name, [*ours, *gymnasium.registry], f"; ours are {', '.join(ours)}")
        raise ValueError(f"there is no environment {name!r}{suggestion}, and Gymnasium has others") from error
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(f"there is no environment {name!r}: {_line(error)}") from error
    except Exception as error:  # whatever its constructor raises
        raise ValueError(f"the environment {name!r} cannot be made: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _value(text: str) -> Any:
    """A keyword's value: a number, a tuple, true, false, none, or the text itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text

"""make: build an environment from a specification such as "t_maze,corridor=10" or "CartPole-v1"."""

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

EXTRA = (
    "environments need the package gymnasium, which is not installed; run `pip install '.[rl]'` in kinformer's folder"
)


def make(spec: str, seed: int | None = None, *, render_mode: str | None = None) -> "gymnasium.Env":
    """Make an environment of this package, of a user's file, or of Gymnasium.

    Keywords follow the name: "t_maze,corridor=10", "CartPole-v1,sutton_barto_reward=true". If a class has
    no type annotations, such as Gymnasium's own, keywords become numbers, tuples, booleans, None or texts by their
    form.

    spec: the name of an environment of this package, FILE.py:Class, or an ID of Gymnasium, with its keywords.
    seed: seed of a reset of the new environment; all later episodes follow from it. None does not reset.
    render_mode: form of its images, as in Gymnasium; None does not render.

    Errors: ImportError if the package gymnasium or a package that an ID needs is not installed. ValueError for an
    unknown name, ID or keyword, with the nearest one, and if the environment refuses its keywords. Each message is one
    line.
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
    """Return "environments", the folder of this package's environments; "" if gymnasium is missing."""
    return "environments" if find_spec("gymnasium") else ""


def refuse_without_gymnasium() -> None:
    """Raise ImportError, with the command that installs it, if gymnasium is not installed."""
    try:
        import gymnasium  # noqa: F401
    except ImportError as error:
        raise ImportError(EXTRA) from error


def _our_files() -> dict[str, ModuleType]:
    """Return the files of environments of this package and its plugins, by name."""
    refuse_without_gymnasium()
    return modules("environments")


def _build(kind: type, words: Sequence[str]) -> "gymnasium.Env":
    """Make an environment of a class with keywords such as size=5."""
    try:
        return kind(**(parse_keywords(kind, words) if _has_annotations(kind) else _by_value(kind, words)))
    except TypeError as error:
        raise ValueError(f"the environment {kind.__name__} cannot be made: {_line(error)}") from error


def _has_annotations(kind: type) -> bool:
    """Return whether all keywords of a class have annotations."""
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
    """Return the environment of a file: its last public class of an environment."""
    return _kinds(module, module.__name__)[-1]


def _kinds(module: ModuleType, home: str) -> list[type]:
    """Return the public environments that a module defines itself."""
    import gymnasium

    inside = [value for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_")]
    return [
        value for value in inside if issubclass(value, gymnasium.Env | gymnasium.Wrapper) and value.__module__ == home
    ]


def _own_kind(where: str) -> type:
    """Return the class that FILE.py:Class names."""
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
    """Make an environment that is registered in Gymnasium."""
    import gymnasium

    keywords = _parse_words(name, words)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of a later version, which the user did not ask for
            return gymnasium.make(name, **keywords)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"{name}: {_line(error)}") from error
    except gymnasium.error.NameNotFound as error:
        suggestion = suggest_names(name, [*ours, *gymnasium.registry], f"; this package has {', '.join(ours)}")
        raise ValueError(f"there is no environment {name!r}{suggestion}, and Gymnasium has others") from error
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(f"there is no environment {name!r}: {_line(error)}") from error
    except Exception as error:  # its constructor may raise any error
        raise ValueError(f"the environment {name!r} cannot be made: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _value(text: str) -> Any:
    """Return the value of a keyword: a number, a tuple, True, False, None, or the text itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text

"""A user's own file of parts: what its EXAMPLES are, and one clear line where they are not as they should be."""

import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kinformer.cli.errors import UserError, from_user
from kinformer.cli.parts import counted, named
from kinformer.core.aggregation import Aggregation
from kinformer.core.bias import Bias
from kinformer.core.block import Block
from kinformer.core.feature_map import FeatureMap
from kinformer.core.layer import Layer
from kinformer.core.mechanism import Mechanism
from kinformer.core.memory import Memory
from kinformer.core.pattern import Pattern
from kinformer.core.position import Position
from kinformer.core.projection import Projection
from kinformer.discover import Origin, Record, own_module
from kinformer.keywords import nearest
from kinformer.positions.rotary import Rotary

LAWS = {path.stem for path in (Path(__file__).parents[1] / "laws").glob("*.py")}
# what an example is, the folder of its kind, and its word; the first that fits
KINDS: tuple[tuple[type | tuple[type, ...], str, str], ...] = (
    (Pattern, "patterns", "pattern"),
    (Bias, "biases", "bias"),
    (Mechanism, "mechanisms", "mechanism"),
    (Memory, "memories", "memory"),
    (Projection, "projections", "projection"),
    ((Position, Rotary), "positions", "position"),
    (FeatureMap, "maps", "feature map"),
    (Aggregation, "aggregations", "aggregation"),
    (Block, "blocks", "block"),
    (Layer, "depth", "layer"),
)


@dataclass(frozen=True, eq=False)
class Example:
    """One of EXAMPLES: `value` as it stands there, `made` what it is or builds."""

    label: str
    title: str
    kind: str
    word: str
    value: Any
    made: Any


@dataclass(frozen=True, eq=False)
class Own:
    """A file: its examples, and which laws it says that it breaks, with the reasons."""

    path: Path
    module: ModuleType
    examples: tuple[Example, ...]
    breaks: Mapping[str, str]


def read(text: str) -> Own:
    """The examples of "mine.py", or those of one part or member of it: "mine.py:Name"."""
    before, colon, name = text.rpartition(".py:")
    path = Path(f"{before}.py" if colon else text).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix != ".py"):
        raise UserError(f"{path} is no Python file; give one, like mine.py")
    module = _run(path)
    found = tuple(_examples(path, module))
    if colon:
        found = _named(name, found, path)
    return Own(path, module, found, _breaks(path, module))


def told(error: BaseException, path: Path) -> str:
    """An error in one line, with the line of the user's file that it came from, where it came from there."""
    text = " ".join(str(error).split())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if _same(frame.filename, path)]
    if isinstance(error, SyntaxError) and _same(error.filename or "", path):
        text, lines = error.msg, [error.lineno]
    at = f"line {lines[-1]} of {path.name}: " if lines else ""
    return f"{at}{type(error).__name__}: {text}" if text else f"{at}{type(error).__name__}"


def _same(filename: str, path: Path) -> bool:
    return filename == str(path.resolve())


def _run(path: Path) -> ModuleType:
    with from_user(LookupError):
        try:
            return own_module(str(path))
        except ImportError as error:
            why = error.__cause__ or error
            raise UserError(f"{path} cannot be imported: {told(why, path)}{_beside(why, path)}") from error
        except SystemExit as error:
            raise UserError(f"{path} leaves Python while it is imported; put such code under __name__") from error


def _beside(error: BaseException, path: Path) -> str:
    """Advice where what is missing lies in the same folder."""
    folder, name = path.resolve().parent, error.name if isinstance(error, ModuleNotFoundError) else None
    there = name is not None and any((folder / end).exists() for end in (name, f"{name}.py"))
    return f"; it lies beside the file, so run with PYTHONPATH={folder}" if there else ""


def _examples(path: Path, module: ModuleType) -> Iterable[Example]:
    given = getattr(module, "EXAMPLES", None)
    if given is None:
        raise UserError(f"{path} has no EXAMPLES; end it with {_advice(module)}")
    if not isinstance(given, tuple | list) or not given:
        text = "empty" if isinstance(given, tuple | list) else counted(type(given).__name__)
        raise UserError(f"EXAMPLES of {path} is {text}, and must be a tuple; write {_advice(module)}, with the comma")
    for n, value in enumerate(given):
        yield _example(path, f"EXAMPLES[{n}]", value)


def _example(path: Path, label: str, value: Any) -> Example:
    if inspect.isclass(value):
        raise UserError(f"{label} of {path} is the class {value.__name__}; write {_written(value)}")
    if isinstance(value, Pattern):
        return Example(label, type(value).__name__, "patterns", "pattern", value, value)
    if _kind(value) is not None:
        made = type(value).__name__
        raise UserError(f"{label} of {path} is {counted(made)} that is already made; write lambda: {made}(...)")
    if not callable(value):
        raise UserError(
            f"{label} of {path} is {counted(type(value).__name__)}, which is neither a pattern nor a function"
        )
    made = _made(path, label, value)
    kind = _kind(made)
    if kind is None:
        words = ", ".join(word for _, _, word in KINDS)
        raise UserError(f"{label} of {path} makes {counted(type(made).__name__)}, which is none of {words} or member")
    if isinstance(made, Pattern):
        raise UserError(f"{label} of {path} is a function that makes a pattern; give the pattern itself: {made!r}")
    title = made.member.name if isinstance(getattr(made, "member", None), Record) else type(made).__name__
    return Example(label, title, *kind, value, made)


def _made(path: Path, label: str, value: Callable[[], Any]) -> Any:
    try:
        return value()
    except Exception as error:
        raise UserError(f"{label} of {path} cannot be built: {told(error, path)}") from error


def _kind(made: Any) -> tuple[str, str] | None:
    """The folder and the word of what an example is."""
    if isinstance(getattr(made, "member", None), Record):
        return "members", "member"
    if hasattr(made, "logits") and not inspect.isclass(made):
        return "models", "model"
    return next(((kind, word) for types, kind, word in KINDS if isinstance(made, types)), None)


def _written(one: Any) -> str:
    """How an example of a class or member is written."""
    pattern = inspect.isclass(one) and issubclass(one, Pattern)
    return f"{one.__name__}(...)" if pattern else f"lambda: {one.__name__}(...)"


def _advice(module: ModuleType) -> str:
    types = tuple(one for kinds, _, _ in KINDS for one in (kinds if isinstance(kinds, tuple) else (kinds,)))
    for _, one in reversed(named(module)):
        if isinstance(getattr(one, "origin", None), Origin) or (inspect.isclass(one) and issubclass(one, types)):
            return f"EXAMPLES = ({_written(one)},)"
    return "EXAMPLES = (MyPattern(...),) for a pattern, EXAMPLES = (lambda: MyPart(...),) for anything else"


def _named(name: str, found: tuple[Example, ...], path: Path) -> tuple[Example, ...]:
    mine = tuple(one for one in found if one.title == name)
    if not mine:
        raise UserError(f"no example of {path} is a {name!r}{nearest(name, [one.title for one in found])}")
    return mine


def _breaks(path: Path, module: ModuleType) -> Mapping[str, str]:
    found = getattr(module, "BREAKS", {})
    if not isinstance(found, dict) or not all(isinstance(one, str) for pair in found.items() for one in pair):
        raise UserError(
            f'BREAKS of {path} must be a dict of law and reason, like {{"chunk": "it sorts the whole row"}}'
        )
    for law in found:
        if law not in LAWS:
            raise UserError(f"BREAKS of {path} names {law!r}, which is no law{nearest(law, LAWS)}")
    return found

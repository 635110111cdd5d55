"""The only registry: what lies in a folder is what exists, and the signature of a member function is its config.

Choose `modules` and `examples` to go over every part, `member` to declare a named system, `find_member` and
`parse_keywords` to get from text to a model. Nothing is cached here, and nothing here imports torch.
"""

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union

KINDS = (
    "patterns",
    "biases",
    "positions",
    "projections",
    "mechanisms",
    "maps",
    "memories",
    "aggregations",
    "feedforward",
    "norms",
    "blocks",
    "depth",
    "losses",
    "models",
    "members",
)

P = ParamSpec("P")
M = TypeVar("M")
_SCALARS: tuple[Any, ...] = (int, float, bool, str, types.NoneType)
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


# What a folder holds -------------------------------------------------------------------------------------------------


def _plugins(kind: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=f"kinformer.{kind}"))


def _import(name: str, load: Callable[[], object]) -> types.ModuleType:
    try:
        module = load()
    except Exception as error:
        raise ImportError(f"{name} failed to import: {type(error).__name__}: {error}") from error
    if not isinstance(module, types.ModuleType):
        raise ImportError(f"the plugin {name} must name a module, and names a {type(module).__name__}")
    return module


def modules(kind: str) -> dict[str, types.ModuleType]:
    """Every module of one kind by name: the files of the folder `kinformer/<kind>`, then plugins, each sorted.

    A plugin is an entry point of the group `kinformer.<kind>` whose value is a module. Raises LookupError for an
    unknown kind, and ImportError naming the module where one fails to import or where two have one name.
    """
    folder = Path(__file__).parent / kind
    if kind not in KINDS and not folder.is_dir():
        raise LookupError(f"there is no kind {kind!r}{nearest(kind, KINDS)}")
    names = sorted(info.name for info in pkgutil.iter_modules([str(folder)]) if not info.name.startswith("_"))
    found = {}
    for name in names:
        full = f"kinformer.{kind}.{name}"
        found[name] = _import(full, functools.partial(importlib.import_module, full))
    for point in sorted(_plugins(kind), key=lambda point: point.name):
        if point.name in found:
            raise ImportError(f"the plugin {point.value} is called {point.name!r}, and {kind} has one of that name")
        found[point.name] = _import(point.value, point.load)
    return found


def examples(kind: str) -> Iterator[tuple[str, Any]]:
    """Each entry of EXAMPLES of each module of a kind, with the module's name (which repeats where it has several)."""
    for name, module in modules(kind).items():
        for example in getattr(module, "EXAMPLES", ()):
            yield name, example


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error's sentence: the nearest of the names there are, or all of them where none is near."""
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; the nearest is {close[0]!r}"
    return f"; there are {', '.join(names)}" if names else "; there are none"


# Keywords: the signature is the config -------------------------------------------------------------------------------


def _options(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; of anything else, itself."""
    union = typing.get_origin(annotation) in (Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def _known(annotation: Any) -> bool:
    if annotation in _SCALARS or typing.get_origin(annotation) is Literal:
        return True
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return len(arguments) == 2 and arguments[1] is Ellipsis and all(_flat(a) for a in _options(arguments[0]))
    options = _options(annotation)
    return len(options) > 1 and all(_known(option) for option in options)


def _flat(annotation: Any) -> bool:
    return typing.get_origin(annotation) is not tuple and _known(annotation)


def _fits(value: Any, annotation: Any) -> bool:
    if typing.get_origin(annotation) is Literal:
        return any(type(value) is type(option) and value == option for option in typing.get_args(annotation))
    if typing.get_origin(annotation) is tuple:
        return isinstance(value, tuple) and all(_fits(item, typing.get_args(annotation)[0]) for item in value)
    if len(_options(annotation)) > 1:
        return any(_fits(value, option) for option in _options(annotation))
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, annotation) and (annotation is bool or not isinstance(value, bool))


def describe(annotation: Any) -> str:
    """An annotation as a reader would write it: `int | None`, `"a" | "b"`, `tuple[int, ...]`."""
    if typing.get_origin(annotation) is Literal:
        return " | ".join(repr(option) for option in typing.get_args(annotation))
    if len(_options(annotation)) > 1:
        return " | ".join(describe(option) for option in _options(annotation))
    if annotation is types.NoneType:
        return "None"
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a member function, its annotations evaluated; TypeError where it cannot be a config."""
    try:
        found = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise TypeError(f"an annotation of the member {_name(function)!r} cannot be read: {error}") from error
    for name, parameter in found.parameters.items():
        place = f"the keyword {name!r} of the member {_name(function)!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{place} must be named: *args, **kwargs and positional-only ones say nothing of a config")
        if parameter.default is parameter.empty:
            raise TypeError(f"{place} has no default; every keyword of a member needs one")
        if not _known(parameter.annotation):
            wanted = "int, float, bool, str, Literal, tuple[T, ...], X | None, or a union of these"
            came = "no annotation" if parameter.annotation is parameter.empty else describe(parameter.annotation)
            raise TypeError(f"{place} has {came}; it must have {wanted}")
        if not _fits(parameter.default, parameter.annotation):
            raise TypeError(f"{place} is {describe(parameter.annotation)}, and its default is {parameter.default!r}")
    return found


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


def check_keywords(function: Callable[..., Any], keywords: Mapping[str, Any]) -> None:
    """TypeError, in one line, where a keyword is not in the signature or its value is not of its annotation."""
    parameters = signature(function).parameters
    for name, value in keywords.items():
        if name not in parameters:
            raise TypeError(f"the member {_name(function)!r} has no keyword {name!r}{nearest(name, parameters)}")
        if not _fits(value, parameters[name].annotation):
            wanted = describe(parameters[name].annotation)
            raise TypeError(f"the keyword {name!r} of {_name(function)!r} is {wanted}, and {value!r} came")


def split(text: str, at: str = ",") -> list[str]:
    """The pieces of a text between separators that stand outside brackets: "f(1, 2), 3" is "f(1, 2)" and "3"."""
    pieces, deep, start = [], 0, 0
    for place, letter in enumerate(text):
        deep += (letter in "([{") - (letter in ")]}")
        if letter == at and deep == 0:
            pieces.append(text[start:place])
            start = place + 1
    return [piece.strip() for piece in (*pieces, text[start:])]


def _tuple(text: str, annotation: Any) -> tuple[Any, ...]:
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    pieces = split(inner)
    pieces = pieces[:-1] if pieces[-1] == "" else pieces
    return tuple(_convert(piece, typing.get_args(annotation)[0]) for piece in pieces)


def _single(text: str, annotation: Any) -> Any:
    """A text as one plain annotation; ValueError or KeyError where it is none."""
    if annotation is types.NoneType:
        return {"none": None}[text.lower()]
    if annotation is bool:
        return _WORDS[text.lower()]
    if typing.get_origin(annotation) is Literal:
        return {str(option): option for option in typing.get_args(annotation)}[text]
    if typing.get_origin(annotation) is tuple:
        return _tuple(text, annotation)
    return annotation(text)


def _convert(text: str, annotation: Any) -> Any:
    """A text as the first option of the annotation that takes it: None, bool, int, float, Literal, tuple, str.

    A tuple goes before str only where the text has a comma outside brackets: "Band(4, 4)" stays one pattern.
    """
    order = [types.NoneType, bool, int, float, Literal, tuple, str]
    if len(split(text)) == 1 and not text.startswith("("):
        order = [types.NoneType, bool, int, float, Literal, str, tuple]
    options = sorted(_options(annotation), key=lambda option: order.index(typing.get_origin(option) or option))
    for option in options:
        try:
            return _single(text, option)
        except (ValueError, KeyError):
            continue
    raise ValueError(text)


def parse_keywords(function: Callable[..., Any], texts: Iterable[str]) -> dict[str, Any]:
    """The keywords that texts like "window=128" give a member, each converted by its annotation.

    A bool is true, yes, on, false, no or off; a tuple is 1,2,3 (brackets may stand around it); None is none. TypeError,
    in one line, for an unknown name (with the nearest), a text that its annotation does not take, a name given twice.
    """
    parameters = signature(function).parameters
    keywords: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (piece.strip() for piece in text.partition("="))
        if not equals or not name:
            raise TypeError(f"{text!r} is no keyword; write name=value")
        if name not in parameters:
            raise TypeError(f"the member {_name(function)!r} has no keyword {name!r}{nearest(name, parameters)}")
        if name in keywords:
            raise TypeError(f"the keyword {name!r} is given twice")
        try:
            keywords[name] = _convert(value, parameters[name].annotation)
        except ValueError:
            wanted = describe(parameters[name].annotation)
            raise TypeError(f"the keyword {name!r} of {_name(function)!r} is {wanted}, and {value!r} came") from None
    return keywords


# Members -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """What a model remembers of its member: the name, every keyword with its value, and where a user's own file is."""

    name: str
    keywords: dict[str, Any]
    file: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Origin:
    """Where a member function was written: nothing for the library's own and for plugins, else a file and SHA-256."""

    file: str | None = None
    sha256: str | None = None


def _origin(function: Callable[..., Any]) -> Origin:
    home = function.__module__
    if home.startswith("kinformer.members.") or any(point.value == home for point in _plugins("members")):
        return Origin()
    file = Path(inspect.unwrap(function).__code__.co_filename)
    return Origin(str(file), hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None)


def member(function: Callable[P, M]) -> Callable[P, M]:
    """Declare a member: a function whose signature is its config and which returns a model.

    Choose it for every named system, the library's or your own. Keywords are int, float, bool, str, Literal,
    tuple[T, ...], X | None and unions of these, all with defaults: checked here. A call checks names and values
    (TypeError), and leaves on the model a `Record` named `member`: the name and every keyword with its value.
    """
    found = signature(function)
    origin = _origin(function)

    @functools.wraps(function)
    def build(*args: P.args, **keywords: P.kwargs) -> M:
        if len(args) > len(found.parameters):
            raise TypeError(f"{_name(function)!r} has {len(found.parameters)} keywords, and {len(args)} values came")
        given = dict(zip(found.parameters, args, strict=False))
        twice = [name for name in keywords if name in given]
        if twice:
            raise TypeError(f"the keyword {twice[0]!r} is given twice")
        given |= keywords
        check_keywords(function, given)
        resolved = {name: parameter.default for name, parameter in found.parameters.items()} | given
        model = function(**resolved)  # type: ignore[call-arg]
        model.member = Record(_name(function), resolved, origin.file, origin.sha256)  # type: ignore[attr-defined]
        return model

    build.origin = origin  # type: ignore[attr-defined]
    return build


def members() -> dict[str, Callable[..., Any]]:
    """Every member function of the folder and of plugins, by name."""
    return {name: function for module in modules("members").values() for name, function in _declared(module).items()}


def _declared(module: types.ModuleType) -> dict[str, Callable[..., Any]]:
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    return {name: value for name, value in own.items() if isinstance(getattr(value, "origin", None), Origin)}


def find_member(name: str) -> Callable[..., Any]:
    """The member of a name, or of a user's own "path/file.py:function"; LookupError names the nearest.

    A file is run to find its function, so give only files that you would run; its path and SHA-256 are remembered.
    """
    if ".py:" in name:
        return _own_member(*name.rsplit(":", 1))
    found = members()
    if name not in found:
        raise LookupError(f"there is no member {name!r}{nearest(name, found)}")
    return found[name]


def _own_member(path: str, name: str) -> Callable[..., Any]:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise LookupError(f"there is no file {path} to take the member {name!r} from")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    full = f"kinformer_own_{digest[:16]}_{file.stem}"
    spec = importlib.util.spec_from_file_location(full, file)
    if spec is None or spec.loader is None:
        raise LookupError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    _import(path, lambda: spec.loader.exec_module(module) or module)  # type: ignore[union-attr]
    found = _declared(module)
    if name not in found and callable(getattr(module, name, None)):
        raise LookupError(f"{name!r} in {path} is not a member; put @member (from kinformer import member) above it")
    if name not in found:
        raise LookupError(f"{path} has no member {name!r}{nearest(name, found)}")
    return found[name]

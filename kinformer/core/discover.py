"""The registry of parts (files in folders) and of members (functions that make named models).

The signature of a member function is its config. Choose `kinds`, `modules` and `examples` to visit every part, `member`
to declare a named system, and `find_member` with `parse_keywords` to get from text to a model. Folders are listed at
every call. The marks of files and the list of plugins are read once per process. This module does not import torch.
"""

import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from kinformer.core.change import Change
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.example import Example
from kinformer.core.keyword_conditions import Needs, allow_unused_keywords, by_keyword, check_used
from kinformer.core.keywords import check_cost, check_keywords, name_of, signature
from kinformer.core.module_import import PACKAGE, dotted_name, import_or_explain, load_user_module
from kinformer.core.quote import LONGEST, quote, shorten
from kinformer.core.warn import warn

if TYPE_CHECKING:
    from kinformer.core.training_recipe import Recipe

# folders that contain folders of parts; a kind may have a folder in several
STOREYS = ("core", "attend", "nn", "lab", "laws")
OWN_STOREYS = ("members", "models", "laws", "convert")  # kinds with a folder at the top level
UNJUDGED = ("exits", "losses", "scalings", "search", "convert")  # kinds without EXAMPLES, with tests of their own
JUDGED = rb"^EXAMPLES\b"
PART = rb"^(EXAMPLES\b|OVER\b|@(kf\.)?member\b)"  # the start of a line that marks a file as a part
CLASS = re.compile(r"^class ([A-Z]\w*)\((?!NamedTuple|Protocol|Enum|torch\.autograd\.Function)", re.M)
ALL = re.compile(r"^__all__ = \[(.*?)\]", re.M | re.S)
MEMBER = re.compile(r"^@(?:kf\.)?member\b.*\n(?:[^\n]+\n)*?def (\w+)", re.M)
DEEPEST = 2_000  # the largest depth of a model that is built within seconds
P = ParamSpec("P")
M = TypeVar("M")


# Parts in folders ----------------------------------------------------------------------------------------------------


def kinds() -> tuple[str, ...]:
    """Return the name of every kind of part, such as "biases".

    A kind is a folder that contains a file with EXAMPLES, or a group of plugins without a folder.
    """
    folders = [path for storey in STOREYS for path in (PACKAGE / storey).iterdir() if path.is_dir()]
    folders += [PACKAGE / kind for kind in OWN_STOREYS]
    parts = {path.name for path in folders if any(_has_mark(JUDGED, file) for file in path.glob("*.py"))}
    return tuple(sorted(parts.union(set(_plugin_kinds()).difference(path.name for path in folders))))


def _folders(kind: str) -> list[Path]:
    """Return the folders of a kind; none if the name is not a kind's, such as a storey's name."""
    homes = [PACKAGE / storey for storey in STOREYS if kind.isidentifier() and len(kind) < LONGEST] + [PACKAGE] * (
        kind in OWN_STOREYS
    )
    return [home / kind for home in homes if (home / kind).is_dir()]


@functools.cache  # a command asks for the files of a kind dozens of times
def _has_mark(mark: bytes, file: Path) -> bool:
    return re.search(mark, file.read_bytes(), re.M) is not None


@functools.cache  # reading the entry points of every installed package takes a fifth of the time of `advise`
def installed_plugins() -> tuple[EntryPoint, ...]:
    """Return the entry points of all installed packages in the groups `kinformer.<kind>`, for plugins."""
    points = entry_points()
    groups = [group for group in points.groups if group.startswith("kinformer.")]
    return tuple(point for group in groups for point in points.select(group=group))


def _plugins(kind: str) -> list[EntryPoint]:
    return [point for point in installed_plugins() if point.group == f"kinformer.{kind}"]


def _plugin_kinds() -> list[str]:
    return sorted({point.group.removeprefix("kinformer.") for point in installed_plugins()})


def modules(kind: str) -> dict[str, types.ModuleType]:
    """Return every module of a kind by name: files of its folders, then plugins, each sorted.

    A plugin is an entry point of the group `kinformer.<kind>` that names a module. A plugin that cannot be imported, or
    has the name of a file, is left out with a warning of one line. The folder `support` holds helpers and no parts.

    kind: the name of the kind.

    Errors: LookupError if the kind is unknown; ImportError if a file of the library fails to import.
    """
    names = part_files(kind)
    if not names and not _plugins(kind):
        raise LookupError(f"there is no kind {quote(kind)}{suggest_names(kind, kinds())}")
    loaded = {name: import_part_file(file) for name, file in names.items()}
    return loaded | load_plugins(kind, loaded)


def import_part_file(file: Path) -> types.ModuleType:
    """Import the file of a part.

    file: a file that `part_files` names; ImportError if it fails to import.
    """
    full = dotted_name(file)
    return import_or_explain(full, functools.partial(importlib.import_module, full))


def part_files(kind: str) -> dict[str, Path]:
    """Return the files of a kind's folders by module name, sorted; nothing is imported.

    Files of parts have EXAMPLES, members have `@member`, and laws (tested properties) have OVER. If a folder contains
    such files, its other files are shared helpers and are left out.

    kind: the name of the kind.
    """
    files: dict[str, Path] = {}
    for folder in _folders(kind):
        folder_files = list(folder.glob("[!_]*.py"))
        files |= {file.stem: file for file in [file for file in folder_files if _has_mark(PART, file)] or folder_files}
    return dict(sorted(files.items()))


def load_plugins(kind: str, reserved: Iterable[str] = ()) -> dict[str, types.ModuleType]:
    """Import the plugins of a kind and return them by name, sorted.

    A plugin that cannot be imported, or has a taken name, is left out with a warning.

    kind: the name of the kind.
    reserved: names that are taken.
    """
    loaded: dict[str, types.ModuleType] = {}
    for point in sorted(_plugins(kind), key=lambda point: point.name):
        try:
            if point.name in (*reserved, *loaded):
                raise ImportError(f"{point.value} has the name {point.name!r}, which another part of {kind} has")
            loaded[point.name] = import_or_explain(point.value, point.load)
        except ImportError as error:
            warn(f"a plugin of {kind} is left out: {error}")
    return loaded


def has_plugins(kind: str) -> bool:
    """Return True if installed packages declare plugins of a kind, as entry points.

    The names of their parts are known only after an import.

    kind: the name of the kind.
    """
    return bool(_plugins(kind))


def examples(kind: str) -> Iterator[tuple[str, Example]]:
    """Yield each example part in the lists EXAMPLES of all modules of a kind, with the module's name.

    The name is repeated if a module has several examples.

    kind: the name of the kind.
    """
    for name, module in modules(kind).items():
        for entry in getattr(module, "EXAMPLES", ()):
            yield name, Example.from_entry(entry)


def part_names() -> dict[str, str]:
    """Return the name of the module that defines each public part and member, by the part's name.

    Files are searched as text and not imported. A file's `__all__` lists its public classes. Without `__all__`, the
    file of a part provides every class with a base except named tuples, protocols, enums and autograd functions. Other
    files in a folder of parts provide none.
    """
    return {
        name: dotted_name(file).removeprefix("kinformer.")
        for kind in (*kinds(), *UNJUDGED)
        for folder in _folders(kind)
        for file in sorted(folder.glob("[!_]*.py"))
        for name in _names_of_file(file, kind)
    }


def _names_of_file(file: Path, kind: str) -> list[str]:
    text = file.read_text("utf-8")
    if kind == "members":
        return MEMBER.findall(text)
    if listed := ALL.search(text):
        return re.findall(r"\w+", listed[1])
    return CLASS.findall(text) if kind in UNJUDGED or _has_mark(JUDGED, file) else []


def plugin_names() -> dict[str, Any]:
    """Return the parts and members of installed plugins by name.

    Plugins are imported; a plugin that fails gives a warning.
    """
    names: dict[str, Any] = {}
    for kind in _plugin_kinds():
        for module in load_plugins(kind, part_files(kind)).values():
            own = {name: value for name, value in vars(module).items() if _is_public_part(name, value, module)}
            listed = getattr(module, "__all__", None)
            names |= own if listed is None else {name: getattr(module, name) for name in listed}
    return names


def _is_public_part(name: str, value: Any, module: types.ModuleType) -> bool:
    if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
        return False
    is_part = inspect.isclass(value) and any(base.__module__.startswith("kinformer.core.") for base in value.__mro__)
    return is_part or isinstance(getattr(value, "origin", None), Origin)


# Members -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemberRecord:
    """The record of the member (named system) that made a model, with the values of its keywords.

    name: the name of the member.
    keywords: every keyword with its value.
    file, sha256: path and SHA-256 of the file of a user's own member; None for other members.
    recipe: the member's training recipe, or None.
    defaults: the defaults of the keywords.
    changes: conversions that have changed the model's layers since, in order.
    """

    name: str
    keywords: dict[str, Any]
    file: str | None = None
    sha256: str | None = None
    recipe: "Recipe | None" = None
    defaults: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Origin:
    """The origin of a member function: the user's file that defines it, if any.

    file, sha256: path and SHA-256 of the file; None for members of the library and of plugins.
    """

    file: str | None = None
    sha256: str | None = None


def _origin(function: Callable[..., Any]) -> Origin:
    home = function.__module__
    plugins = {".".join(filter(None, (point.module, point.attr))) for point in _plugins("members")}
    if home.startswith("kinformer.members.") or home in plugins:
        return Origin()
    file = Path(inspect.unwrap(function).__code__.co_filename)
    return Origin(str(file), hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None)


@overload
def member(function: Callable[P, M]) -> Callable[P, M]: ...


@overload
def member(
    *, recipe: "Recipe | None" = None, needs: Needs | None = None, cost: str | None = None
) -> Callable[[Callable[P, M]], Callable[P, M]]: ...


def member(
    function: Callable[..., Any] | None = None,
    *,
    recipe: "Recipe | None" = None,
    needs: Needs | None = None,
    cost: str | None = None,
) -> Callable[..., Any]:
    """Declare a member: a function that returns a model and whose signature is its config.

    Choose it for every named system, the library's or your own: `@member`, or `@member(recipe=Recipe(lr=5e-4,
    warmup=0.2))` if its training needs other settings than most. All keywords need defaults. Their types are int,
    float, bool, str, Literal, tuple[T, ...], X | None and unions of these, which is checked here. A call checks names
    and values, and sets the attribute `member` of the model to a `MemberRecord`: the name and every keyword with its
    value.

    function: the function, if the decorator is used without parentheses.
    recipe: the training recipe of the member; None for the default.
    needs: the condition of each keyword that has an effect only with certain values of other keywords, such as
        {"length": "position=learned"} (`kinformer.core.keyword_conditions`). A call that passes a keyword without
        effect raises a ValueError. `function.rebuild(**keywords)` takes a complete record of keywords and refuses none
        of them.
    cost: the order of cost of a forward pass, such as "L * window" (`core.keywords.check_cost`); None if unknown.

    Errors: TypeError if the signature cannot be a config, if `cost` is no expression in its keywords, or if a call
    passes an unknown keyword or a wrong value.
    """
    if function is None:
        return functools.partial(_member, recipe=recipe, needs=needs, cost=cost)
    return _member(function, recipe, needs, cost)


def _member(
    function: Callable[..., Any], recipe: "Recipe | None" = None, needs: Needs | None = None, cost: str | None = None
) -> Callable[..., Any]:
    config = signature(function)
    origin = _origin(function)
    conditions = by_keyword(needs or {}, config.parameters)

    @functools.wraps(function)
    def build(*args: Any, **keywords: Any) -> Any:
        if len(args) > len(config.parameters):
            raise TypeError(
                f"{name_of(function)!r} got {len(args)} positional arguments, expected at most {len(config.parameters)}"
            )
        passed = dict(zip(config.parameters, args, strict=False))
        twice = [name for name in keywords if name in passed]
        if twice:
            raise TypeError(f"the keyword {twice[0]!r} is given twice")
        passed |= keywords
        check_keywords(function, passed)
        check_used(conditions, passed, defaults | passed)
        return construct(passed)

    def rebuild(**keywords: Any) -> Any:
        """Build the model of recorded keywords, including keywords without effect."""
        check_keywords(function, keywords)
        with allow_unused_keywords():
            return construct(keywords)

    def construct(keywords: dict[str, Any]) -> Any:
        if isinstance(depth := keywords.get("depth"), int) and depth > DEEPEST:
            raise ValueError(f"depth={depth}: building so many layers would never finish; give at most {DEEPEST:,}")
        resolved = defaults | keywords
        model = function(**resolved)
        model.member = MemberRecord(name_of(function), resolved, origin.file, origin.sha256, recipe, defaults)
        return model

    defaults = {name: parameter.default for name, parameter in config.parameters.items()}
    build.origin, build.needs, build.rebuild = origin, conditions, rebuild  # type: ignore[attr-defined]
    build.cost = None if cost is None else check_cost(cost, config.parameters)  # type: ignore[attr-defined]
    return build


def members() -> dict[str, Callable[..., Any]]:
    """Return every member function of the library and of plugins, by name."""
    return {
        name: function for module in modules("members").values() for name, function in _declared_members(module).items()
    }


def _declared_members(module: types.ModuleType) -> dict[str, Callable[..., Any]]:
    defined = {
        name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    }
    return {name: value for name, value in defined.items() if isinstance(getattr(value, "origin", None), Origin)}


def find_member(name: str) -> Callable[..., Any]:
    """Return the member (function that makes a named model) of a name or of "path/file.py:function".

    The second form names a function in a user's own file. The file is executed to find it, so pass only files that you
    would run. The path and the SHA-256 of the file are recorded.

    name: the name, or path and function.

    Errors: LookupError, with the nearest name, if there is no such member.
    """
    if ".py:" in name:
        return _find_user_member(*name.rsplit(":", 1))
    functions = members()
    check_member_name(name, functions)
    return functions[name]


def check_member_name(name: str, names: Iterable[str]) -> None:
    """Raise LookupError, with the nearest name, if no member (named system) has this name.

    name: the name to check.
    names: the names of the members.
    """
    if name not in (names := tuple(names)):
        if re.fullmatch(r"\w+=.*", name):
            advice = f"write it in brackets, such as 'gpt({shorten(name, 40)})'"
            raise LookupError(f"{quote(name)} is a keyword and no member; {advice}")
        near = suggest_names(name, names, "; `kinformer list members` lists them all")
        raise LookupError(f"there is no member {quote(name)}{near}")


def _find_user_member(path: str, name: str) -> Callable[..., Any]:
    module = load_user_module(path)
    declared = _declared_members(module)
    if name not in declared and callable(getattr(module, name, None)):
        raise LookupError(
            f"{quote(name)} in {path} is not a member; put @member (from kinformer import member) above it"
        )
    if name not in declared:
        raise LookupError(f"{path} has no member {quote(name)}{suggest_names(name, declared)}")
    return declared[name]

"""Every part is reached from the command line: by some member with some keywords, or by what is read with it."""

import ast
import inspect
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest
from torch import Tensor, nn

import kinformer
from kinformer.core.discover import examples, members, modules
from kinformer.core.keywords import parse_keywords
from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse

FOLDERS = (
    "patterns",
    "biases",
    "scores",
    "projections",
    "positions",
    "mechanisms",
    "maps",
    "shorteners",
    "memories",
    "aggregations",
    "feedforward",
    "mixers",
    "norms",
    "blocks",
    "depth",
    "exits",
    "losses",
)
COMMANDED = ("cli", "convert", "lab/train", "lab/datastore", "decoding")  # what commands use beside members
USERS = (*COMMANDED, "members", "models", "lab/data", "core", "nn/depth", "nn/mechanisms", "nn/losses", "nn/patterns")
# parts that no example of a member has, each with a command that reaches it
COMMANDS = {
    "AutoEncoding": "compressive_transformer loss=autoencoding",
    "ByStream": "etc projections=own",
    "ByTokens": "compressive_transformer count=tokens",
    "CAMTL": "camtl form=pairs",
    "Chunked": "reformer ff_chunk=8",
    "Contrastive": "etc contrast=0.2",
    "ConvShortener": "linformer projection=convolution",
    "Decayed": "linear_transformer update=decayed",
    "DilatedConv": "compressive_transformer compression=dilated",
    "FourPieces": "etc projections=four",
    "HighwayGate": "gtrxl gate=highway",
    "InputGate": "gtrxl gate=input",
    "MaxPool": "compressive_transformer compression=max",
    "MaxPooled": "linformer projection=max",
    "MeanPool": "compressive_transformer compression=mean",
    "MeanWindows": "poolingformer pool=mean",
    "MostUsed": "compressive_transformer compression=most_used",
    "NormedKeys": "gtrxl normed=keys",
    "OutputGate": "gtrxl gate=output",
    "MeanPooled": "linformer projection=mean",
    "PublishedLSH": "reformer chunk=8",
    "PublishedNystrom": "nystromformer form=published",
    "PublishedRouting": "routing_transformer window=8",
    "PublishedStarRound": "star_classifier form=published",
    "PublishedStarRounds": "star_classifier form=published",
    "Saturation": "calm confidence=saturation",
    "SigTanhGate": "gtrxl gate=sigtanh",
    "StepMasking": "adaptive_span spans=Step(4,8,16,32)",
    "Trigonometric": "performer kernel=trigonometric",
}
REASONS = {
    "ChunkScore": "PublishedLSH makes it as it reads",
    "Marked": "whoever calls a model from Python marks the tokens of a batch, such as a question's; no data here does",
    "MarkedKeys": "a half of Marked",
    "PairMask": "whoever calls a layer from Python gives a mask; no member has one",
    "Since": "whoever calls a model from Python says where an episode begins; data here has one in a row",
    "TailKeys": "a half of Tail",
}


def parts() -> Iterator[tuple[str, Any]]:
    """Classes of the folders that can be made, and files that have none."""
    for folder in FOLDERS:
        for name, module in modules(folder).items():
            own = [
                value for value in vars(module).values() if _own(value, module) and not value.__name__.startswith("_")
            ]
            parts_here = [(value.__name__, value) for value in own if isinstance(value, type) and _is_part(value)]
            yield from parts_here or [(name, module)]


def _own(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", "") == module.__name__


def _is_part(kind: type) -> bool:
    return issubclass(kind, nn.Module | Pattern) and not inspect.isabstract(kind)


def reached(name: str, value: Any) -> bool:
    if isinstance(value, ModuleType):
        return any(module == value.__name__ for _, module in imported(*USERS))
    if value in in_examples() or name in COMMANDS:
        return True
    users = COMMANDED if issubclass(value, nn.Module) else USERS
    return spelled(value) or (name, value.__module__) in imported(*users)


def spelled(kind: Any) -> bool:
    """Is it a pattern that a text says, as the keyword pattern= of a member takes it?"""
    examples = [example for example in getattr(inspect.getmodule(kind), "EXAMPLES", ()) if type(example) is kind]
    return any(not pattern.tensors() and parse(repr(pattern)) == pattern for pattern in examples)


@cache
def in_examples() -> set[Any]:
    """What the models are made of that members have as examples."""
    return {kind for _, example in examples("members") for kind in kinds(example.make())}


def kinds(model: nn.Module) -> set[Any]:
    """The classes and functions of all that a model holds."""
    kinds_used, visited, waiting = set[Any](), set[int](), list[Any]([model])
    while waiting:
        item = waiting.pop()
        if id(item) in visited or isinstance(item, Tensor | str | int | float):
            continue
        visited.add(id(item))
        waiting += list(_inside(item))
        kinds_used |= {*type(item).__mro__, item} if isinstance(item, FunctionType | type) else {*type(item).__mro__}
    return kinds_used


def _inside(item: Any) -> Iterator[Any]:
    if isinstance(item, dict):
        yield from item.values()
    elif isinstance(item, list | tuple | set | frozenset):
        yield from item
    elif isinstance(item, partial):
        yield from (item.func, item.args, item.keywords)
    elif isinstance(item, MethodType):
        yield item.__self__
    elif isinstance(item, FunctionType):
        yield from (cell.cell_contents for cell in item.__closure__ or ())
    elif not isinstance(item, type) and type(item).__module__.startswith(("kinformer", "torch.nn")):
        yield getattr(item, "__dict__", {})


@cache
def imported(*folders: str) -> set[tuple[str, str]]:
    """What the files of folders import, as names with their modules."""
    root = Path(inspect.getfile(kinformer)).parent
    files = [file for folder in folders for file in (root / folder).rglob("*.py")]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    lines = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {(alias.name, node.module or "") for node in lines for alias in node.names}


def test_every_part_is_reached() -> None:
    missing = {name for name, kind in parts() if not reached(name, kind)}
    unreached, stale = sorted(missing - set(REASONS)), sorted(set(REASONS) - missing)
    assert not unreached, f"no keyword of a member reaches {unreached}. Add a value to a keyword, or a member"
    assert not stale, f"members reach {stale} now. Remove them from REASONS"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_reaches_a_part(name: str) -> None:
    member, *texts = COMMANDS[name].split()
    function = members()[member]
    model = function(**parse_keywords(function, texts))
    assert name in {kind.__name__ for kind in kinds(model)}

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
from kinformer.core.discover import examples, members, modules, parse_keywords
from kinformer.core.expression import parse
from kinformer.core.pattern import Pattern

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
COMMANDED = ("cli", "lab/train", "lab/datastore", "decoding")  # what commands use beside members
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
    "Since": "whoever calls a model from Python says where an episode begins; data here has one in a row",
    "TailKeys": "a half of Tail",
}


def parts() -> Iterator[tuple[str, Any]]:
    """Classes of the folders that can be made, and files that have none."""
    for folder in FOLDERS:
        for name, module in modules(folder).items():
            own = [one for one in vars(module).values() if _own(one, module) and not one.__name__.startswith("_")]
            made = [(one.__name__, one) for one in own if isinstance(one, type) and _is_part(one)]
            yield from made or [(name, module)]


def _own(one: Any, module: ModuleType) -> bool:
    return getattr(one, "__module__", "") == module.__name__


def _is_part(kind: type) -> bool:
    return issubclass(kind, nn.Module | Pattern) and not inspect.isabstract(kind)


def reached(name: str, one: Any) -> bool:
    if isinstance(one, ModuleType):
        return any(module == one.__name__ for _, module in imported(*USERS))
    if one in in_examples() or name in COMMANDS:
        return True
    users = COMMANDED if issubclass(one, nn.Module) else USERS
    return spelled(one) or (name, one.__module__) in imported(*users)


def spelled(kind: Any) -> bool:
    """Is it a pattern that a text says, as the keyword pattern= of a member takes it?"""
    found = [example for example in getattr(inspect.getmodule(kind), "EXAMPLES", ()) if type(example) is kind]
    return any(not one.tensors() and parse(repr(one)) == one for one in found)


@cache
def in_examples() -> set[Any]:
    """What the models are made of that members have as examples."""
    return {kind for _, example in examples("members") for kind in kinds(example.make())}


def kinds(model: nn.Module) -> set[Any]:
    """The classes and functions of all that a model holds."""
    found, seen, waiting = set[Any](), set[int](), list[Any]([model])
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, Tensor | str | int | float):
            continue
        seen.add(id(one))
        waiting += list(_inside(one))
        found |= {*type(one).__mro__, one} if isinstance(one, FunctionType | type) else {*type(one).__mro__}
    return found


def _inside(one: Any) -> Iterator[Any]:
    if isinstance(one, dict):
        yield from one.values()
    elif isinstance(one, list | tuple | set | frozenset):
        yield from one
    elif isinstance(one, partial):
        yield from (one.func, one.args, one.keywords)
    elif isinstance(one, MethodType):
        yield one.__self__
    elif isinstance(one, FunctionType):
        yield from (cell.cell_contents for cell in one.__closure__ or ())
    elif not isinstance(one, type) and type(one).__module__.startswith(("kinformer", "torch.nn")):
        yield getattr(one, "__dict__", {})


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
    assert missing == set(REASONS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_reaches_a_part(name: str) -> None:
    member, *texts = COMMANDS[name].split()
    function = members()[member]
    model = function(**parse_keywords(function, texts))
    assert name in {kind.__name__ for kind in kinds(model)}

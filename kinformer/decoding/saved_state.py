"""Files of a decoding state: safetensors with a JSON header that describes tensors and model.

Nothing is unpickled. Loading puts the tensors into a new decoding state of the model, so a file cannot bring objects of
another structure. Only the model that wrote a file can load it; a fingerprint (hash) of its weights and keywords is
compared.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor, nn

from kinformer import __version__
from kinformer.checkpoint.atomic_files import contents as read_file
from kinformer.checkpoint.atomic_files import write
from kinformer.core.eval_mode import evaluating
from kinformer.core.from_json import from_json
from kinformer.core.layer import State
from kinformer.core.missing_path import missing_path
from kinformer.core.state import UncastState
from kinformer.decoding.prefill import PrefilledText, make_reader

EDITION = 1  # version of the file format
HEADER = "kinformer.state"


class StateError(ValueError):
    """Error of a file without a valid decoding state for this model; the message is one line."""


def save_reading(reading: PrefilledText, model: nn.Module, path: Path) -> None:
    """Write a prefilled text (decoding state, last token and length) to a file, atomically.

    reading: result of `prefill`.
    model: model that read the text.
    path: file to write.

    Errors: OSError if the file cannot be written.
    """
    tree, numbers, tensors = {}, dict[int, str](), dict[str, Tensor]()
    for place, leaf in _leaves(reading.state):
        name = numbers.setdefault(id(leaf), str(len(numbers)))  # shared tensors are written once
        tensors[name] = leaf.detach().cpu().contiguous()
        tree[place] = name
    header = {
        "edition": EDITION,
        "kinformer": __version__,
        "model": fingerprint(model),
        "tokens": reading.tokens,
        "last": int(reading.last),
        "tree": tree,
    }
    header["sum"] = _sum(header, tensors)
    write(path, format_tensors(tensors, {HEADER: json.dumps(header)}))


def load_reading(path: Path, model: Any) -> PrefilledText:
    """Return the prefilled text from a file that `save_reading` wrote with the same model.

    path: file to read.
    model: model that wrote the file.

    Errors: FileNotFoundError for a missing file; StateError for a truncated or foreign file, or another model.
    """
    if not path.is_file():
        raise FileNotFoundError(missing_path(path, "`kinformer read` writes one"))
    data = read_file(path)
    try:
        tensors = parse_tensors(data)
        header = from_json(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {}).get(HEADER, "{}")
        description = from_json(header)
    except (SafetensorError, KeyError, ValueError, AttributeError) as error:
        raise StateError(f"{path} is truncated or not a state file: {error}") from error
    _check(description, tensors, path)
    if description["model"] != fingerprint(model):
        raise StateError(
            f"{path} is the state of another model: weights or keywords differ; read the text again with this model"
        )
    device = next(model.parameters()).device
    on_device = {name: tensor.to(device) for name, tensor in tensors.items()}
    with evaluating(model):
        like = make_reader(model).start(1, 1)
    try:
        leaves = {place: on_device[name] for place, name in description["tree"].items()}
        state = _refill(like, leaves)
        if leaves:
            raise KeyError(min(leaves))
    except KeyError as error:
        raise StateError(f"{path} was written by another version: its entry {error} does not fit this model") from error
    return PrefilledText(state, torch.tensor([[description["last"]]], device=device), description["tokens"])


def fingerprint(model: Any) -> str:
    """Return the SHA-256 of a model's member, keywords, changes and weights, which identifies the model.

    Keywords with their default values are left out, so that a keyword that a later version adds changes nothing.

    model: model to identify.
    """
    record = getattr(model, "member", None)
    named: list[Any] = [type(model).__name__]
    if record is not None:
        keywords = {name: value for name, value in record.keywords.items() if value != record.defaults.get(name)}
        named = [record.name, keywords, *record.changes]
    digest = hashlib.sha256(json.dumps(named, sort_keys=True, default=str).encode())
    _add(digest, model.state_dict())
    return digest.hexdigest()


def _check(header: Any, tensors: dict[str, Tensor], path: Path) -> None:
    """Raise StateError for a file without a header, of another edition, or with a wrong checksum."""
    form = {"edition": int, "model": str, "tokens": int, "last": int, "tree": dict, "sum": str}
    if not isinstance(header, dict) or any(not isinstance(header.get(name), kind) for name, kind in form.items()):
        raise StateError(f"{path} is not a state file: kinformer did not write it")
    if header["edition"] != EDITION:
        raise StateError(
            f"{path} has edition {header['edition']} of the state format, but this kinformer reads edition "
            f"{EDITION}; read the text again"
        )
    if header["sum"] != _sum(header, tensors):
        raise StateError(f"{path} is damaged: its checksum does not match; read the text again")


def _sum(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """Return the SHA-256 of a header, without its own sum, and of the tensors."""
    content = {name: value for name, value in header.items() if name != "sum"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    _add(digest, tensors)
    return digest.hexdigest()


def _add(digest: Any, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # a slice of one number is contiguous whatever its stride, and only a stride of 1 can be read as bytes
        plain = tensor.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
        digest.update(plain.view(torch.uint8).numpy().tobytes())


def _leaves(state: State, place: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a state with its path in the tree."""
    if isinstance(state, Tensor):
        yield place, state
    else:
        for name, part in _parts(state).items():
            yield from _leaves(part, f"{place}/{name}")


def _parts(state: State) -> dict[str, State]:
    if isinstance(state, UncastState):
        return {"inside": state.inside}
    if isinstance(state, dict):
        return state
    return {str(n): part for n, part in enumerate(state)}


def _refill(like: State, leaves: dict[str, Tensor], place: str = "") -> State:
    """Return a state of the same structure with the given tensors, which are removed from `leaves`.

    A dict in the file may have entries that the fresh state lacks.
    """
    if isinstance(like, Tensor):
        leaf = leaves.pop(place)
        if (leaf.dtype, leaf.dim()) != (like.dtype, like.dim()):
            raise KeyError(place)
        return leaf
    if isinstance(like, dict):
        ahead = f"{place}/"
        names = [key.removeprefix(ahead) for key in leaves if key.startswith(ahead)]
        return {
            name: _refill(like[name], leaves, ahead + name) if name in like else leaves.pop(ahead + name)
            for name in names
        }
    parts = {name: _refill(part, leaves, f"{place}/{name}") for name, part in _parts(like).items()}
    if isinstance(like, UncastState):
        return UncastState(parts["inside"])
    return type(like)(*parts.values()) if hasattr(like, "_fields") else type(like)(parts.values())

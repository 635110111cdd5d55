"""The weights file of a checkpoint: a safetensors file that holds a hash of its own content."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor, nn

from kinformer.checkpoint.model_files import CONFIG, CheckpointError, contents
from kinformer.checkpoint.upgrade import upgrade_tensors
from kinformer.core.from_json import from_json

DIGEST = "sha256"  # metadata key of the hash, in the same file as the weights so that a kill cannot separate them
ITS_CONFIG = "kinformer_config"  # metadata key of the config, as JSON, that the weights for transformers belong to


def format_weights(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file with sorted metadata, so that equal weights give equal bytes.

    The metadata includes a hash of the whole file, so that `read_tensors` detects damage. The safetensors library
    itself writes metadata in an order that changes with each process.

    tensors: tensors by name.
    metadata: texts by name.
    """
    header, numbers = _split_file(format_tensors(dict(tensors)))
    digest = _digest({"__metadata__": dict(metadata), **header}, numbers)
    header = {"__metadata__": dict(sorted({**metadata, DIGEST: digest}.items())), **header}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensor data must start at a multiple of eight
    return b"".join((len(text).to_bytes(8, "little"), text, numbers))


def _split_file(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """Return the header of a safetensors file and the bytes of its numbers."""
    size = int.from_bytes(data[:8], "little")
    return from_json(data[8 : 8 + size]), memoryview(data)[8 + size :]


def _digest(header: Mapping[str, Any], numbers: memoryview) -> str:
    """Return a hash of a file's content, without the hash itself."""
    metadata = {name: text for name, text in header.get("__metadata__", {}).items() if name != DIGEST}
    sha256 = hashlib.sha256(json.dumps({**header, "__metadata__": metadata}, sort_keys=True).encode())
    sha256.update(numbers)
    return sha256.hexdigest()


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter and persistent buffer once, with its first name.

    A compiled model has the names of the model itself.

    Sharded tensors (distributed over processes) are gathered one after the other, so all processes must call this
    function.

    model: model to read.
    """
    written: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in written:
            written.add(id(tensor))
            whole = tensor.full_tensor() if is_sharded(tensor) else tensor
            yield name.replace("_orig_mod.", ""), whole.detach().cpu().contiguous()


def is_sharded(tensor: Tensor) -> bool:
    """Return True for a tensor (DTensor) that is distributed over processes.

    tensor: tensor to check.
    """
    return hasattr(tensor, "full_tensor")


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file.

    The hash of the content is checked. A file without such a hash, from an earlier version or other software, is
    accepted.

    path: file to read.

    Errors: CheckpointError for a file that is no safetensors file, or damaged.
    """
    data = contents(path)
    try:
        tensors = parse_tensors(data)
    except (SafetensorError, KeyError) as error:
        raise CheckpointError(f"{path} is truncated or not a safetensors file: {error}") from error
    header, numbers = _split_file(data)
    metadata = header.get("__metadata__", {})
    if DIGEST in metadata and metadata[DIGEST] != _digest(header, numbers):
        raise CheckpointError(
            f"{path} is damaged: its hash is wrong. Restore a copy of the file. If it was changed on purpose, write it "
            f"without {DIGEST!r} in its metadata"
        )
    return tensors, {name: text for name, text in metadata.items() if name != DIGEST}


def load_tensors(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy saved tensors into a model.

    The model's tensors stay on their devices, and shared tensors stay shared. Each tensor gets the dtype of the saved
    one.

    model: model to change.
    tensors: saved tensors by name.
    path: file of the tensors, for messages.

    Errors: CheckpointError, in one line, for tensors that are missing, unexpected or of another shape.
    """
    tensors, every = upgrade_tensors(model, tensors), model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(every.items())}
    unique_tensors = {name: tensor for name, tensor in every.items() if first[id(tensor)] == name}
    missing = [name for name in unique_tensors if name not in tensors]
    unexpected = [name for name in tensors if name not in unique_tensors]
    shapes = [
        f"{name} is {tuple(tensors[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in unique_tensors.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    for fault, names in (("lacks", missing), ("has the unexpected", unexpected), ("has wrong shapes:", shapes)):
        if names:
            names.sort()
            rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(
                f"{path} {fault} {', '.join(names[:3])}{rest}; it belongs to another model than {CONFIG}"
            )
    for name, tensor in unique_tensors.items():
        tensor.data = tensors[name].to(tensor.device)
    model.load_state_dict(model.state_dict())  # runs the load hooks of parts that cache a value of their weights

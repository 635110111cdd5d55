"""Sharded: weights, gradients and the optimiser's numbers spread over processes (FSDP2), and their files.

The files are safetensors, written and read by torch.distributed.checkpoint: each process writes what it holds, and any
number of processes, or one, reads of them what it is to hold. Nothing is pickled.
"""

import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from kinformer.checkpoint.checkpoint import CheckpointError, is_sharded
from kinformer.core.model import Model
from kinformer.core.residual_block import ResidualBlock
from kinformer.lab.train.activation_checkpointing import blocks


def shard(model: Model) -> None:
    """Spread a model's weights in place: each block that shares none is gathered by itself, the rest together."""
    for block in own_blocks(model):
        fully_shard(block)
        if isinstance(block, ResidualBlock):
            register_fsdp_forward_method(block, "read_apart")
    # or after a measurement, which no backward follows, the model would go on without its shares
    fully_shard(model, reshard_after_forward=True)
    register_fsdp_forward_method(model, "judge")


def own_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that are computed as one, and whose parameters stand nowhere else."""
    holders = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    of = {block: Counter(id(p) for _, p in block.named_parameters(remove_duplicate=False)) for block in blocks(model)}
    return [
        block
        for block, counts in of.items()
        if counts and all(holders[number] == count for number, count in counts.items())
    ]


def write_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write what each process holds of these tensors; OSError, in one line, where one of them cannot."""
    try:
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise OSError(f"cannot write {folder}: {_first_message(error)}; what was saved before is kept") from error


def read_shards(folder: Path, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `write_shards` wrote, under its names KIND/PARAMETER/KEY; spread as the parameter is now, or whole.

    Errors: CheckpointError, in one line, for files that are not whole.
    """
    try:
        metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        tensors = {
            n: _empty_like_saved(n, saved, parameters)
            for n, saved in metadata.items()
            if isinstance(saved, TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            whole = not any(map(is_sharded, parameters.values()))
            load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=whole)
    except (CheckpointException, Exception) as error:
        raise CheckpointError(f"{folder} cannot be read: {_first_message(error)}") from error
    return tensors


def _empty_like_saved(name: str, saved: TensorStorageMetadata, parameters: Mapping[str, Tensor]) -> Tensor:
    """Room for a tensor that was saved of a parameter."""
    like, size, dtype = parameters.get(name.partition("/")[2].rpartition("/")[0]), saved.size, saved.properties.dtype
    return torch.empty(size, dtype=dtype) if like is None or like.shape != size else torch.empty_like(like, dtype=dtype)


def _first_message(error: BaseException) -> str:
    """What the first process that failed says, in one line."""
    failures = getattr(error, "failures", {})
    message = next((failure[0] for failure in failures.values()), error)
    return " ".join(str(message).split())

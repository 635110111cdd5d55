"""Sharding of weights, gradients and optimiser state over processes (FSDP2), and their files.

The files are safetensors, written and read by torch.distributed.checkpoint. Each process writes its shards, and any
number of processes, or one, reads the shards that it needs. Nothing is pickled.
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

from kinformer.checkpoint.model_files import CheckpointError
from kinformer.checkpoint.weights_file import is_sharded
from kinformer.core.model import Model
from kinformer.core.residual_block import ResidualBlock
from kinformer.lab.train.activation_checkpointing import blocks


def shard(model: Model) -> None:
    """Shard a model in place: each process keeps a part of every weight.

    The weights of a block are gathered when it runs. Blocks that share weights with other parts are gathered with the
    rest of the model.

    model: the model.
    """
    for block in own_blocks(model):
        fully_shard(block)
        if isinstance(block, ResidualBlock):
            register_fsdp_forward_method(block, "read_apart")
    # otherwise the model stays unsharded after an evaluation, which has no backward pass
    fully_shard(model, reshard_after_forward=True)
    register_fsdp_forward_method(model, "judge")


def own_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the outermost blocks that share no parameter with the rest of the model.

    model: the model.
    """
    holders = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    of = {block: Counter(id(p) for _, p in block.named_parameters(remove_duplicate=False)) for block in blocks(model)}
    return [
        block
        for block, counts in of.items()
        if counts and all(holders[number] == count for number, count in counts.items())
    ]


def write_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write this process's shards of the tensors into a folder; every process calls it.

    folder: the folder.
    tensors: the sharded tensors.

    Errors: OSError, in one line, if a process cannot write.
    """
    try:
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise OSError(f"cannot write {folder}: {_first_message(error)}; the previous save is kept") from error


def read_shards(folder: Path, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read the tensors that `write_shards` wrote, each sharded like the parameter in its name.

    A name is KIND/PARAMETER/KEY, such as "optimiser/head.weight/exp_avg".

    folder: the folder.
    parameters: the parameters of the model by name.

    Errors: CheckpointError, in one line, if the files are incomplete.
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
    """Return an empty tensor for a saved tensor of a parameter."""
    like, size, dtype = parameters.get(name.partition("/")[2].rpartition("/")[0]), saved.size, saved.properties.dtype
    return torch.empty(size, dtype=dtype) if like is None or like.shape != size else torch.empty_like(like, dtype=dtype)


def _first_message(error: BaseException) -> str:
    """Return the error of the first process that failed, as one line."""
    failures = getattr(error, "failures", {})
    message = next((failure[0] for failure in failures.values()), error)
    return " ".join(str(message).split())

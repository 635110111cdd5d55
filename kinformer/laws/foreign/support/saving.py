"""Saving and loading of a model of any library, and the weights that share memory."""

import io
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from kinformer.laws.foreign.support.black_box import BlackBox, one_line
from kinformer.laws.support.findings import Broken


def save_and_load(box: BlackBox) -> nn.Module:
    """Return the model of a black box after saving and loading.

    box: the model. A model of transformers is saved as a folder. For any other module, a fresh module loads the
        `state_dict`.

    Errors: Broken if the model cannot be saved or loaded.
    """
    try:
        with warnings.catch_warnings(), quiet_transformers():
            warnings.simplefilter("ignore")
            loaded = _through_a_folder(box) if hasattr(box.model, "save_pretrained") else _through_numbers(box)
    except Exception as error:
        raise Broken(f"the model cannot be saved and loaded: {one_line(error)}") from error
    return loaded.to(box.device, box.dtype).eval()


def _through_a_folder(box: BlackBox) -> nn.Module:
    model: Any = box.model
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        attention = getattr(box.config, "_attn_implementation", None)
        loaded: nn.Module = type(model).from_pretrained(
            folder, dtype=box.dtype, attn_implementation=attention, local_files_only=True, trust_remote_code=False
        )
    return loaded


def _through_numbers(box: BlackBox) -> nn.Module:
    file = io.BytesIO()
    torch.save(box.model.state_dict(), file)
    file.seek(0)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        fresh = box.make().to(box.dtype)
        for value in fresh.state_dict().values():
            if value.is_floating_point():
                value.add_(torch.randn_like(value))
    fresh.load_state_dict(torch.load(file, map_location=box.device, weights_only=True))
    return fresh


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Switch off the progress bars and messages of transformers in a `with` block."""
    logging: Any = sys.modules.get("transformers.utils.logging")  # a model of transformers has imported it
    if logging is None:
        yield
        return
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(50)  # critical
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def tied_names(model: nn.Module) -> list[list[str]]:
    """Return the groups of names of parameters that share memory, sorted.

    model: the model.
    """
    names: dict[Any, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.numel():
            names.setdefault((parameter.data_ptr(), parameter.shape), []).append(name)
    return sorted(sorted(group) for group in names.values() if len(group) > 1)

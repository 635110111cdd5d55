"""save: a trained model in a folder, for kinformer or for Hugging Face transformers."""

from pathlib import Path
from typing import Literal

from torch import nn

from kinformer.bridge.hf_export import hf_folder, write_hf_folder
from kinformer.bridge.model_card import CARD, model_card
from kinformer.checkpoint import checkpoint
from kinformer.core.checks import check_option, check_unused
from kinformer.core.keyword_hints import hint_keywords
from kinformer.core.missing_path import refuse_long_paths


@hint_keywords
@refuse_long_paths()
def save(
    model: nn.Module, folder: str | Path, *, step: int | None = None, format: Literal["kinformer", "hf"] = "kinformer"
) -> None:
    """Save a model in a folder, which is created if it is missing.

    Choose "kinformer" to go on with kinformer: it holds every member, and the facts of the training. Choose "hf" to
    use the model in transformers, or to publish it. `load` reads both formats. A member function (a function with
    `@member`) must have built the model.

    A tensor that several parameters share is written once, under its first name.

    model: model to save.
    folder: folder to write.
    step: training step of the weights.
    format: "kinformer", or "hf" for `from_pretrained` of Hugging Face transformers. If a class of transformers computes
        the same output, such as GPT2LMHeadModel for `gpt`, the folder is of that class. Otherwise it needs the package
        kinformer and from_pretrained(folder, trust_remote_code=True). A tokenizer is written too, also for bytes, and
        a model card, README.md, if there is none. `kinformer export` writes a card with the measurements of the run.

    Errors: TypeError if no member function built the model; ValueError if its tokenizer has more tokens than the model;
    OSError if the folder cannot be written. An earlier checkpoint in the folder then stays. With "hf", ValueError also
    for a user's own member, and for a model of other data than text that no class of transformers computes.
    """
    check_option("format", format, Literal["kinformer", "hf"])
    if format == "kinformer" or isinstance(model, str | Path):
        return checkpoint.save(model, folder, step=step)
    check_unused("format='hf'", step=(step, None))
    content, folder = hf_folder(model), Path(folder)
    has_card = (folder / CARD).exists()
    card = {} if has_card else {CARD: model_card(model, content, folder.resolve().name)}
    write_hf_folder(content, folder, card)

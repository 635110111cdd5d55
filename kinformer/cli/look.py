"""The command `kinformer look`: a page with attention maps and the loss of each token."""

import json
import math
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kinformer.cli.errors import print_warnings, refuse_no_folder
from kinformer.cli.options import Datastore, Device, Json, Knn, Own, RunPrecision, count, flag
from kinformer.cli.support import option_checks
from kinformer.core.missing_path import missing_path
from kinformer.lab.attention_weights.map_sizes import CELLS
from kinformer.lab.errors import FAILED, UserError, from_user

OWN_FILE = ".py:"  # in FILE.py:NAME
MOST = 512  # rows of a map on a page
SUFFIXES = (".html", ".htm")


def look(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Folder of a model of kinformer or of transformers, a .gguf file, or hf:ORG/NAME. FILE.py:NAME builds "
            "an untrained model: a member, or a torch.nn.Module with Attention layers that reads token ids.",
        ),
    ],
    text: Annotated[str | None, typer.Option(help="Text that the model reads.")] = None,
    text_file: Annotated[Path | None, typer.Option(help="File with the text, instead of --text.")] = None,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("look.html"),
    overwrite: Annotated[bool, flag("overwrite", "Replace the file --out if it exists.")] = False,
    cells: Annotated[int, count("Largest number of rows of a map; a longer text gets blocks of tokens.", MOST)] = CELLS,
    knn: Knn = False,
    datastore: Datastore = None,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Draw the attention of every head on a text, as one HTML page.

    \b
    Examples:
        kinformer look runs/llama --text "def main():"
        # A file of up to 16,384 tokens, and another place for the page
        kinformer look runs/llama --text-file FILE --out page.html
        # The keys that a kNN-LM finds in its datastore for each token
        kinformer look runs/xl --knn --text "The "

    The page shows the attention maps by layer and head. For each head it gives the mean distance and the entropy of its
    attention, the weight on the first tokens, and groups of heads with nearly equal maps. The text is coloured by the
    loss of each token. Models with adaptive depth show the number of steps or layers of each token. Models with a
    memory or a datastore show the keys that each token retrieved. A layer without a map is listed with the reason.

    The page is one file and needs no network. A model of another library reads the special tokens of its tokenizer,
    such as [CLS] and [SEP]. With --json the numbers of each head and the retrieved keys are printed too. In Python,
    `kf.look(model, text)` returns the maps.
    """
    if (text is None) == (text_file is None):
        raise UserError("give one of --text TEXT and --text-file FILE")
    content = _content(text, text_file)
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"wrong --out: got {out}, expected a file that ends in .html")
    refuse_no_folder(out)
    own = OWN_FILE in target
    if own:
        option_checks.member(target)
        if member is not None or knn or datastore is not None:
            raise UserError(f"{target} builds an untrained model; leave out --member, --knn and --datastore")
    if target.endswith(".py"):
        raise UserError(f"{target} is a file; add the name of a member or of a torch.nn.Module in it, as {target}:NAME")
    folder = None if own else option_checks.trained_model(Path(target))
    if out.exists() and not overwrite:  # last, so that a user who then adds --overwrite meets no further error
        raise UserError(f"{out} already exists; give another --out, or --overwrite")
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.calibrated_exits import leave_as_calibrated_here
    from kinformer.cli.support.load_model import load_model, with_datastore
    from kinformer.cli.support.progress_bar import progress
    from kinformer.core.model import Model
    from kinformer.decoding.byte_tokenizer import warn_of_loss
    from kinformer.lab import look as lab_look
    from kinformer.nn.attention import Attention
    from kinformer.pages.look_page import save_look_page

    if folder is None:
        model = _build_own(target, device)
    else:
        model = load_model(folder, member, device, precision=precision)
        leave_as_calibrated_here(folder, model)
        model = with_datastore(model, folder, knn, datastore)
    layers = sum(isinstance(part, Attention) for part in model.modules())
    with (
        from_user(ValueError, LookupError, TypeError),
        print_warnings(),
        progress("looking", layers, "layers") as listen,
    ):
        if isinstance(model, Model):
            warn_of_loss(model, [content])
            attention = lab_look.look(model, content, cells=cells, on_progress=listen)
        else:
            ids = _token_ids(target, model, content) if layers else content
            attention = lab_look.look(model, ids, cells=cells, on_progress=listen)
    with from_user(OSError, code=FAILED):
        save_look_page(attention, out, f"What {_title(target)} attends to", cells)
    if as_json:
        print(json.dumps(_record(target, out, attention), ensure_ascii=False))
        return
    loss = "" if attention.bits is None else f", {float(attention.bits[1:].double().mean()):.3f} bits per token"
    maps = f"maps of {len(attention.maps):,} of {len(attention.maps) + len(attention.unseen):,} attention layers"
    print(f"{out}: {len(attention.tokens):,} tokens{loss}; {maps}")
    if attention.unseen:
        print("the page gives the reason for each layer without a map", file=sys.stderr)


def _content(text: str | None, file: Path | None) -> bytes:
    """Return the text as bytes."""
    from kinformer.checkpoint.decompress import decode_text  # imported here, so that --help does not wait for it

    if file is None:
        content = os.fsencode(text or "")
    else:
        try:
            with from_user(ValueError):
                content = b"".join(decode_text([file.read_bytes()], str(file)))
        except FileNotFoundError as error:
            raise UserError(missing_path(file, "--text-file must name a file with the text")) from error
        except OSError as error:
            raise UserError(f"cannot read {file}: {error.strerror}; --text-file must name a file") from error
    if not content:
        raise UserError(f"the text is empty; give {'--text' if file is None else file} at least two tokens")
    return content


def _build_own(target: str, device: str | None) -> Any:
    """Build the model of FILE.py:NAME with seeded random weights."""
    import torch

    from kinformer.cli.support.device_choice import parse_device
    from kinformer.core.did_you_mean import suggest_names
    from kinformer.core.module_import import load_user_module
    from kinformer.core.quote import quote

    on = parse_device(device)
    path, _, name = target.rpartition(":")
    with from_user(LookupError, ImportError):
        values = vars(load_user_module(path))
    if name not in values:
        raise UserError(f"{path} has no {name!r}{suggest_names(name, values)}")
    value = values[name]
    torch.manual_seed(0)
    if not isinstance(value, torch.nn.Module) and callable(value):
        try:
            value = value()
        except Exception as error:
            raise UserError(f"cannot build {target} without arguments: {type(error).__name__}: {error}") from error
    if not isinstance(value, torch.nn.Module):
        raise UserError(f"{target} is {quote(value)}, expected a torch.nn.Module or a function that builds a model")
    print("the weights are untrained: the model was built with seed 0", file=sys.stderr)
    return value.to(on)


def _token_ids(target: str, module: Any, content: bytes) -> Any:
    """Return the bytes of the text as token ids [1, T], after a call that tests whether the module reads them."""
    import torch

    from kinformer.core.eval_mode import evaluating

    device = next((weight.device for weight in module.parameters()), None)
    ids = torch.tensor([list(content)], device=device)
    try:
        with evaluating(module):
            module(ids)
    except Exception as error:  # of the user's own code
        raise UserError(
            f"{target} cannot read token ids [1, {ids.shape[1]}]: {type(error).__name__}: {error}. In Python, "
            "kf.look(module, tensor) calls it with any tensor"
        ) from error
    return ids


def _title(target: str) -> str:
    """Return a short name of the model for the title."""
    if OWN_FILE in target:
        return target.rpartition(OWN_FILE)[2]
    return Path(target).stem if target.endswith(".gguf") else target.rstrip("/")


def _record(target: str, out: Path, attention: Any) -> dict[str, Any]:
    """Return the numbers of a page for JSON, which has no NaN."""
    from kinformer.lab.attention_weights.token_letters import token_letters

    heads = {
        layer: {name: _finite(column.tolist()) for name, column in numbers._asdict().items()}
        for layer, numbers in attention.heads.items()
    }
    return {
        "model": target,
        "page": str(out),
        "tokens": [str(text) for text in token_letters(attention.tokens)],
        "bits": None if attention.bits is None else _finite(attention.bits.tolist()),
        "cell": attention.cell,
        "layers": heads,
        "unseen": attention.unseen,
        "depths": {name: depth.tolist() for name, depth in attention.depths.items()},
        "retrieved": {name: _retrieved_record(keys) for name, keys in attention.retrieved.items()},
    }


def _retrieved_record(keys: Any) -> dict[str, Any]:
    """Return the best retrieved keys of each token as lists by head and token; a missing key has the place -1."""
    from kinformer.lab.attention_weights.retrieved_keys import NAMED
    from kinformer.lab.attention_weights.token_letters import token_letters

    best = {name: getattr(keys, name) for name in ("places", "weights", "distances")}
    return {
        **{name: None if values is None else _finite(values[..., :NAMED].tolist()) for name, values in best.items()},
        "share": None if keys.share is None else _finite(keys.share.tolist()),
        "texts": {place: [str(part) for part in token_letters(text)] for place, text in keys.texts.items()},
    }


def _finite(numbers: Any) -> Any:
    """Return numbers or lists of numbers, with None in place of NaN and infinity."""
    if isinstance(numbers, list):
        return [_finite(number) for number in numbers]
    return numbers if math.isfinite(numbers) else None

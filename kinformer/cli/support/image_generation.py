"""Pictures that a trained model draws, side by side in one PNG."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.cli.errors import refuse_no_folder
from kinformer.cli.support.progress_bar import progress
from kinformer.lab.data.batches import device_of
from kinformer.lab.data.images import read
from kinformer.lab.errors import UserError, from_user
from kinformer.pages.gallery import save_images


def write(
    model: Any,
    out: Path | None,
    count: int,
    enlarge: str | None,
    temperature: float | None,
    seed: int,
    label: int | None = None,
    as_json: bool = False,
) -> None:
    """Draw pictures and write them; UserError where something is missing or makes no sense.

    Of a model of super-resolution each row has the small picture, what is made of it and the true one.
    """
    if out is None:
        raise UserError("this model generates pictures; give --out FILE.png")
    if out.suffix != ".png":
        raise UserError(f"--out {out} is no PNG; give a name that ends in .png")
    refuse_no_folder(out)
    if (enlarge is None) is not (model.encoder is None):
        expected = (
            "enlarges pictures; give --enlarge WHERE" if enlarge is None else "enlarges none; leave out --enlarge"
        )
        raise UserError(f"this model {expected}")
    classes = 0 if model.classes is None else len(model.classes.weight)
    if label is not None and not label < classes:
        knows = f"knows the classes 0 to {classes - 1}" if classes else "knows no classes"
        raise UserError(
            f"--label {label} came, and this model {knows}; {'give one of these' if classes else 'leave it out'}"
        )
    true = None if enlarge is None else _true_pictures(model, enlarge, count)
    small = None if true is None else model.downsample(true)
    with progress("drawing", model.steps, f"steps of {count} pictures") as on_progress, from_user(ValueError):
        options: dict[str, Any] = {"source": small, "on_step": on_progress, "seed": seed}
        if classes:
            every = torch.arange(count) % classes if label is None else torch.full((count,), label)
            options["label"] = every.to(device_of(model))
        generated = model.draw(count, temperature=1.0 if temperature is None else temperature, **options)
    with from_user(ValueError, OSError):
        if small is not None and true is not None:
            wide = F.interpolate(small.float(), generated.shape[2:]).to(torch.uint8)
            generated = torch.stack([wide, generated, true], 1).flatten(0, 1)
        save_images(generated.cpu(), out, columns=3 if true is not None else math.ceil(math.sqrt(count)))
    if as_json:
        print(json.dumps({"out": str(out), "pictures": count, "shape": list(model.shape)}))
        return
    print(f"{count} pictures of {' x '.join(map(str, model.shape[1:]))}, in {out}")


def _true_pictures(model: Any, where: str, count: int) -> Tensor:
    """The first pictures of test."""
    with from_user(ValueError, OSError):
        images = read(where.removeprefix("images=")).test[0][:count]
        if len(images) < count or tuple(images.shape[1:]) != model.shape:
            have = f"{len(images)} pictures [C H W] of {tuple(images.shape[1:])}"
            raise ValueError(f"{where} has {have} in test; {count} of {model.shape} are wanted")
    return images.to(device_of(model))

"""Pictures that a trained model generates, side by side in one PNG file."""

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
    """Generate pictures and write them into one PNG file.

    model: an image model.
    out: the PNG file.
    count: number of pictures.
    enlarge: data such as images=FOLDER for a super-resolution model, which enlarges the first pictures of its test
        split; None for other models.
    temperature: sampling temperature; 1 if None.
    seed: seed of the sampling.
    label: number of the class to draw; if None, a model that was trained with classes draws all of them in turn.
    as_json: print the result as JSON.

    For a super-resolution model each row of the file holds the small, the generated and the true picture.
    Errors: UserError for a missing, superfluous or invalid option.
    """
    if out is None:
        raise UserError("this model generates pictures, but --out is missing. Give --out FILE.png")
    if out.suffix != ".png":
        raise UserError(f"wrong file for --out: got {out}, expected a name that ends with .png")
    refuse_no_folder(out)
    if (enlarge is None) is not (model.encoder is None):
        expected = (
            "enlarges pictures, but --enlarge is missing. Give --enlarge images=FOLDER"
            if enlarge is None
            else "does not enlarge pictures. Leave out --enlarge"
        )
        raise UserError(f"this model {expected}")
    classes = 0 if model.classes is None else len(model.classes.weight)
    if label is not None and not label < classes:
        knows = f"expected a class from 0 to {classes - 1}" if classes else "but this model has no classes"
        raise UserError(f"wrong --label: got {label}, {knows}. {'Give one of these' if classes else 'Leave it out'}")
    true = None if enlarge is None else _true_pictures(model, enlarge, count)
    small = None if true is None else model.downsample(true)
    with progress("generating", model.steps, f"steps for {count} pictures") as on_progress, from_user(ValueError):
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
    print(f"{count} pictures of {' x '.join(map(str, model.shape[1:]))} pixels in {out}")


def _true_pictures(model: Any, where: str, count: int) -> Tensor:
    """The first pictures of the test split, on the model's device."""
    with from_user(ValueError, OSError):
        images = read(where.removeprefix("images=")).test[0][:count]
        if len(images) < count or tuple(images.shape[1:]) != model.shape:
            have = f"{len(images)} pictures [C H W] of {tuple(images.shape[1:])}"
            raise ValueError(
                f"wrong pictures for --enlarge: got {have} in the test split of {where}, expected at least {count} of "
                f"{model.shape}"
            )
    return images.to(device_of(model))

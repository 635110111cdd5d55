"""Images with their labels: MNIST's idx files in a folder, or a file of numpy arrays.

Choose `images=FOLDER` or `images=FILE.npz` for models that read images. A batch is (images uint8 [B C H W], labels
[B]).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from kinformer.checkpoint import decompress as unpacked
from kinformer.checkpoint.atomic_files import existing_path
from kinformer.core.model import Model
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data
from kinformer.lab.data.support.compression_baselines import compressed_bits
from kinformer.lab.data.support.evaluation_sample import sampled_rows
from kinformer.lab.data.support.npz_arrays import read_arrays
from kinformer.lab.data.support.split_duplicates import count_copies

FORM, SERVES = "images=FOLDER", ("images",)
PIXELS, NUMBERS = b"\x00\x00\x08\x03", b"\x00\x00\x08\x01"  # first bytes of idx files of images and of labels
HELD_OUT, MEASURED = 0.1, 64  # share of train held out for validation; images per validation batch
LabelledImages = tuple[UInt8[Tensor, "_ C H W"], Int[Tensor, "_"]]


@dataclass(frozen=True, eq=False)
class ImageData(Data):
    """Images in three splits, each image with the number of its label.

    name: the specification of the data, "images=...".
    train, valid, test: images uint8 [N C H W] and labels int64 [N].
    split: one line about how the data is split in three.
    """

    noun: ClassVar[str] = "images"
    serves: ClassVar[tuple[str, ...]] = SERVES
    sized = False
    name: str
    train: LabelledImages
    valid: LabelledImages
    test: LabelledImages
    split: str = ""

    @property
    def keywords(self) -> dict[str, Any]:
        return {"shape": tuple(self.train[0].shape[1:])}

    def longest_length(self, length: int) -> None:
        return None

    def levels(self, model: Model, split: str, length: int, limit: int) -> dict[str, float]:
        if model.metric.name != "bits per dimension":
            return {}
        return compressed_bits(getattr(self, split)[0][self._sample(limit, split)].numpy().tobytes())

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        return f"{len(self._sample(limit, split)):,} images of {split}"

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Batches:
        """Return random training batches, fixed by seed and step, and validation images.

        The validation images are spread evenly over their split and have at most `limit` bytes.

        Errors: ValueError if the model reads images of another shape.
        """
        pixels, labels = self.train
        if (model_shape := getattr(model, "shape", shape := self.keywords["shape"])) != shape:
            raise ValueError(
                f"{self.name} has images [C H W] of {shape}, but this model reads {model_shape}; give "
                f"shape={','.join(map(str, shape))}"
            )

        def draw_batch(step: int) -> LabelledImages:
            indices = torch.from_numpy(numpy.random.default_rng((seed, step)).integers(len(pixels), size=batch))
            return pixels[indices], labels[indices]

        sample = self._sample(limit)
        lots = (tensor[sample].split(MEASURED) for tensor in self.valid)
        return Batches(draw_batch, zip(*lots, strict=True))

    def _sample(self, limit: int, split: str = "valid") -> list[int]:
        """Return the indices of the images that are measured."""
        pixels = getattr(self, split)[0]
        return sampled_rows(range(len(pixels)), [pixels[0].numel()] * len(pixels), limit)


def read(where: str) -> ImageData:
    """Read images from a folder of idx files (train-images..., train-labels..., t10k-...) or from a .npz.

    The last tenth of the training images is used for validation. The test images are the test split.

    where: a folder of idx files, compressed or not, or a .npz file. The .npz holds uint8 images [N H W] or [N H W C]
        under x_train, y_train, x_test, y_test; the names train_images, train_labels and so on, or train_x and so on,
        work too.

    Errors: FileNotFoundError if a file is missing; ValueError, in one line, if a file is cut off or has another form.
    """
    path = existing_path(where, "write images=FOLDER or images=FILE.npz")
    train, test = _read_idx_folder(path) if path.is_dir() else _read_npz(path)
    held_out = max(1, round(len(train[0]) * HELD_OUT))
    lots = (train[0][:-held_out], train[1][:-held_out]), (train[0][-held_out:], train[1][-held_out:])
    named = dict(zip(("train", "valid", "test"), (*lots, test), strict=True))
    copied = count_copies({name: map(_bytes, lot[0]) for name, lot in named.items()}).line("images")
    counts = ", ".join(f"{len(lot[0]):,} {name}" for name, lot in named.items())
    description = f"images={where}: {counts}; valid is the last tenth of train{'; ' * bool(copied)}{copied}"
    return ImageData(f"images={where}", *lots, test, split=description)


def _bytes(pixels: UInt8[Tensor, "C H W"]) -> bytes:
    return pixels.numpy().tobytes()


def _build_labelled_images(pixels: numpy.ndarray, labels: numpy.ndarray, place: str) -> LabelledImages:
    if labels.dtype.kind not in "iu" and not numpy.array_equal(labels, numpy.round(labels)):
        raise ValueError(
            f"{place} has invalid labels: got {labels[labels % 1 != 0][0]}, expected integers. Number the labels"
        )
    if pixels.dtype != numpy.uint8 or pixels.ndim not in (3, 4) or len(pixels) != labels.size or len(pixels) < 2:
        raise ValueError(
            f"{place} has invalid images: got {pixels.dtype}{list(pixels.shape)} and {labels.size} labels, expected "
            "uint8 [N H W] or [N H W C] with N labels and N of at least 2"
        )
    whole = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    return torch.from_numpy(whole.copy()), torch.from_numpy(labels.reshape(-1).astype(numpy.int64))


def _read_idx_folder(folder: Path) -> tuple[LabelledImages, LabelledImages]:
    return _read_idx_split(folder, "train"), _read_idx_split(folder, "t10k")


def _read_idx_split(folder: Path, split: str) -> LabelledImages:
    files = []
    for kind, magic in (("images", PIXELS), ("labels", NUMBERS)):
        paths = sorted(folder.glob(f"{split}-{kind}*"))
        if not paths:
            raise FileNotFoundError(f"{folder} has no file {split}-{kind}-idx; give MNIST's four files, or a .npz")
        files.append(_read_idx_file(paths[0], magic))
    return _build_labelled_images(files[0], files[1], str(folder))


def _read_idx_file(path: Path, magic: bytes) -> numpy.ndarray:
    data = b"".join(unpacked.chunks(path))
    sizes = numpy.frombuffer(data[4 : 4 + 4 * magic[3]], ">u4").astype(int)
    if data[:4] != magic or len(data) != 4 + 4 * magic[3] + numpy.prod(sizes):
        raise ValueError(f"{path} is not an idx file of {'images' if magic == PIXELS else 'labels'}, or is cut off")
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * magic[3]).reshape(sizes)


def _read_npz(path: Path) -> tuple[LabelledImages, LabelledImages]:
    by_name = read_arrays(path)
    for pixels, labels in (("x_{}", "y_{}"), ("{}_images", "{}_labels"), ("{}_x", "{}_y")):
        if all(name.format(split) in by_name for split in ("train", "test") for name in (pixels, labels)):
            train, test = (
                _build_labelled_images(
                    by_name[pixels.format(split)], by_name[labels.format(split)], f"{split} of {path}"
                )
                for split in ("train", "test")
            )
            return train, test
    raise ValueError(
        f"{path} lacks arrays: got {', '.join(by_name) or 'none'}, expected x_train, y_train, x_test, y_test"
    )

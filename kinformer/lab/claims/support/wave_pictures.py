"""Synthetic grey pictures for claims: sums of waves in random directions."""

import math

import torch
from jaxtyping import UInt8
from torch import Tensor

from kinformer.lab.data.images import ImageData

WAVES, LEVELS = 3, 16  # waves of a picture, and different intensities
LONGEST = 1.0  # largest number of radians between neighbouring pixels
TRAIN, VALID = 4096, 256  # pictures


def wave_pictures(count: int, side: int, seed: int) -> UInt8[Tensor, "N 1 S S"]:
    """Return square grey pictures, each the sum of three waves of random direction, length and phase.

    x[r, c] = sum over n of sin(a_n r + b_n c + p_n), in 16 equal levels from 0 to 255

    a_n and b_n are uniform between -1 and 1 radian per pixel, and p_n is uniform. Rows and columns are alike.

    count: number of pictures.
    side: rows and columns of a picture.
    seed: seed of the waves.
    """
    generator = torch.Generator().manual_seed(seed)
    rates = LONGEST * (2 * torch.rand(count, WAVES, 2, generator=generator) - 1)
    phases = 2 * math.pi * torch.rand(count, WAVES, generator=generator)
    place = torch.arange(side)
    angles = (
        rates[..., 0, None, None] * place[:, None] + rates[..., 1, None, None] * place + phases[..., None, None]
    )  # [N W S S]
    unit = (angles.sin().sum(1) / WAVES + 1) / 2  # 0 to 1
    level = (unit * LEVELS).floor().clamp_max(LEVELS - 1)
    return (level * (255 // (LEVELS - 1))).to(torch.uint8)[:, None]


def wave_data(side: int) -> ImageData:
    """Return data of wave pictures; training and validation pictures differ.

    side: rows and columns of a picture.
    """
    splits = []
    for seed, count in enumerate((TRAIN, VALID, VALID)):
        splits.append((wave_pictures(count, side, seed), torch.zeros(count, dtype=torch.int64)))
    train, valid, test = splits
    return ImageData(f"waves of {side} x {side}", train, valid, test)

"""Compression baselines: bits per byte of gzip and xz, and the entropy of single bytes."""

import gzip
import lzma
import math
from collections import Counter


def compressed_bits(data: bytes) -> dict[str, float]:
    """Return the bits per byte of gzip -9 and xz -9e on the data, file headers included."""
    sizes = {
        "gzip -9": len(gzip.compress(data, 9, mtime=0)),
        "xz -9e": len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    }
    return {name: 8 * count / len(data) for name, count in sizes.items()}


def unigram(data: bytes) -> float:
    """Return the entropy of the single bytes of `data`, in bits.

    A model that knows only the frequencies of the bytes has this loss.
    """
    return -sum(count / len(data) * math.log2(count / len(data)) for count in Counter(data).values())

"""Compressors: how many bits plain gzip and xz need for what a model is measured on, and how many its bytes alone."""

import gzip
import lzma
import math
from collections import Counter


def compressed_bits(data: bytes) -> dict[str, float]:
    """Bits for each byte that gzip -9 and xz -9e reach, file headers included."""
    sizes = {
        "gzip -9": len(gzip.compress(data, 9, mtime=0)),
        "xz -9e": len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    }
    return {name: 8 * count / len(data) for name, count in sizes.items()}


def unigram(data: bytes) -> float:
    """The entropy of single bytes, in bits: what knowing how often each stands there is worth, and nothing else."""
    return -sum(count / len(data) * math.log2(count / len(data)) for count in Counter(data).values())

"""Nystromformer, whose table of positions begins with two unused rows.

Rows without padding have the same results in transformers. There, the vectors of padding tokens enter the
landmarks and the convolution.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from kinformer.bridge.families.bert import (
    BERT_HEAD,
    GELUS,
    HEAD_PREFIXES,
    IGNORED_TENSORS,
    SIZES,
    UNUSED,
    MaskToken,
    encoder_tensors,
)
from kinformer.bridge.family import Family
from kinformer.bridge.settings import Config, Constants, Keyword, Keywords, OneValue, Setting, UnreadableKey
from kinformer.bridge.tensors import Form, LaterRows
from kinformer.members.nystromformer import nystromformer


class Landmarks(Setting):
    """The number of landmarks, and the number of tokens that every row must have in transformers.

    If both are equal, as by default, rows may have any length and attention is full. Our attention is full
    for rows of at most `landmarks` tokens, so `landmarks` is then the longest row.
    """

    keys = ("num_landmarks", "segment_means_seq_len")

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        landmarks, length = config.get("num_landmarks", 64), config.get("segment_means_seq_len", 64)
        longest = keywords["length"]
        if landmarks == length and landmarks is not None:
            return {"landmarks": longest, "form": "paper"}
        whole = isinstance(landmarks, int) and isinstance(length, int)
        if not (whole and 0 < landmarks < length <= longest and length % landmarks == 0):
            expected = f"num_landmarks={landmarks}, or a multiple of it up to max_position_embeddings={longest}"
            raise UnreadableKey("segment_means_seq_len", length, expected)
        return {"landmarks": landmarks, "form": "published"}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        landmarks, longest = keywords["landmarks"], keywords["length"]
        return {"num_landmarks": landmarks, "segment_means_seq_len": max(longest // landmarks, 1) * landmarks}


class ConvolutionKernel(Form):
    """The foreign kernel of a convolution [H, 1, kernel, 1], which is [H, kernel] here."""

    def join(self, tensors: Sequence[Tensor], owner: nn.Module) -> Tensor:
        return tensors[0].flatten(1)

    def split(self, tensor: Tensor, owner: nn.Module) -> Sequence[Tensor]:
        return [tensor[:, None, :, None]]


SKIP = "body.layers.{n}.layers.0.mechanism.skip.weight"
CONV = "nystromformer.encoder.layer.{n}.attention.self.conv.weight"

FAMILIES = (
    Family(
        "nystromformer",
        "NystromformerForMaskedLM",
        nystromformer,
        (
            *SIZES,
            Keyword("layer_norm_eps", "eps", 1e-5),
            Keyword("max_position_embeddings", "length", 510, least=1),
            Landmarks(),
            Keyword("conv_kernel_size", "conv", 65, least=1),
            Keyword("hidden_act", "activation", "gelu_new", values=GELUS),
            OneValue("inv_coeff_init_option", False),
            MaskToken(4),
            Constants(norms=None, iterations=6),
        ),
        encoder_tensors("nystromformer.", (LaterRows(UNUSED),), BERT_HEAD, (SKIP, CONV, ConvolutionKernel())),
        base_model_prefix="nystromformer.",
        ignored_tensors=IGNORED_TENSORS,
        head_prefixes=HEAD_PREFIXES,
    ),
)

"""Longformer, BigBird and Nystromformer of transformers, read and written: equal logits, and everything refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.bridge.family import NoFamily, families, native
from kinformer.checkpoint.model_files import CheckpointError
from tests.bridge.test_encoders import SPARSE, VOCAB
from tests.bridge.test_hf_folder import changed
from tests.parity.peers import agree, shaken

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "sep_token_id": 2,
}
ODD = {"vocab_size": 23, "intermediate_size": 30, "layer_norm_eps": 1e-2, "type_vocab_size": 3}
BIG_BIRD = {**SIZES, "block_size": 3, "num_random_blocks": 2}
NYSTROM = {**SIZES, "conv_kernel_size": 5}
LANDMARKS = {"num_landmarks": 4, "segment_means_seq_len": 20, "max_position_embeddings": 20}
SPARSE_LENGTH, FULL_LENGTH = (
    44,
    27,
)  # of BigBird: 15 blocks, the last one of two tokens; 9 blocks, which are read in full
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {  # with the lengths of rows
    "longformer": ("longformer", {**SIZES, "attention_window": 6}, (17, 12, 1)),
    "longformer, odd": ("longformer", {**SIZES, **ODD, "attention_window": [4, 8]}, (17, 12, 3)),
    "longformer, one kind": ("longformer", {**SIZES, "attention_window": [4, 4], "type_vocab_size": 1}, (16, 16)),
    "big_bird": ("big_bird", BIG_BIRD, (SPARSE_LENGTH, 31, FULL_LENGTH, 5)),
    "big_bird, odd": ("big_bird", {**BIG_BIRD, **ODD, "num_random_blocks": 1, "hidden_act": "gelu"}, (23, 22, 21, 1)),
    "big_bird, full": ("big_bird", {**BIG_BIRD, "attention_type": "original_full"}, (SPARSE_LENGTH, 3)),
    "nystromformer": ("nystromformer", {**NYSTROM, **LANDMARKS}, (20, 20)),
    "nystromformer, odd": (
        "nystromformer",
        {**NYSTROM, **ODD, **LANDMARKS, "hidden_act": "gelu", "max_position_embeddings": 23},
        (20,),
    ),
    "nystromformer, full": ("nystromformer", {**NYSTROM, "num_landmarks": 4, "segment_means_seq_len": 4}, (33, 4, 7)),
}


@pytest.fixture(autouse=True)
def softmax_in_the_dtype_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longformer's softmax of transformers is in float32; here it keeps float64, which can be compared in full."""

    def softmax(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return scores.softmax(dim)

    monkeypatch.setattr(F, "softmax", softmax)


def peer(case: str, dtype: torch.dtype = torch.float64, **keys: Any) -> Any:
    kind, known, _ = CASES[case]
    config = transformers.AutoConfig.for_model(kind, **{"initializer_range": 0.3, **known, **keys})
    return shaken(transformers.AutoModelForMaskedLM.from_config(config).to(dtype).eval())


def logits_of(theirs: Any, tokens: Tensor, segment: Tensor) -> Tensor:
    """Their logits of the real tokens of all rows, each of which is read alone if some are padded.

    Reading a short row sets all later rows of a BigBird of theirs to full attention, so it is set back.
    """
    if (tokens >= 0).all():
        return theirs(input_ids=tokens, token_type_ids=segment).logits.flatten(0, 1)
    rows = []
    for row, kinds in zip(tokens, segment, strict=True):
        if theirs.config.model_type == "big_bird":
            theirs.bert.set_attention_type(theirs.config.attention_type)
        real = row >= 0
        rows.append(theirs(input_ids=row[real][None], token_type_ids=kinds[real][None]).logits[0])
    return torch.cat(rows)


def rows_of(case: str, vocab: int) -> Tensor:
    """Rows of the case's lengths, padded on the right."""
    lengths = CASES[case][2]
    tokens = torch.randint(3, vocab, (len(lengths), max(lengths)))
    return tokens.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], -1)


def test_every_family_of_sparse_encoders_has_a_case() -> None:
    assert {kind for kind, _, _ in CASES.values()} == SPARSE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_each_row_alone_and_the_model_is_written(
    case: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    theirs = peer(case, dtype)
    theirs.save_pretrained(tmp_path)
    ours = kf.load(tmp_path)
    tokens = rows_of(case, ours.vocab)
    real, kinds = tokens >= 0, ours.kind.num_embeddings
    segment = torch.arange(tokens.shape[1]).expand_as(tokens) // 5 % kinds
    ctx = kf.Context.of_sequence(torch.zeros(*tokens.shape, 1), real).replace(labels={"segment": segment})
    want = logits_of(theirs, tokens, segment)
    agree(ours.logits(tokens, None, ctx).y[real], want)
    family, config = native(ours)
    assert family is families()[CASES[case][0]]
    again = transformers.AutoConfig.for_model(**{key: value for key, value in config.items() if key != "architectures"})
    model = getattr(transformers, family.architecture)._from_config(again).to(dtype).eval()
    found = model.load_state_dict(family.split(ours), strict=False)
    spare = ("decoder.bias", "decoder.weight", "pooler.weight", "pooler.bias")
    assert not found.unexpected_keys and all(name.endswith(spare) for name in found.missing_keys)
    agree(logits_of(model, tokens, segment), want)

"""Tokenizers of GGUF files, byte-level or SentencePiece, as JSON of the package `tokenizers`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kinformer.checkpoint.special_tokens import SpecialTokens
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.core.quote import quote
from kinformer.core.warn import warn

LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {  # patterns by which byte-level tokenizers cut a text before they merge letters; "" is GPT-2's own
    "gpt-2": "",
    "smollm": "",
    "llama-bpe": rf"{LETTERS}|\p{{N}}{{1,3}}|{SPACES}",
    "qwen2": rf"{LETTERS}|\p{{N}}|{SPACES}",
}
SINGLE_DIGITS = ("smollm",)
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6  # types of tokens; the others are pieces of texts
SPACE = "▁"  # stands for a space in SentencePiece
NAMES = {  # keys of GGUF and names of transformers
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "unknown_token_id": "unk_token",
    "seperator_token_id": "sep_token",  # GGUF spells it so
    "padding_token_id": "pad_token",
    "cls_token_id": "cls_token",
    "mask_token_id": "mask_token",
}
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")  # the end of a text, of a turn and of a message


def gguf_special_tokens(facts: Mapping[str, Any]) -> SpecialTokens:
    """Return the special tokens and the chat template of a GGUF file.

    facts: the values of the file's keys.
    """
    tokens = facts.get("tokenizer.ggml.tokens", ())
    given = {key: facts.get(f"tokenizer.ggml.{key}") for key in (*NAMES, *ENDS)}
    ids = {key: int(number) for key, number in given.items() if number is not None and 0 <= number < len(tokens)}
    names = {name: tokens[ids[key]] for key, name in NAMES.items() if key in ids}
    ends: dict[int, None] = dict.fromkeys(ids[key] for key in ENDS if key in ids)
    return SpecialTokens(names, tuple(ends), facts.get("tokenizer.chat_template"))


def gguf_tokenizer(facts: Mapping[str, Any], path: Path) -> Tokenizer | None:
    """Return the tokenizer of a GGUF file; None, with a warning, for a kind that is not read.

    facts: the values of the file's keys.
    path: the file, for messages.
    """
    kind, cut = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre")
    if kind is None:
        return None
    tokens = facts.get("tokenizer.ggml.tokens", ())
    types = facts.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if kind == "llama" and len(facts.get("tokenizer.ggml.scores", ())) == len(tokens):
        steps = _pieces(facts, tokens, types)
    elif kind == "gpt2" and cut in SPLITS:
        steps = _bytes(facts, tokens, cut)
    else:
        warn(
            f"the tokenizer of {path.name} is not read (model {quote(kind)}, pre {quote(cut)}); give one with "
            "model.tokenizer = TOKENIZER"
        )
        return None
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": token, **flags, "special": type_ != USER_DEFINED}
        for number, (token, type_) in enumerate(zip(tokens, types, strict=True))
        if type_ in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    special = gguf_special_tokens(facts)
    begin = special.names.get("bos_token") if facts.get("tokenizer.ggml.add_bos_token", kind == "llama") else None
    if begin is not None:
        steps["post_processor"] = _begun(begin, int(facts["tokenizer.ggml.bos_token_id"]))
    return Tokenizer(json.dumps({"version": "1.0", "added_tokens": added, **steps}), str(path), special)


def _bytes(facts: Mapping[str, Any], tokens: Sequence[str], cut: str) -> dict[str, Any]:
    """Return the parts of a byte-level tokenizer."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not SPLITS[cut]}
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if cut in SINGLE_DIGITS else []
    if SPLITS[cut]:
        steps.append({"type": "Split", "pattern": {"Regex": SPLITS[cut]}, "behavior": "Isolated", "invert": False})
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, level]},
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": facts["tokenizer.ggml.merges"],
            "byte_fallback": False,
            "ignore_merges": cut == "llama-bpe",
        },
    }


def _pieces(facts: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    """Return the parts of a SentencePiece tokenizer.

    The two neighbours whose union has the highest score are merged first. Letters that are no piece become their bytes.
    """
    scores = facts["tokenizer.ggml.scores"]
    pieces = {
        token: score
        for token, score, type_ in zip(tokens, scores, types, strict=True)
        if type_ not in (UNKNOWN, CONTROL, USER_DEFINED, BYTE)
    }
    merges = [
        (score, [piece[:cut], piece[cut:]])
        for piece, score in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    merges.sort(key=lambda merge: -merge[0])
    begins_with_space = facts.get("tokenizer.ggml.add_space_prefix", True)
    replace = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begins_with_space else []
    spaces = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*([{"type": "Prepend", "prepend": SPACE}] if begins_with_space else []), *replace],
        },
        "decoder": {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [pair for _, pair in merges],
            "unk_token": next((token for token, type_ in zip(tokens, types, strict=True) if type_ == UNKNOWN), None),
            "fuse_unk": True,
            "byte_fallback": BYTE in types,
        },
    }


def _begun(token: str, number: int) -> dict[str, Any]:
    """Return the step that puts a token before each text."""
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    begin = {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, begin, second],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }

"""Files of a tokenizer for `AutoTokenizer` of Hugging Face transformers, also for models of bytes."""

import json
from typing import Any, NamedTuple

from kinformer.checkpoint.model_files import SPECIAL_TOKENS_MAP, TOKENIZER, TOKENIZER_CONFIG
from kinformer.checkpoint.tokenizer import BYTE_LETTERS, BYTES, Tokenizer
from kinformer.checkpoint.unknown_tokenizer import UnknownTokenizer, own_tokenizer
from kinformer.core.from_json import from_json

ADDED = {"mask": "<mask>", "end": "<end>", "begin": "<begin>"}  # texts of ids after the last one of the tokenizer
ROLES = {"mask": "mask_token", "end": "eos_token", "begin": "bos_token"}
KNOWN = {  # what the special tokens of published tokenizers mean
    "[CLS]": "cls_token",
    "[SEP]": "sep_token",
    "[PAD]": "pad_token",
    "<pad>": "pad_token",
    "[UNK]": "unk_token",
    "<unk>": "unk_token",
    "<s>": "bos_token",
    "</s>": "eos_token",
    "<|endoftext|>": "eos_token",
}


class TokenizerFiles(NamedTuple):
    """The files of a tokenizer, and the ids of its tokens with a meaning.

    files: content of each file, by name; empty if the tokenizer is not known.
    ids: ids by their names in transformers, such as "mask_token_id".
    """

    files: dict[str, bytes]
    ids: dict[str, int]


def byte_tokenizer() -> str:
    """Return the JSON of a tokenizer whose ids are the bytes of a text: a byte-level BPE without merges."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    model = {"type": "BPE", "vocab": _letters(), "merges": []}
    return _json(
        {"version": "1.0", **empty, "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": model}
    )


def is_byte_tokenizer(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer equals `byte_tokenizer` and has no ends and no chat template.

    tokenizer: the tokenizer.
    """
    if tokenizer.size != BYTES or tokenizer.ends or tokenizer.special.chat_template is not None:
        return False
    return bool(tokenizer.backend.to_str() == Tokenizer(byte_tokenizer()).backend.to_str())


def tokenizer_files(model: Any) -> TokenizerFiles:
    """Return the files of a model's tokenizer; none if it is unknown, or if the tokens are no texts.

    If an id of the model follows the last id of the tokenizer, as the mask of a masked model does, it gets a text.

    model: the model.
    """
    ids = {role: number for role in ROLES if isinstance(number := getattr(model, role, None), int)}
    named_ids = {f"{ROLES[role]}_id": number for role, number in ids.items()}
    tokenizer, vocab = own_tokenizer(model), getattr(model, "vocab", None)
    if isinstance(tokenizer, UnknownTokenizer) or vocab is None or (tokenizer is None and vocab < len(BYTE_LETTERS)):
        return TokenizerFiles({}, named_ids)
    text = byte_tokenizer() if tokenizer is None else tokenizer.text
    added = {token["content"]: token["id"] for token in from_json(text).get("added_tokens", ()) if token.get("special")}
    special: dict[str, str | None] = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
    special |= {KNOWN[name]: name for name in added if name in KNOWN}
    special |= {} if tokenizer is None else tokenizer.special.names
    size = len(BYTE_LETTERS) if tokenizer is None else tokenizer.size
    for role, number in sorted(ids.items(), key=lambda item: item[1]):
        if number == size:  # transformers gives the next id to a special token that the tokenizer lacks
            special[ROLES[role]], size = ADDED[role], size + 1
        elif tokenizer is not None and (name := tokenizer.backend.id_to_token(number)) is not None:
            special[ROLES[role]] = name
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "padding_side": "left" if model.reads == "text" else "right",
        **({} if model.window is None else {"model_max_length": model.window}),
        **special,
    }
    if tokenizer is not None and tokenizer.special.chat_template is not None:
        config["chat_template"] = tokenizer.special.chat_template
    known = {role: name for role, name in special.items() if name is not None}
    files = {TOKENIZER: text, TOKENIZER_CONFIG: _json(config), SPECIAL_TOKENS_MAP: _json(known)}
    named_ids = {f"{role}_id": added[name] for role, name in known.items() if name in added} | named_ids
    return TokenizerFiles({name: content.encode() for name, content in files.items()}, named_ids)


def _letters() -> dict[str, int]:
    """The vocabulary of a byte-level tokenizer with a token for each byte, in the order of the bytes."""
    return dict(sorted(BYTE_LETTERS.items(), key=lambda item: item[1]))


def _json(content: Any) -> str:
    return f"{json.dumps(content, indent=2, ensure_ascii=False)}\n"

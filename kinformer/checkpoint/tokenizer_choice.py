"""Choice of a tokenizer by a text such as "bytes", "bpe:4096" or the path of a tokenizer.json."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kinformer.checkpoint.decompress import text as opened
from kinformer.checkpoint.hub import hf_path
from kinformer.checkpoint.model_files import TOKENIZER, VOCABULARIES
from kinformer.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from kinformer.checkpoint.tokenizer import NO_SPECIAL, Tokenizer, tokenizers_package
from kinformer.core.from_json import from_json
from kinformer.core.quote import quote, shorten
from kinformer.core.warn import warn

BPE = "tokenizer=bpe:4096"
LEAST = 257  # a byte-level vocabulary has all 256 bytes and at least one merge


def parse_tokenizer(text: str | Tokenizer) -> Tokenizer | int | None:
    """Return the tokenizer that a text names: None for "bytes", a `Tokenizer` for a path.

    A tokenizer is returned as it is.

    For "bpe:4096" the result is the number 4096: the vocabulary size of a tokenizer that is still to be trained.

    text: "bytes", "bpe:" with a number, the path of a tokenizer.json or of its folder, "hf:ORG/NAME" for a model of the
        Hugging Face Hub, or a tokenizer.

    Errors: FileNotFoundError for a missing file; ValueError, in one line, for another text or an invalid file. Errors
    of `hf_path`.
    """
    if isinstance(text, Tokenizer):
        return text
    if text == "bytes":
        return None
    kind, colon, size = text.partition(":")
    if kind == "bpe" and colon:
        if not size.isdecimal():
            raise ValueError(f"tokenizer={text}: got {quote(size)}, expected a number of tokens; write bpe:4096")
        if int(size) < LEAST:
            raise ValueError(f"tokenizer={text}: a byte-level BPE has at least {LEAST} tokens; write bpe:4096")
        tokenizers_package()
        return int(size)
    path = Path(os.path.expanduser(hf_path(text, weights=False)))  # keeps ~NAME of an unknown user
    if path.is_dir() and (tokenizer := folder_tokenizer(path)) is not None:
        return tokenizer
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no tokenizer {text}; give bytes, bpe:4096, the path of a tokenizer.json or hf:ORG/NAME"
        )
    return read_tokenizer(path)


def as_tokenizer(value: Any) -> Tokenizer | None:
    """Return a tokenizer as kinformer stores it: None for bytes.

    value: a `tokenizers.Tokenizer`, a fast tokenizer of transformers, the path of a tokenizer.json or of its folder, or
        "bytes" or None. A tokenizer of kinformer is returned as it is.

    Errors: TypeError, in one line, for another value; FileNotFoundError for a missing file.
    """
    if value is None or isinstance(value, Tokenizer):
        return value
    if isinstance(value, str | Path):
        if isinstance(tokenizer := parse_tokenizer(str(value)), int):
            raise ValueError(f"tokenizer={value} trains a tokenizer on a text: give it in the data, as text=PATH,{BPE}")
        return tokenizer
    backend = getattr(value, "backend_tokenizer", value)  # a fast tokenizer of transformers wraps one of tokenizers
    if not callable(to_text := getattr(backend, "to_str", None)):
        raise TypeError(
            f"wrong tokenizer: got {type(value).__name__}, expected a tokenizers.Tokenizer, a fast tokenizer of "
            "transformers, or the path of a tokenizer.json"
        )
    return Tokenizer(to_text(), type(value).__name__, SpecialTokens.of_transformers(value))


def folder_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a folder, with its special tokens; None if it has none.

    Files of slow tokenizers, such as vocab.txt, are converted by transformers. No code of the folder is run. A
    warning is given for files that cannot be converted.

    folder: folder of a model of kinformer or of transformers.

    Errors: ValueError, in one line, for an invalid tokenizer.json.
    """
    if (folder / TOKENIZER).is_file():
        return read_tokenizer(folder / TOKENIZER)
    vocabulary = next((name for name in VOCABULARIES if (folder / name).is_file()), None)
    if vocabulary is None:
        return None
    try:
        from transformers import AutoTokenizer

        given = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True, use_fast=True)
        text = given.backend_tokenizer.to_str()
    except Exception as error:  # the packages raise what a file leads to
        first_line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        reason = shorten(first_line.strip(), 160)
        warn(f"{folder / vocabulary} cannot be converted to a {TOKENIZER} ({reason}); give a folder with {TOKENIZER}")
        return None
    special = read_special_tokens(folder)
    names = {**SpecialTokens.of_transformers(given).names, **special.names}
    return Tokenizer(text, str(folder / vocabulary), special._replace(names=names))


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer that a file holds.

    path: a tokenizer.json.

    Errors: ValueError, in one line, for a file without a tokenizer.
    """
    try:
        text = b"".join(opened(path)).decode()
        is_mapping = isinstance(from_json(text), dict)
    except OSError as error:
        raise ValueError(str(error)) from error
    except ValueError as error:
        raise ValueError(f"{path} is not a tokenizer.json: it is truncated or not JSON") from error
    special = read_special_tokens(path.parent) if path.name == TOKENIZER else NO_SPECIAL
    tokenizer = Tokenizer(text, str(path), special)
    if not is_mapping or not tokenizer.size:
        raise ValueError(f"{path} is not a tokenizer.json: it has no vocabulary")
    if tokenizer.switched_off:
        warn(f"{path} sets {' and '.join(tokenizer.switched_off)}, which is switched off: each text is tokenized whole")
    return tokenizer


def train_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer of at most `size` tokens.

    It has fewer tokens if the texts have no more pairs of tokens to merge.

    texts: training texts.
    size: largest number of tokens.

    Source: Sennrich et al., 2015, arXiv:1508.07909; over bytes: Radford et al., 2019, "Language models are unsupervised
    multitask learners".
    """
    package = tokenizers_package()
    trained_tokenizer = package.Tokenizer(package.models.BPE())
    trained_tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained_tokenizer.decoder = package.decoders.ByteLevel()
    alphabet = sorted(package.pre_tokenizers.ByteLevel.alphabet())
    trained_tokenizer.train_from_iterator(
        texts, package.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    return Tokenizer(trained_tokenizer.to_str())


def tokenizer_of(spelled: str | Tokenizer, texts: Iterable[bytes]) -> Tokenizer | None:
    """Return the tokenizer that `spelled` names, trained on these texts for "bpe:4096"; None for "bytes".

    spelled: "bytes", "bpe:4096", the path of a tokenizer.json, or a tokenizer.
    texts: training texts.
    """
    choice = parse_tokenizer(spelled)
    return (
        train_tokenizer((text.decode(errors="ignore") for text in texts), choice) if isinstance(choice, int) else choice
    )

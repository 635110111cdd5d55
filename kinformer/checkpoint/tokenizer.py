"""Tokenizers whose tokens are not single bytes, stored as JSON of the package `tokenizers`."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.checkpoint.chat_template import render_chat
from kinformer.checkpoint.lost_bytes import LostBytes
from kinformer.checkpoint.special_tokens import SpecialTokens
from kinformer.core.from_json import from_json

BYTES = 256  # tokens of a model of bytes
NO_BYTE, NO_SPECIAL = BYTES, SpecialTokens()
GROUP, BEFORE = 64, 8  # number of tokens compared at a time; number of earlier tokens decoded with them


class Encoding(NamedTuple):
    """Tokens of a text, with the number of bytes that decoding each one restores.

    tokens: ids of the tokens.
    widths: number of bytes that each token restores.
    loss: bytes that decoding the tokens does not restore.
    """

    tokens: Int[numpy.ndarray, " N"]
    widths: Int[numpy.ndarray, " N"]
    loss: LostBytes


class Tokenizer:
    """Tokenizer of the package `tokenizers`, created from JSON at its first use.

    A model that kinformer saved can therefore be loaded without the package. Each text is tokenized completely,
    independently and always in the same way: truncation, padding and the dropout of merges are switched off.

    text: JSON of the tokenizer.
    place: name of the tokenizer in messages.
    special: names of its special tokens, and the template of its chats.

    Errors: ValueError for an invalid tokenizer; ImportError if the package is missing.
    """

    def __init__(self, text: str, place: str = "tokenizer.json", special: SpecialTokens = NO_SPECIAL) -> None:
        self.text, self.place, self.special = text, place, special
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __str__(self) -> str:
        return self.place

    @cached_property
    def backend(self) -> Any:
        """Tokenizer object of the package."""
        tokenizers = tokenizers_package()
        try:
            tokenizer = tokenizers.Tokenizer.from_str(self.text)
        except Exception as error:  # the package raises plain Exceptions
            raise ValueError(f"{self.place} is not a tokenizer.json that tokenizers can read: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if "dropout" in self.switched_off and hasattr(tokenizer.model, "dropout"):  # other models than BPE ignore it
            tokenizer.model.dropout = None
        return tokenizer

    @cached_property
    def switched_off(self) -> tuple[str, ...]:
        """Names of the settings in the JSON that this class ignores, of truncation, padding and dropout."""
        values = {name: self._settings.get(name) for name in ("truncation", "padding")}
        values["dropout"] = self._settings["model"].get("dropout")
        return tuple(name for name, value in values.items() if value)

    @cached_property
    def size(self) -> int:
        """Vocabulary size that a model needs: one more than the largest id."""
        return 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the tokenizer's JSON."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def special_token(self, name: str) -> int | None:
        """Return the id of a special token; None if the tokenizer has none of this name.

        name: its name in transformers, such as "pad_token" or "mask_token".
        """
        text = self.special.names.get(name)
        return None if text is None else cast(int | None, self.backend.token_to_id(text))

    @property
    def begins(self) -> tuple[int, ...]:
        """Ids that transformers puts before a text, such as Llama's begin token; `encode` adds none."""
        return self._around[0]

    @property
    def closing(self) -> tuple[int, ...]:
        """Ids that transformers puts behind a text, such as BERT's [SEP]; `encode` adds none."""
        return self._around[1]

    @cached_property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        encoding = self.backend.encode("a", add_special_tokens=True)
        mask = encoding.special_tokens_mask
        if 0 not in mask:
            return (), ()
        return tuple(encoding.ids[: mask.index(0)]), tuple(encoding.ids[len(mask) - mask[::-1].index(0) :])

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids of the tokens that end a generated text; empty if there are none."""
        end = None if self.special.ends else self.special_token("eos_token")
        return self.special.ends if end is None else (end,)

    def chat(self, messages: Iterable[Mapping[str, Any]], **variables: Any) -> str:
        """Return a chat as one text, up to the answer of the model; `encode` makes its tokens.

            prompt = tokenizer.encode(tokenizer.chat([{"role": "user", "content": "Who wrote Emma?"}]))

        messages: the messages, each with a "role" and a "content".
        variables: further variables of the chat template, such as `tools`, or `add_generation_prompt=False`.

        Errors: ValueError without a chat template, and for messages that it refuses. ImportError for an old Jinja.
        """
        if self.special.chat_template is None:
            raise ValueError(f"cannot format a chat: {self.place} has no chat template. Give a plain prompt")
        usual = {"add_generation_prompt": True, **self.special.names}
        return render_chat(self.special.chat_template, messages, usual | variables)

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...] | None:
        """Bytes that each token of a byte-level tokenizer decodes to, by id; None for other tokenizers.

        The decoder treats a token as bytes if each of its characters stands for a byte. An added token "é" therefore
        decodes to the byte 0xE9, although it stands for two bytes of a text.
        """
        if (self._settings.get("decoder") or {}).get("type") != "ByteLevel":
            return None
        pieces = [b""] * self.size
        for token, number in self.backend.get_vocab(with_added_tokens=True).items():
            pieces[number] = (
                bytes(map(BYTE_LETTERS.__getitem__, token)) if BYTE_LETTERS.keys() >= set(token) else token.encode()
            )
        return tuple(pieces)

    @cached_property
    def max_token_bytes(self) -> int | None:
        """Number of bytes of the longest token of a byte-level tokenizer; None for other tokenizers."""
        return None if self.token_bytes is None else max(map(len, self.token_bytes))

    @cached_property
    def drops(self) -> bool:
        """True if the tokenizer has no token for unknown characters and so drops them."""
        model = self._settings["model"]
        has_unknown = model.get("unk_token") is not None or model.get("byte_fallback")
        return model.get("type") == "BPE" and not has_unknown and self.token_bytes is None

    def report(self, loss: LostBytes, name: str) -> None:
        """Warn of bytes of a text that the tokenizer cannot restore.

        loss: lost bytes of the text.
        name: name of the text.

        Errors: ValueError, in one line, if the tokenizer drops characters.
        """
        if loss.missing and self.drops:
            raise ValueError(
                f"the tokenizer has no token for {loss.letter!r} of {name} and no unk_token, so it would drop it; give "
                "it an unk_token, or use a byte-level one: tokenizer=bpe:4096"
            )
        loss.warn(name)

    def encode(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text; bytes that are not UTF-8 are read as U+FFFD.

        text: the text, or its bytes.
        """
        letters = text if isinstance(text, str) else text.decode(errors="replace")
        return self.backend.encode(letters, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> bytes:
        """Return the text of tokens, including special ones; ids outside the vocabulary are skipped.

        tokens: ids of the tokens.
        after: the tokens before them, whose text is left out. Some tokenizers drop the first space of a text, which
            belongs to the text if others stand before it.
        """
        if not after:
            return self._decode([token for token in tokens if 0 <= token < self.size]).encode()
        before, whole = self.decode(after), self.decode([*after, *tokens])
        return whole[len(before) :] if whole.startswith(before) else self.decode(tokens)  # a letter was cut

    @cached_property
    def pieces(self) -> tuple[bytes, ...]:
        """Text that each token adds when it is decoded after a letter: " the", "ing", "."."""
        size = self.size
        ids = range(size)
        alone = [text.encode() for text in self.backend.decode_batch([[token] for token in ids])]
        before = next((token for token in ids if alone[token].isalnum()), None)
        if before is None:
            return tuple(alone)
        pairs = [text.encode() for text in self.backend.decode_batch([[before, token] for token in ids])]
        first = alone[before]
        behind = [pair[len(first) :] if pair.startswith(first) else None for pair in pairs]
        return tuple(text if pair is None else pair for text, pair in zip(alone, behind, strict=True))

    @cached_property
    def joined_pieces(self) -> bytes:
        """Texts of all tokens (`pieces`), concatenated."""
        return b"".join(self.pieces)

    def table(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the bytes of all `pieces` with NO_BYTE at the end, and the index of each piece's first byte.

        device: device of the tensors.
        """
        if device not in self._tables:
            lengths = [0, *map(len, self.pieces), 1]
            data = [*self.joined_pieces, NO_BYTE]
            bytes_and_starts = torch.tensor(data, device=device), torch.tensor(lengths, device=device).cumsum(0)
            self._tables[device] = bytes_and_starts
        return self._tables[device]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Return the tokens of texts, with the number of bytes that each token restores.

        texts: texts to tokenize.
        """
        if self.token_bytes is None:
            encodings = self.backend.encode_batch(texts, add_special_tokens=False)
            return [self._encode_by_offsets(*pair) for pair in zip(texts, encodings, strict=True)]
        encode = getattr(self.backend, "encode_batch_fast", self.backend.encode_batch)
        encodings = encode(texts, add_special_tokens=False)
        return [self._encode_by_bytes(text, encoding.ids) for text, encoding in zip(texts, encodings, strict=True)]

    def _encode_by_bytes(self, text: str, ids: Sequence[int]) -> Encoding:
        """Encode a text with the byte length of each token as its width.

        If the tokens' bytes differ from the text, use `_encode_by_offsets`.
        """
        pieces, data = [self.token_bytes[number] for number in ids], text.encode()  # type: ignore[index]
        if b"".join(pieces) != data:  # normalisation has changed the text
            return self._encode_by_offsets(text, self.backend.encode(text, add_special_tokens=False))
        widths = numpy.fromiter(map(len, pieces), numpy.int64, len(pieces))
        return Encoding(numpy.array(ids, dtype=numpy.int64), widths, LostBytes(len(data)))

    def _encode_by_offsets(self, text: str, encoding: Any) -> Encoding:
        """Encode a text with widths that count the characters up to each token's end; the last token gets the rest.

        Characters that decoding does not restore count for no token.
        """
        ids, sizes = numpy.array(encoding.ids, dtype=numpy.int64), _sizes(text)
        ends = numpy.array([end for _, end in encoding.offsets], dtype=numpy.int64)
        if len(ends):
            ends = numpy.maximum.accumulate(ends)
            ends[-1] = len(text)
        restored = self._restored_letters(text, encoding.ids, [start for start, _ in encoding.offsets], ends)
        before = numpy.append(0, (sizes * restored).cumsum())
        loss = LostBytes(int(sizes.sum()))
        if not restored.all():
            unread = numpy.zeros(len(text), bool)
            for (start, end), number in zip(encoding.offsets, encoding.ids, strict=True):
                unread[start:end] |= number == self._unknown
            letter, lost = text[int(restored.argmin())], [int(place) for place in numpy.flatnonzero(~restored)]
            spaces = [place for place in lost if text[place].isspace()]
            rewritten = [place for place in lost if not unread[place] and self._is_rewritten(text[place])]
            missing, of_spaces, of_rewritten = (int(sizes[places].sum()) for places in (lost, spaces, rewritten))
            loss = LostBytes(loss.read, missing, letter, spaces=of_spaces, rewritten=of_rewritten)
        return Encoding(ids, numpy.diff(before[ends], prepend=0), loss)

    def _is_rewritten(self, letter: str) -> bool:
        """Return True for a letter that the tokenizer reads in another case, without accents, or in another form."""
        normalizer = self.backend.normalizer
        changed = letter if letter.isspace() or normalizer is None else normalizer.normalize_str(letter)
        return changed.strip() not in ("", letter)

    def _restored_letters(
        self, text: str, ids: Sequence[int], starts: Sequence[int], ends: Int[numpy.ndarray, " N"]
    ) -> Bool[numpy.ndarray, " letters"]:
        """Return True for each character of a text that its tokens restore, given their starts and ends."""
        if self._join_tokens(ids) in (text, f" {text}"):  # some tokenizers put a space before a text
            return numpy.ones(len(text), bool)
        restored = numpy.zeros(len(text), bool)
        # Token counts at which no character is cut.
        whole = numpy.flatnonzero(numpy.diff(ends, append=len(text) + 1)) + 1
        cuts = whole[numpy.searchsorted(whole, numpy.arange(GROUP, len(ids) + GROUP, GROUP)).clip(max=len(whole) - 1)]
        for first, last in pairwise(numpy.unique([0, *cuts]).tolist()):
            begin = max(first - BEFORE, 0)
            left, end = (int(starts[begin]), int(ends[first - 1])) if first else (0, 0)
            before, decoded = (
                self._join_tokens([n for n in ids[begin:at] if n != self._unknown]) for at in (first, last)
            )
            letters = text[left : ends[last - 1]]
            for block in SequenceMatcher(None, letters, decoded, autojunk=False).get_matching_blocks():
                # Characters that the previous group has counted already.
                passed = max(end - left - block.a, len(before) - block.b, 0)
                restored[left + block.a + passed : left + block.a + block.size] = True
        return restored

    @cached_property
    def _unknown(self) -> int | None:
        """Id of the token for unknown characters."""
        model = self._settings["model"]
        name = model.get("unk_token")
        return model.get("unk_id") if name is None else self.backend.token_to_id(name)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return cast(dict[str, Any], from_json(self.text))

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.backend.decode(tokens, skip_special_tokens=False)

    def _join_tokens(self, tokens: Sequence[int]) -> str:
        """Decode tokens; without a decoder, join their pieces.

        Decoding such pieces would insert spaces that the text does not have.
        """
        if self._settings.get("decoder") is None and self._settings["model"].get("type") in ("BPE", "Unigram"):
            return "".join(self.backend.id_to_token(number) or "" for number in tokens)
        return self._decode(tokens)

    def speaker(self, after: Sequence[int] = ()) -> Callable[[int], str]:
        """Return a function that takes the new tokens in turn and returns the text that each one adds.

        after: the tokens before them.
        """
        stream = tokenizers_package().decoders.DecodeStream(skip_special_tokens=False)

        def step(token: int) -> str:
            return (stream.step(self.backend, token) or "") if 0 <= token < self.size else ""

        for token in after:
            step(token)
        return step


def _sizes(text: str) -> Int[numpy.ndarray, " letters"]:
    """Return the number of UTF-8 bytes of each character."""
    data = numpy.frombuffer(text.encode(), dtype=numpy.uint8)
    return numpy.diff(numpy.flatnonzero((data & 0xC0) != 0x80), append=len(data))


def _byte_letters() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary.

    A printable byte is its own character; the other bytes use the characters from 256 on.
    """
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unprinted = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + n): byte for n, byte in enumerate(unprinted)}


BYTE_LETTERS = _byte_letters()


def tokenizers_package() -> Any:
    """Import the package `tokenizers`, an optional dependency.

    Errors: ImportError, in one line, if it is missing.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "a tokenizer needs the package tokenizers, which is not installed; run `pip install '.[tokenizers]'` in "
            "kinformer's folder"
        ) from error
    return tokenizers

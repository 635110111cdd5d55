"""Tokenizers of others: what they lose is counted and told, and what a file sets does not change how much is read."""

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tokenizers import Tokenizer as Made
from tokenizers import decoders, models, normalizers, pre_tokenizers

from kinformer.checkpoint.checkpoint import save
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from kinformer.cli.__main__ import run
from kinformer.decoding.generate import generate
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.text import read
from kinformer.lab.train.evaluate import evaluate
from kinformer.members.gpt import gpt

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
LETTERS = "abcdefghijklmnopqrstuvwxyz .\n"
PLAIN = "the cat sat on the mat. a dog\nran off.\n"
STRANGE = "The  cat naïve\n東京 cafe\u0301 \N{GRINNING FACE} end.\n"
END = "<|endoftext|>"


def byte_level(prefix: bool = False) -> Made:
    tokenizer = Made(models.BPE({letter: n for n, letter in enumerate(ALPHABET)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer


def composing() -> Made:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def with_letters() -> Made:
    """Added tokens: "é" decodes to the one byte that it stands for in the vocabulary, "中" to its own three."""
    tokenizer = byte_level()
    tokenizer.add_tokens(["é", "中"])
    return tokenizer


def few_letters(unknown: bool = True) -> Made:
    """A BPE of letters; without a token for the others it drops these."""
    vocab = {letter: n for n, letter in enumerate([*LETTERS, "[UNK]"][: len(LETTERS) + unknown])}
    return Made(models.BPE(vocab, [], unk_token="[UNK]" if unknown else None))


def lowered() -> Made:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def words() -> Made:
    pieces = ["[UNK]", *LETTERS.strip(), *(f"##{letter}" for letter in LETTERS.strip()), "the", "cat", "##at"]
    tokenizer = Made(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    return tokenizer


def meta_space() -> Made:
    """As Llama's: a space is a letter of its own, and what is unknown is its bytes."""
    vocab = {token: n for n, token in enumerate([*(f"<0x{n:02X}>" for n in range(256)), *LETTERS.replace(" ", "▁")])}
    tokenizer = Made(models.BPE(vocab, [], byte_fallback=True, unk_token="<0x00>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def learned() -> Made:
    return train_tokenizer([PLAIN, STRANGE], 280).backend


ZOO: dict[str, Callable[[], Made]] = {
    "learned": learned,
    "byte-level": byte_level,
    "byte-level with a space before": lambda: byte_level(True),
    "composing": composing,
    "added letters": with_letters,
    "few letters": few_letters,
    "lowered": lowered,
    "words": words,
    "meta space": meta_space,
}
# bytes that each loses of a text, counted by hand, and the first letter of these
LOST = {
    "composing": (STRANGE, len("e\u0301".encode()), "e"),  # é comes back as another letter than the two that were read
    "lowered": (STRANGE, len("T"), "T"),
    "added letters": ("caf\u00e9 中 naïve\n", len("\u00e9".encode()), "\u00e9"),
    "few letters": (STRANGE, len("Tï東京\u0301\N{GRINNING FACE}".encode()), "T"),
    # a capital, the second of two spaces, two newlines, an unknown word, and one of the spaces around it
    "words": ("The  cat\nsat 東京 a\n", len("T") + len(" ") + len("\n\n") + len("東京".encode()) + len(" "), "T"),
}


def saved(tokenizer: Made, path: Path) -> str:
    tokenizer.save(str(path))
    return str(path)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("text", [PLAIN, STRANGE, f"{PLAIN}{END}{STRANGE}", STRANGE * 30], ids="abcd")
def test_every_byte_is_of_a_token_or_lost(name: str, text: str) -> None:
    tokenizer = Tokenizer(ZOO[name]().to_str())
    (encoded,) = tokenizer.encode_batch([text])
    assert encoded.tokens.tolist() == tokenizer.encode(text.encode()) and encoded.widths.min() >= 0
    assert encoded.widths.sum() + encoded.loss.missing == encoded.loss.read == len(text.encode())
    letters = iter(tokenizer.decode(encoded.tokens.tolist()).decode())
    lossy = not all(letter in letters for letter in text)  # in this order
    assert bool(encoded.loss.missing) == lossy and (encoded.loss.letter in text if lossy else not encoded.loss.letter)
    assert lossy <= (name in LOST)


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("times", [1, 40])
def test_what_is_lost_is_what_one_counts_by_hand(name: str, times: int) -> None:
    text, lost_bytes, letter = LOST[name]
    (encoded,) = Tokenizer(ZOO[name]().to_str()).encode_batch([text * times])
    assert (encoded.loss.missing, encoded.loss.letter) == (lost_bytes * times, letter)


@pytest.mark.parametrize("name", ["learned", "byte-level", "meta space"])
def test_a_token_is_as_wide_as_its_own_bytes(name: str) -> None:
    """Of ASCII each token's letters are its bytes; the bytes of a wide letter are tokens of one byte each."""
    tokenizer = ZOO[name]()
    (encoded,) = Tokenizer(tokenizer.to_str()).encode_batch([PLAIN])
    pieces = [tokenizer.id_to_token(number) for number in encoded.tokens.tolist()]
    expected = list(map(len, pieces))
    if name == "meta space":  # the space before the text and the first letter are one byte
        expected[:2] = [1, 0]
    assert encoded.widths.tolist() == expected
    if name != "meta space":
        (wide,) = Tokenizer(byte_level().to_str()).encode_batch(["東"])
        assert wide.widths.tolist() == [1, 1, 1]


def call_with_warnings(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call gives, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("name", ZOO)
def test_what_a_file_sets_changes_nothing_that_is_read(name: str, tmp_path: Path) -> None:
    plain, changed, settings = ZOO[name](), ZOO[name](), ["truncation", "padding"]
    changed.enable_truncation(3)
    changed.enable_padding(length=5)
    if isinstance(changed.model, models.BPE):
        changed.model.dropout = 0.5
        settings.append("dropout")
    (tmp_path / "a.txt").write_text(PLAIN * 30)
    texts = []
    for tokenizer in (plain, changed):
        where = saved(tokenizer, tmp_path / "tokenizer.json")
        text, messages = call_with_warnings(lambda: read(f"{tmp_path}/a.txt", tokenizer=where))  # noqa: B023
        messages = [line for line in messages if "switched off" in line]
        expected = f"{where} sets {' and '.join(settings)}, which is switched off: each text is tokenized whole"
        assert messages == [expected] * (tokenizer is changed)
        texts.append(text)
    for split in ("train", "valid", "test"):
        first, other = (text.part(split) for text in texts)
        assert torch.equal(first.tokens, other.tokens) and first.widths is not None and other.widths is not None
        assert torch.equal(first.widths, other.widths) and len(first.tokens) > 5


@pytest.mark.parametrize("name", LOST)
def test_bits_per_byte_are_of_what_is_not_lost_and_the_loss_is_said(name: str, tmp_path: Path) -> None:
    text, lost_bytes, letter = LOST[name]
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text(text * 40)
    where = saved(ZOO[name](), tmp_path / "tokenizer.json")
    for _ in range(2):  # made, and read from the cache
        loaded, messages = call_with_warnings(
            lambda: read(f"{tmp_path}/a.txt", valid=f"{tmp_path}/b.txt", tokenizer=where)
        )
        size = len(text.encode())
        share = f"{41 * lost_bytes:,} of {41 * size:,} bytes ({lost_bytes / size:.2%})"
        expected = f"the tokenizer does not restore {share} of text={tmp_path}/a.txt, "
        assert [line[: len(expected)] for line in messages] == [expected]
        assert f"first {letter!r}" in messages[0] and "\n" not in messages[0]
    part, model = loaded.part("valid"), gpt(d=8, depth=1, heads=2, vocab=loaded.vocab, length=64)
    torch.nn.init.zeros_(model.embedding.weight)
    bits = math.log2(loaded.vocab) * (len(part.tokens) - 1)
    first = int(part.widths[0])
    assert evaluate(model, part, 16).value == pytest.approx(bits / (40 * (size - lost_bytes) - first), rel=1e-5)
    assert loaded.part("train").bytes == size - lost_bytes


@pytest.mark.parametrize("kind", ["text", "pairs", "labelled", "multitask"])
def test_letters_that_would_be_dropped_are_refused(kind: str, tmp_path: Path) -> None:
    where = saved(few_letters(False), tmp_path / "tokenizer.json")
    (tmp_path / "data").mkdir()
    rows = "".join(f"{'yes' if n % 2 else 'no'}\ta cat\na{n % 2}\t{'dog ' * n}T end\n" for n in range(1, 40))
    for name in "ab":
        (tmp_path / "data" / name).write_text(rows if kind != "text" else rows.replace("\t", " "))
    at = tmp_path / "data" if kind == "multitask" else tmp_path / "data/a"
    with pytest.raises(
        ValueError, match="has no token for '[T01]' of .* and no unk_token, so it would drop it"
    ) as caught:
        read_spec(f"{kind}={at},tokenizer={where}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["pairs", "labelled", "multitask"])
def test_rows_are_looked_at_as_texts_are(kind: str, tmp_path: Path) -> None:
    where = saved(few_letters(), tmp_path / "tokenizer.json")
    (tmp_path / "data").mkdir()
    for task in "ab":
        (tmp_path / "data" / task).write_text("".join(f"{'yes' if n % 2 else 'no'}\ta cat {n}\n" for n in range(40)))
    at = tmp_path / "data" if kind == "multitask" else tmp_path / "data/a"
    _, (message,) = call_with_warnings(lambda: read_spec(f"{kind}={at},tokenizer={where}"))
    lost_bytes, read_ = sum(len(str(n)) for n in range(40)), sum(len(f"a cat {n}") for n in range(40))
    if kind == "pairs":
        read_ += 20 * len("yesno")
    times = 2 if kind == "multitask" else 1
    assert (
        message.startswith(f"the tokenizer does not restore {times * lost_bytes:,} of {times * read_:,} bytes")
        and "first '" in message
    )
    (tmp_path / "data/b").write_text(
        "".join(f"{'yes' if n % 2 else 'no'}\ta cat {n}\n" for n in range(40)) + "no\t  \n"
    )
    where = saved(words(), tmp_path / "tokenizer.json")
    spec = f"{kind}={at if kind == 'multitask' else tmp_path / 'data/b'},tokenizer={where}"
    with pytest.raises(ValueError, match="line 41 of .* has a text for which the tokenizer returns no token") as caught:
        read_spec(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ZOO)
def test_a_text_is_the_same_told_at_once_or_token_by_token(name: str) -> None:
    tokenizer = Tokenizer(ZOO[name]().to_str())
    tokens = tokenizer.encode(f"{PLAIN}{END} {PLAIN}".encode())
    speak = tokenizer.speaker()
    assert "".join(map(speak, tokens)).encode() == tokenizer.decode(tokens)
    if "byte-level" in name:
        assert END.encode() in tokenizer.decode(tokens)


def test_a_special_token_ends_a_text_and_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The token that the model writes third is the special one, in place of the letter that it was."""
    model, letters = gpt(d=16, depth=1, heads=2, vocab=257), list(ALPHABET)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4, generator=torch.Generator().manual_seed(1))
    begun = torch.tensor([[letters.index("a")]])
    first, second, third = generate(model, begun, 3, temperature=0)[0, 1:].tolist()
    assert third not in (first, second, int(begun))
    tokenizer = Made(
        models.BPE({letters[n] if n < 256 else letters[third]: n for n in range(257) if n != third} | {END: third}, [])
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    model.tokenizer = Tokenizer(tokenizer.to_str())
    save(model, tmp_path)
    words = ["generate", str(tmp_path), "--prompt", "a", "--tokens", "9", "--temperature", "0"]
    stopped = [*words, "--stop", END]
    assert run([*words, "--json"]) == run([*stopped, "--json"]) == 0
    free, ended = (json.loads(line)["texts"][0] for line in capsys.readouterr().out.splitlines())
    assert ended["tokens"] == free["tokens"][:3] and ended["ended"] and not free["ended"]
    assert ended["text"].endswith(END) and free["text"].startswith(ended["text"])
    (tmp_path / "prompts").write_text("a\na\n")
    assert run(stopped) == run([*words[:2], "--prompts", f"{tmp_path}/prompts", *words[4:], "--stop", END]) == 0
    whole = "a" + ended["text"]
    assert capsys.readouterr().out == f"{whole}\n[1]\n{whole}\n[2]\n{whole}\n"


def test_the_kinds_of_bytes_that_are_not_restored_are_counted() -> None:
    """WordPiece lower-cases, drops accents and line breaks, and reads a word with an unknown letter as [UNK]."""
    vocab = {word: n for n, word in enumerate(["[UNK]", "the", "cat", "cafe", ".", "a"])}
    backend = Made(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    (encoding,) = Tokenizer(backend.to_str()).encode_batch(["The Cat  \u0416\u0436 caf\u00e9"])
    loss = encoding.loss
    # T and C are one byte each, and the letter with an accent is two. The text has one space without the unknown word,
    # and three with it. The unknown word has two letters of two bytes.
    assert (loss.rewritten, loss.spaces, loss.unread) == (4, 2, 4) and loss.missing == 10
    with pytest.warns(UserWarning, match="4 in letters without their case or accents, 2 of spaces, 4 without a token"):
        loss.warn("the text")


def test_a_prompt_that_is_read_as_another_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = gpt(d=8, depth=1, heads=2, vocab=len(LETTERS))
    model.tokenizer = Tokenizer(few_letters(False).to_str())
    save(model, tmp_path)
    assert run(["generate", str(tmp_path), "--prompt", "The cat", "--tokens", "1"]) == 0
    loss = "1 of 7 bytes (14.29%) of the input texts, first 'T' in 'The cat': 1 without a token"
    consequence = "the model does not read the bytes without a token"
    assert f"warning: the tokenizer does not restore {loss}; {consequence}" in capsys.readouterr().err.splitlines()
    (tmp_path / "text").write_text(STRANGE)
    assert run(["read", str(tmp_path), f"{tmp_path}/text", "--save", f"{tmp_path}/state"]) == 2
    assert f"the tokenizer has no token for 'T' of {tmp_path}/text and no unk_token" in capsys.readouterr().err
    model = gpt(d=8, depth=1, heads=2, vocab=257)
    model.tokenizer = Tokenizer(lowered().to_str())
    save(model, tmp_path)
    assert run(["read", str(tmp_path), f"{tmp_path}/text", "--save", f"{tmp_path}/state"]) == 0
    assert f"warning: the tokenizer does not restore 1 of {len(STRANGE.encode())} bytes" in capsys.readouterr().err


def test_the_vocabulary_is_counted_once() -> None:
    tokenizer = Tokenizer(byte_level().to_str())
    wrapped = Mock(wraps=tokenizer.backend)
    tokenizer.__dict__["backend"] = wrapped
    tokens = tokenizer.encode(PLAIN.encode())
    for token in tokens:
        assert tokenizer.decode([token])
    speak = tokenizer.speaker()
    tokenizer.encode_batch([PLAIN, STRANGE])
    assert speak(-1) == "" and tokenizer.size == 257 and wrapped.decode.call_count == len(tokens)
    assert wrapped.get_vocab.call_count + wrapped.get_added_tokens_decoder.call_count <= 3

"""Tokenizers of other libraries: chats, ends and begins of texts, SentencePiece, old files, and no tokenizer."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import kinformer as kf
from kinformer.bridge.gguf_tokenizer import gguf_tokenizer
from kinformer.bridge.hf_tokenizer import byte_tokenizer
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.checkpoint.tokenizer_choice import parse_tokenizer
from kinformer.cli.__main__ import run
from kinformer.decoding.generate import end_tokens
from tests.bridge.test_hf_folder import changed

MARKS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"]
CHATML = """{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}
    {%- endif %}
{{ '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}"""
LLAMA = """{{- bos_token }}
{%- if not tools is none %}
    {{- 'Tools: ' + tools | tojson(indent=2) }}
{%- endif %}
{%- set ns = namespace(turn=0) %}
{{- 'Today: ' + strftime_now('%Y') + '\\n' }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content + eos_token }}{%- endgeneration %}
        {%- continue %}
    {%- endif %}
    {%- set ns.turn = ns.turn + 1 %}
    {{- ns.turn ~ '. ' ~ message.role ~ ': ' ~ message['content'] ~ '\\n' }}
{%- endfor %}
{%- if pad_token is defined %}{{ pad_token }}{% endif %}"""
MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/...') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}{{ message['content'] + eos_token + ' ' }}{% endif %}{% endfor %}"""
TALK = [
    {"role": "user", "content": "Who sat on the mat? <b>é</b>"},
    {"role": "assistant", "content": "the cat"},
    {"role": "user", "content": " and the dog?"},
]


def folder_with(folder: Path, template: str | None = None, **settings: Any) -> Path:
    """A tiny Llama that was saved by transformers, with a tokenizer that puts <s> before a text."""
    letters = Tokenizer(models.BPE())
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(mark, special=True) for mark in MARKS],
        show_progress=False,
    )
    letters.train_from_iterator(["the cat sat on the mat. " * 20], trainer)
    letters.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=letters, bos_token="<s>", eos_token="</s>", chat_template=template, **settings
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=290,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=0.5,
        bos_token_id=0,
        eos_token_id=1,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("template", [CHATML, LLAMA, MISTRAL], ids=["chatml", "llama", "mistral"])
def test_a_chat_is_that_of_transformers_also_after_saving(template: str, tmp_path: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder_with(tmp_path / "theirs", template))
    model = kf.load(tmp_path / "theirs")
    kf.save(model, tmp_path / "ours")
    for tokenizer in (model.tokenizer, kf.load(tmp_path / "ours").tokenizer, parse_tokenizer(str(tmp_path / "ours"))):
        for messages in (TALK[:1], TALK):
            want = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            assert tokenizer.chat(messages) == want
            ids = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
            assert tokenizer.encode(want) == ids
        plain: dict[str, Any] = {"add_generation_prompt": False, "tools": [{"name": "é<"}]}
        assert tokenizer.chat(TALK, **plain) == theirs.apply_chat_template(TALK, tokenize=False, **plain)


def test_an_empty_field_of_a_message_is_left_out_as_in_transformers(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}{{ m.content is defined }}{{ m.content }}{% endfor %}"
    theirs = transformers.AutoTokenizer.from_pretrained(folder_with(tmp_path, template))
    messages: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": []}]
    text = kf.load(tmp_path).tokenizer.chat(messages)
    assert text == theirs.apply_chat_template(messages, tokenize=False) == "assistantFalse"


def test_a_template_in_its_own_file_or_a_list_is_read(tmp_path: Path) -> None:
    folder_with(tmp_path, CHATML)
    want = kf.load(tmp_path).tokenizer.chat(TALK)
    (tmp_path / "chat_template.jinja").unlink()
    path = tmp_path / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": named}))
    assert kf.load(tmp_path).tokenizer.chat(TALK) == want
    theirs = transformers.AutoTokenizer.from_pretrained(folder_with(tmp_path / "again", CHATML))
    model = kf.load(tmp_path)
    model.tokenizer = theirs
    kf.save(model, tmp_path / "given")
    assert kf.load(tmp_path / "given").tokenizer.chat(TALK) == want


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "is unsafe|access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ lipsum.__globals__ }}", "lipsum' is undefined"),
        ("{% for %}", "Expected an expression"),
        (MISTRAL, "Roles must alternate"),
    ],
)
def test_a_template_cannot_run_code_and_its_faults_are_one_line(template: str, message: str, tmp_path: Path) -> None:
    tokenizer = kf.load(folder_with(tmp_path, template)).tokenizer
    with pytest.raises(ValueError, match=f"the chat template failed on .*({message})") as error:
        tokenizer.chat([{"role": "assistant", "content": "a"}])
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="cannot format the chat: expected a list of dicts such as"):
        tokenizer.chat([{"role": object()}])
    with pytest.raises(ValueError, match="the chat is empty"):
        tokenizer.chat([])


def test_generation_ends_at_the_ends_of_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_with(tmp_path, CHATML)
    model, prompt = kf.load(tmp_path), torch.tensor([[0, 9, 40]])
    assert model.tokenizer.ends == (1,) and model.tokenizer.begins == (0,)
    row = kf.generate(model, prompt, 12, temperature=0, stop=-1)[0, 3:].tolist()
    ends = [row[6], row[4]]
    first = min(row.index(end) for end in ends)
    changed_generation(tmp_path, ends)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    want = theirs.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=2)[0, 3:].tolist()
    kf.save(kf.load(tmp_path), tmp_path / "ours")
    for folder in (tmp_path, tmp_path / "ours"):
        model = kf.load(folder)
        new = kf.generate(model, prompt, 12, temperature=0)[0, 3:]
        assert new[new >= 0].tolist() == row[: first + 1] == want
        assert kf.generate(model, prompt, 12, temperature=0, stop=-1)[0, 3:].tolist() == row
        never = kf.generate(model, prompt, 12, temperature=0, stop=lambda new: torch.zeros(1, dtype=torch.bool))
        assert torch.equal(never[0, 3:], new)
        text = model.tokenizer.decode([9, 40]).decode()
        capsys.readouterr()
        assert run(["generate", str(folder), "--prompt", text, "--tokens", "12", "--temperature", "0", "--json"]) == 0
        (answer,) = json.loads(capsys.readouterr().out)["texts"]
        assert answer["tokens"] == row[:first] and answer["ended"]
    assert run(["generate", str(tmp_path), "--prompt", text, "--tokens", "12", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == f"{text}{model.tokenizer.decode(row[:first]).decode(errors='replace')}\n"


def changed_generation(folder: Path, ends: Any) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": ends}))


def test_a_question_is_answered_by_the_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_with(tmp_path / "chat", MISTRAL)
    words = ["generate", str(tmp_path / "chat"), "--tokens", "3", "--temperature", "0"]
    assert run([*words, "--chat", "the cat"]) == 0
    answer = capsys.readouterr().out
    prompt = kf.load(tmp_path / "chat").tokenizer.chat([{"role": "user", "content": "the cat"}])
    assert prompt.startswith("<s>") and run([*words, "--prompt", prompt]) == 0
    assert capsys.readouterr().out == f"{prompt}{answer}"
    assert run([*words, "--chat", "the cat", "--prompt", "a"]) == 2
    assert "--chat is the whole text that the model reads" in capsys.readouterr().err
    folder_with(tmp_path / "plain")
    assert run(["generate", str(tmp_path / "plain"), "--chat", "a"]) == 2
    assert "tokenizer.json has no chat template. Give a plain prompt" in capsys.readouterr().err


def test_training_and_measuring_keep_the_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs, text = folder_with(tmp_path / "theirs", CHATML), tmp_path / "book.txt"
    text.write_text("the cat sat on the mat. " * 60)
    model = kf.load(theirs)
    keywords = [f"{name}={value}" for name, value in model.member.keywords.items() if value is not None]
    words = ["train", "llama", *keywords, "--data", f"text={text},tokenizer=hf:{theirs}", "--from", f"hf:{theirs}"]
    words += ["--steps", "1", "--length", "16", "--batch", "2", "--out", str(tmp_path / "run")]
    assert run(words) == 0, capsys.readouterr().err
    tuned = kf.load(tmp_path / "run")
    assert tuned.tokenizer.special == model.tokenizer.special and tuned.tokenizer.sha256 == model.tokenizer.sha256
    assert run(["evaluate", str(theirs), "--data", f"text={text}"]) == 0


def _without_tokenizer(folder: Path) -> Path:
    folder_with(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    return folder


@pytest.mark.parametrize("saved", [False, True])
def test_without_a_tokenizer_no_text_is_read_as_bytes(
    saved: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, text = _without_tokenizer(tmp_path / "theirs"), tmp_path / "book.txt"
    text.write_text("the cat sat on the mat. " * 60)
    if saved:
        kf.save(kf.load(folder), tmp_path / "ours")
        folder = tmp_path / "ours"
    model = kf.load(folder)
    assert kf.generate(model, [[5, 9]], 3, temperature=0).shape == (1, 5)
    assert model.tokenizer is None and model.foreign_ends == (1,), "the ends of generation_config.json are ids"
    capsys.readouterr()
    for words in (["generate", str(folder), "--prompt", "a"], ["evaluate", str(folder), "--data", f"text={text}"]):
        assert run(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "unknown tokenizer, so it cannot read text: expected a tokenizer.json in its folder" in line
    with pytest.raises(ValueError, match="cannot read text"):
        kf.look(model, "the cat")


def test_256_tokens_without_a_tokenizer_are_bytes(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    assert kf.load(tmp_path).tokenizer is None


def _llama_of_bytes(folder: Path) -> Tokenizer:
    """Save a Llama with 257 tokens that no file gives a meaning; return a tokenizer of bytes."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.LlamaConfig(vocab_size=257, **sizes, bos_token_id=None, eos_token_id=None)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return Tokenizer.from_str(byte_tokenizer())


def test_bytes_with_an_end_keep_their_tokenizer(tmp_path: Path) -> None:
    tokenizer = _llama_of_bytes(tmp_path)
    tokenizer.add_special_tokens(["<|end|>"])
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>").save_pretrained(tmp_path)
    model = kf.load(tmp_path)
    assert model.tokenizer.encode("a<|end|>") == [97, 256] and end_tokens(model) == (256,)


STEPS = {
    "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
    "post_processor": processors.TemplateProcessing(single="! $A", special_tokens=[("!", 33)]),
    "normalizer": normalizers.Lowercase(),
}
SETTINGS = {"chat template": {"chat_template": CHATML}, "end": {"eos_token": "!"}}


@pytest.mark.parametrize("changed_part", ["none", *STEPS, *SETTINGS])
def test_only_an_equal_tokenizer_of_bytes_is_left_out(changed_part: str, tmp_path: Path) -> None:
    tokenizer = _llama_of_bytes(tmp_path)
    if changed_part in STEPS:
        setattr(tokenizer, changed_part, STEPS[changed_part])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SETTINGS.get(changed_part, {})))
    assert (kf.load(tmp_path).tokenizer is None) == (changed_part == "none")


@pytest.mark.parametrize("change", [[], {"names": {"eos_token": 1}, "ends": [], "chat_template": None}, {"ends": [1]}])
def test_damaged_special_tokens_are_refused(change: Any, tmp_path: Path) -> None:
    kf.save(kf.load(folder_with(tmp_path / "theirs")), tmp_path / "ours")
    changed(tmp_path / "ours", special_tokens=change)
    with pytest.raises(CheckpointError, match="config.json is damaged: got special_tokens=.*expected names, ends"):
        kf.load(tmp_path / "ours")


def _bert(folder: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "on", ".", "e"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    return folder


def _gpt2(folder: Path) -> Path:
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.GPT2Config(vocab_size=len(pieces), n_embd=16, n_layer=1, n_head=2, n_positions=32, **ends)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("make", [_bert, _gpt2])
def test_files_of_slow_tokenizers_are_converted(make: Callable[[Path], Path], tmp_path: Path) -> None:
    model = kf.load(make(tmp_path))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("The cats sat on é.", "the the", "[MASK] <|endoftext|>"):
        assert model.tokenizer.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert model.tokenizer.special_token("mask_token") == theirs.mask_token_id
    assert model.tokenizer.special_token("eos_token") == theirs.eos_token_id
    if make is _bert:
        assert model.mask == 4
    kf.save(model, tmp_path / "ours")
    assert kf.load(tmp_path / "ours").tokenizer.encode("the") == model.tokenizer.encode("the")
    assert parse_tokenizer(str(tmp_path)).sha256 == model.tokenizer.sha256  # type: ignore[union-attr]


def test_files_that_cannot_be_converted_are_warned_of(tmp_path: Path) -> None:
    _gpt2(tmp_path)
    (tmp_path / "vocab.json").write_text("{")
    with pytest.warns(UserWarning, match="vocab.json cannot be converted to a tokenizer.json"):
        model = kf.load(tmp_path)
    assert model.tokenizer is None
    with pytest.raises(ValueError, match="cannot read text"):
        kf.score(model, "a")


def test_a_package_that_a_conversion_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_a_package(*arguments: Any, **keywords: Any) -> None:
        raise ImportError("\nAlbertTokenizer requires SentencePiece, which is missing.\nCheckout ...\n")

    _gpt2(tmp_path)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", needs_a_package)
    with pytest.warns(UserWarning, match=r"\(AlbertTokenizer requires SentencePiece, which is missing\.\);"):
        assert kf.load(tmp_path).tokenizer is None


PIECES = ["▁", "t", "h", "e", "c", "a", "s", "th", "▁th", "▁the", "at", "ca", "cat", "▁c", "▁cat", "s▁", "é", "▁▁"]
SCORES = [-9.0, -9.1, -9.2, -9.3, -9.4, -9.5, -9.6, -1.0, -1.5, -0.5, -2.0, -2.5, -0.7, -1.2, -3.0, -0.2, -9.7, -0.1]
FACTS: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<|end|>", *(f"<0x{n:02X}>" for n in range(256)), *PIECES],
    "tokenizer.ggml.scores": [0.0] * 260 + SCORES,
    "tokenizer.ggml.token_type": [2, 3, 3, 4] + [6] * 256 + [1] * len(PIECES),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.eot_token_id": 3,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.chat_template": CHATML,
}
TEXTS = ["the cats", " the  cats ", "cathecat", "é ü 猫 🐈", "the\n\tcat", "", "a", "cats the", "▁the x"]


def merged(text: str) -> list[int]:
    """Tokens of a text by llama.cpp's rule: of all neighbours, the pair with the likeliest union is joined first."""
    ids = {piece: number for number, piece in enumerate(FACTS["tokenizer.ggml.tokens"])}
    parts = list(f" {text}".replace(" ", "▁")) if text else []
    while True:
        pairs = [a + b for a, b in pairwise(parts)]
        unions = [(SCORES[PIECES.index(pair)], -n) for n, pair in enumerate(pairs) if pair in PIECES]
        if not unions:
            return [n for part in parts for n in ([ids[part]] if part in ids else [b + 4 for b in part.encode()])]
        at = -max(unions)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.mark.parametrize("text", TEXTS)
def test_sentence_pieces_are_merged_as_llama_cpp_merges_them(text: str) -> None:
    tokenizer = gguf_tokenizer(FACTS, Path("a.gguf"))
    assert tokenizer is not None
    assert tokenizer.encode(text) == merged(text)
    assert tokenizer.decode(tokenizer.encode(text)).decode() == text.replace("▁", " ")
    assert tokenizer.decode(tokenizer.encode(text)[1:], tokenizer.encode(text)[:1]) == b"".join(
        [tokenizer.decode(tokenizer.encode(text))[len(tokenizer.decode(tokenizer.encode(text)[:1])) :]]
    )


def test_sentence_pieces_are_those_of_transformers() -> None:
    tokenizer = gguf_tokenizer(FACTS, Path("a.gguf"))
    assert tokenizer is not None
    assert tokenizer.begins == (1,) and tokenizer.ends == (2, 3) and tokenizer.chat(TALK).startswith("<|im_start|>")
    vocab = {piece: number for number, piece in enumerate(FACTS["tokenizer.ggml.tokens"])}
    scores = dict(zip(PIECES, SCORES, strict=True))
    from transformers.convert_slow_tokenizer import generate_merges

    merges = generate_merges({piece: vocab[piece] for piece in PIECES}, scores)
    theirs = transformers.LlamaTokenizerFast(vocab=vocab, merges=merges, legacy=True)
    theirs.add_tokens(["<|end|>"])
    for text in (*(text for text in TEXTS if text[:1] not in (" ", "▁")), "cat<|end|>cat", "<s>the</s>cat"):
        assert tokenizer.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(tokenizer.encode(text)).decode() == theirs.decode(tokenizer.encode(text))

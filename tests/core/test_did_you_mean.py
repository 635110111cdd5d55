"""Suggestions for unknown names: a synonym, else the nearest name, else all names or a text."""

import re
from inspect import unwrap
from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.core.did_you_mean import find_synonym, suggest_names
from kinformer.core.vocabulary import check_token_rows
from kinformer.members.gpt import gpt
from kinformer.models.classifier import _tokens_and_labels

NAMES = ("pairs", "images", "text")


@pytest.mark.parametrize(
    ("name", "names", "otherwise", "expected"),
    [
        ("image", NAMES, None, "; the nearest is 'images'"),
        ("pears", NAMES, "; ask for help", "; the nearest is 'pairs'"),
        ("xylophone", NAMES, None, "; there are images, pairs, text"),
        ("xylophone", NAMES, "; ask for help", "; ask for help"),
        ("image", (), None, "; there are none"),
        ("n_layer", ("depth", "d_layer"), None, "; use 'depth' instead"),
        ("n_layer", ("n_layers", "d"), None, "; the nearest is 'n_layers'"),
    ],
)
def test_a_synonym_or_the_nearest_name_is_suggested(
    name: str, names: tuple[str, ...], otherwise: str | None, expected: str
) -> None:
    assert suggest_names(name, iter(names), otherwise) == expected


KEYWORDS = {
    # Hugging Face
    "n_layer": "depth",
    "num_hidden_layers": "depth",
    "n_head": "heads",
    "num_key_value_heads": "key_heads",
    "hidden_size": "d",
    "intermediate_size": "hidden",
    "vocab_size": "vocab",
    "max_position_embeddings": "length",
    "rope_theta": "base",
    "hidden_act": "activation",
    "learning_rate": "lr",
    "num_train_epochs": "steps",
    "per_device_train_batch_size": "batch",
    "gradient_accumulation_steps": "accumulate",
    "max_grad_norm": "clip",
    "weight_decay": "decay",
    "warmup_steps": "warmup",
    "lr_scheduler_type": "schedule",
    "eval_dataset": "valid",
    "output_dir": "out",
    "max_new_tokens": "steps",
    "max_length": "length",
    "num_beams": "beam",
    "eos_token_id": "stop",
    "past_key_values": "state",
    # x-transformers
    "dim": "d",
    "num_tokens": "vocab",
    "max_seq_len": "length",
    "attn_dropout": "dropout",
    "attn_kv_heads": "key_heads",
    "dim_head": "head_dim",
    "rotary_pos_emb": "position",
    "attn_flash": "impl",
    # PyTorch
    "d_model": "d",
    "nhead": "heads",
    "dim_feedforward": "hidden",
    "norm_first": "norm",
    "layer_norm_eps": "eps",
    "num_encoder_layers": "depth",
}


@pytest.mark.parametrize("word", KEYWORDS)
def test_words_of_other_libraries_have_a_name_here(word: str) -> None:
    assert find_synonym(word, set(KEYWORDS.values())) == KEYWORDS[word]


@pytest.mark.parametrize(
    ("function", "word", "end"),
    [
        ("generate", "max_length", "use 'steps' instead, which does not count the prompt"),
        ("generate", "no_repeat_ngram_size", "kinformer has none; temperature, top_k and top_p choose tokens"),
        ("generate", "min_new_tokens", "kinformer has none; temperature"),
        ("generate", "generator", "use 'seed' instead"),
        ("generate", "use_cache", "use 'recompute' instead: recompute=True reads the whole row at each step"),
        ("fit", "eval_steps", "use 'measures' instead: the largest number of measurements"),
        ("fit", "report_to", "use 'wandb' instead"),
        ("fit", "logging_steps", "use 'on_metrics' instead: a function that gets the numbers"),
        ("fit", "data_collator", "batches come ready from a DataLoader"),
        ("fit", "processing_class", "use 'tokenizer' instead"),
        ("fit", "from_", "`kinformer train` with --from FOLDER starts from trained weights"),
        ("bert_classifier", "num_labels", "use 'classes' instead"),
        ("gpt", "tie_word_embeddings", "use 'tie' instead"),
        ("gpt", "attn_implementation", "each attention call takes the fastest kernel itself"),
        ("generate", "pad_token_id", "-1 marks padding, on the left of a prompt"),
        ("generate", "output_scores", "generate returns only tokens; on_tokens gets"),
        ("generate", "input_ids", "use 'tokens' instead: -1 marks padding, on the left"),
        ("generate", "num_return_sequences", "repeat the prompt: tokens.repeat(n, 1)"),
        ("generate", "top_q", "the nearest is 'top_p'"),
        ("fit", "num_epochs", "use 'steps' instead: steps = epochs * training tokens / (batch * length)"),
        ("fit", "max_steps", "use 'steps' instead"),
        ("fit", "train_dataset", "use 'data' instead"),
        ("fit", "bf16", "use 'precision' instead"),
        ("fit", "gradient_checkpointing", "use 'checkpointing' instead"),
        ("fit", "disable_tqdm", "use 'progress' instead"),
        ("gpt", "window_size", "a window is a pattern, such as Causal() & Band(64)"),
        ("bert", "mlm_probability", "masked models choose 15% of the tokens"),
        ("fit", "save_steps", "a run is saved every ten seconds"),
        ("fit", "optim", "every training uses AdamW"),
        ("fit", "adam_beta2", "use 'betas' instead: both numbers"),
        ("fit", "fp16", "use 'precision' instead: bf16, because"),
        ("fit", "device", "move models and tensors with .to(device)"),
        ("fit", "deepspeed", "use 'parallel' instead"),
        # x-transformers
        ("gpt", "rotary_pos_emb", "use 'position' instead: 'rotary' in members"),
        (
            "llama",
            "rotary_pos_emb",
            "llama, gpt(position='rotary') and QKV(d, heads, rotation=Rotary(head_dim)) rotate",
        ),
        ("llama", "alibi_pos_bias", "bloom, gpt(position='alibi')"),
        ("gpt", "pre_norm", "use 'norm' instead: 'post' for pre_norm=False"),
        ("gpt", "use_rmsnorm", "use 'norm' instead: PreNorm(..., norm=RMSNorm); the member llama has RMS norms"),
        ("gpt", "attn_flash", "each attention call takes the fastest kernel itself"),
        ("gpt", "attn_dim_head", "use 'head_dim' instead"),
        ("gpt", "ff_glu", "the member llama and the part GatedMLP(d)"),
        ("llama", "ff_mult", "use 'hidden' instead: hidden = ff_mult * d"),
        ("gpt", "num_memory_tokens", "GlobalNodes(body, n) puts learned vectors in front"),
        ("gpt", "attn_num_mem_kv", "Softmax has no learned keys"),
        ("gpt", "attn_sparse_topk", "topk_transformer and TopK(Causal(), k)"),
        ("gpt", "attn_talking_heads", "the member talking_heads"),
        ("gpt", "residual_attn", "the member realformer"),
        ("gpt", "macaron", "PreNorm(MLP(d), Attention(...), MLP(d))"),
        ("gpt", "sandwich_norm", "kinformer has none; write a part of your own"),
        ("gpt", "shift_tokens", "kinformer has none; write a part of your own"),
        ("gpt", "layer_dropout", "kinformer has none; write a part of your own"),
        ("gpt", "cross_attend", "the member transformer has both sides"),
        ("transformer_xl", "max_mem_len", "use 'memory' instead"),
        ("gpt", "max_mem_len", "state=model.start(rows, length) begins a memory"),
        ("transformer", "enc_num_tokens", "use 'vocab' instead"),
        ("generate", "seq_len", "use 'steps' instead"),
        ("generate", "filter_thres", "use 'top_k' instead: a number of tokens; filter_thres=0.9 of 256 tokens is"),
        ("generate", "filter_logits_fn", "top_k, top_p and temperature choose tokens"),
        ("generate", "eos_token", "use 'stop' instead"),
        ("generate", "prompts", "use 'tokens' instead"),
        ("generate", "cache_kv", "use 'recompute' instead: recompute=True reads the whole row at each step"),
        ("fit", "num_batches", "use 'steps' instead"),
        ("fit", "gradient_accumulate_every", "use 'accumulate' instead"),
        ("llama", "num_key_value_heads", "use 'key_heads' instead"),
        ("llama", "epochs", "kf.fit(model, data, steps=N) trains for N batches"),
    ],
)
def test_an_unknown_keyword_of_a_verb_or_a_member_is_answered(function: str, word: str, end: str) -> None:
    model = gpt(d=8, depth=1, heads=2)
    arguments: tuple[Any, ...] = {"generate": (model, [1], 1), "fit": (model, "text=stdlib")}.get(function, ())
    with pytest.raises(TypeError, match=re.escape(f"no keyword {word!r}; {end}")):
        getattr(kf, function)(*arguments, **{word: 1})


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("AutoModelForCausalLM", "load"),
        ("from_pretrained", "load"),
        ("Trainer", "fit"),
        ("GPT2LMHeadModel", "gpt"),
        ("RotaryEmbedding", "Rotary"),
        ("SlidingWindow", "Band"),
        ("TransformerWrapper", "LM"),
        ("Decoder", "Stack"),
        ("XTransformer", "transformer"),
        ("FeedForward", "MLP"),
        ("scaled_dot_product_attention", "attend"),
    ],
)
def test_names_of_other_libraries_lead_to_public_names(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"^kinformer has no public name '{name}'; use '{instead}' instead$"):
        getattr(kf, name)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("GroupedQueryAttention", "QKV(d, heads, key_heads=2) shares"),
        ("set_seed", "torch.manual_seed(0) fixes"),
        ("evaluate", "`kinformer evaluate RUN --data text=FILE --split whole` measures"),
        ("AutoTokenizer", "fit(model, data, tokenizer=...) takes a tokenizer"),
        ("pipeline", "use 'generate' instead"),
        ("ViTransformerWrapper", "kinformer has no ViT; embed the patches"),
        ("CrossAttender", "the member transformer has both sides"),
        ("BertForMaskedLM", "use 'bert' instead"),
    ],
)
def test_names_without_a_counterpart_get_advice(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"kinformer has no public name {name!r}; {advice}")):
        getattr(kf, name)


def test_calls_in_the_way_of_other_libraries_are_answered_in_a_line() -> None:
    ids = torch.randint(256, (2, 5))
    lm, classifier = gpt(d=8, depth=1, heads=2), kf.bert_classifier(d=8, depth=1, heads=2)
    encoded = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    answers: dict[str, Any] = {
        "LM has no keyword 'attention_mask'; use 'tokens' instead": lambda: lm.logits(ids, attention_mask=ids),
        "Classifier has no keyword 'input_ids'; use 'tokens' instead": lambda: classifier.scores(**encoded),
        "tokens are of type dict, .* Pass its input_ids, with -1 at padding": lambda: unwrap(check_token_rows)(encoded),
        "tokens are of type str, .* Encode the text with model.tokenizer.encode": lambda: unwrap(check_token_rows)(
            "text"
        ),
        "wrong batch for a classifier: got dict, expected": lambda: _tokens_and_labels(encoded),
        "wrong batch for a classifier: got Tensor, expected": lambda: _tokens_and_labels(ids),
        "wrong batch for a classifier: got list, expected": lambda: unwrap(kf.Classifier.judge)(classifier, [ids]),
        "a model returns Loss, which has no 'logits'; write model.logits": lambda: lm(ids).logits,
        "LM has no keyword 'mems'; state=model.start\\(rows, length\\) begins a memory": lambda: lm(ids, mems=None),
        "LM has no keyword 'return_embeddings'; model.hidden": lambda: lm(ids, return_embeddings=True),
    }
    for message, call in answers.items():
        with pytest.raises((TypeError, AttributeError), match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="wrong stop: got '.', expected a token id"):
        unwrap(kf.generate)(lm, ids, 1, stop=".")
    with pytest.raises(ValueError, match="wrong stop: got .., expected a token id, several, or a function of the new"):
        unwrap(kf.generate)(lm, ids, 1, stop={})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("from_pretrained", "call kf.save(model, folder), which kf.load(folder) reads"),
        ("upload", "model.push_to_hub('ORG/NAME') uploads a model"),
        ("config", "model.member has the name and the keywords"),
        ("device", "write next(model.parameters()).device"),
    ],
)
def test_attributes_of_the_models_of_other_libraries_are_answered(name: str, advice: str) -> None:
    model = gpt(d=8, depth=1, heads=2)
    with pytest.raises(AttributeError, match=re.escape(f"'LM' object has no attribute {name!r}; {advice}")):
        getattr(model, name)
    assert not hasattr(model, "no_such_name")


def test_the_words_of_a_model_are_true() -> None:
    model = gpt(d=8, depth=1, heads=2)
    assert model.member.keywords["d"] == 8
    with pytest.raises(AttributeError, match=re.escape("which has no 'logits'; write model.logits(tokens).y")):
        _ = model.logits(torch.tensor([[1, 2]])).logits


def test_token_ids_of_32_bits_give_the_same_loss() -> None:
    ids = torch.randint(256, (2, 5))
    model = gpt(d=8, depth=1, heads=2)
    assert model(ids.int()).total.item() == model(ids).total.item()
    labels, classifier = torch.tensor([0, 1]), kf.bert_classifier(d=8, depth=1, heads=2)
    assert classifier((ids.int(), labels.int())).total.item() == classifier((ids, labels)).total.item()

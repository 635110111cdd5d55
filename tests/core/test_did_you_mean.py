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
        ("generate", "max_length", "use 'steps' instead"),
        ("generate", "repetition_penalty", "kinformer has none; temperature, top_k, top_p and beam choose tokens"),
        ("generate", "min_new_tokens", "kinformer has none; temperature"),
        ("generate", "generator", "use 'seed' instead"),
        ("generate", "use_cache", "use 'recompute' instead: recompute=True reads the whole row at each step"),
        ("fit", "eval_steps", "use 'measures' instead: the number of measurements"),
        ("fit", "report_to", "use 'wandb' instead"),
        ("fit", "logging_steps", "use 'on_metrics' instead: a function that gets the numbers"),
        ("fit", "data_collator", "batches come ready from a DataLoader"),
        ("fit", "processing_class", "use 'tokenizer' instead"),
        ("fit", "from_", "`kinformer train` with --from FOLDER starts from trained weights"),
        ("bert_classifier", "num_labels", "use 'classes' instead"),
        ("gpt", "tie_word_embeddings", "LM(..., tie=True) ties the embedding to the head"),
        ("gpt", "attn_implementation", "each attention call takes the fastest kernel itself"),
        ("generate", "pad_token_id", "use 'tokens' instead: -1 marks padding, on the left of a prompt"),
        ("generate", "num_return_sequences", "repeat the prompt with tokens.repeat(n, 1)"),
        ("generate", "top_q", "the nearest is 'top_p'"),
        ("fit", "num_epochs", "use 'steps' instead: steps = epochs * training tokens / (batch * length)"),
        ("fit", "max_steps", "use 'steps' instead"),
        ("fit", "train_dataset", "use 'data' instead"),
        ("fit", "bf16", "use 'precision' instead"),
        ("fit", "gradient_checkpointing", "use 'checkpointing' instead"),
        ("fit", "disable_tqdm", "use 'progress' instead"),
        ("gpt", "window_size", "there are d, depth, dropout, head_dim, heads, init, length, norm, pattern"),
        ("llama", "num_key_value_heads", "use 'key_heads' instead"),
        ("llama", "epochs", "there are"),
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
        ("TransformerWrapper", "LM"),
        ("Decoder", "Stack"),
        ("scaled_dot_product_attention", "attend"),
    ],
)
def test_names_of_other_libraries_lead_to_public_names(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"^kinformer has no public name '{name}'; use '{instead}' instead$"):
        getattr(kf, name)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("evaluate", "`kinformer evaluate RUN --data text=FILE --split whole` measures"),
        ("AutoTokenizer", "fit(model, data, tokenizer=...) takes a tokenizer"),
        ("pipeline", "use 'generate' instead"),
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
        "LM has no keyword 'input_ids'; use 'batch' instead": lambda: lm(**encoded),
        "LM has no keyword 'attention_mask'; use 'tokens' instead": lambda: lm.logits(ids, attention_mask=ids),
        "Classifier has no keyword 'input_ids'; use 'tokens' instead": lambda: classifier.scores(**encoded),
        "tokens are of type dict, .* Pass its input_ids, with -1 at padding": lambda: unwrap(check_token_rows)(encoded),
        "tokens are of type str, .* Encode the text with": lambda: unwrap(check_token_rows)("text"),
        "wrong batch for a classifier: got dict, expected": lambda: _tokens_and_labels(encoded),
        "wrong batch for a classifier: got Tensor, expected": lambda: _tokens_and_labels(ids),
        "a model returns Loss, which has no 'logits'; write model.logits": lambda: lm(ids).logits,
    }
    for message, call in answers.items():
        with pytest.raises((TypeError, AttributeError), match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="stop is a text: got '.', expected a token id"):
        unwrap(kf.generate)(lm, ids, 1, stop=".")

"""Suggestions in error messages about unknown names: a synonym, advice, or the nearest name."""

import difflib
from collections.abc import Collection, Iterable

from kinformer.core.quote import quote, shorten

# The words of other libraries for names of this one. If a word stands for several names, the first that exists counts.
_SYNONYMS = {
    "depth": "n_layer n_layers num_layers num_hidden_layers layers encoder_layers num_encoder_layers blocks",
    "heads": "n_head n_heads num_heads num_attention_heads nhead attention_heads attn_heads",
    "key_heads": "attn_kv_heads n_kv_heads num_kv_heads num_key_value_heads kv_heads n_kv_head",
    "d": "d_model hidden_size n_embd dim embed_dim embedding_dim model_dim width hidden_dim emb_dim features "
    "normalized_shape",
    "head_dim": "dim dim_head d_head head_size d_k",
    "embed_dim": "d d_model hidden_size dim",
    "num_heads": "heads n_head n_heads nhead num_attention_heads",
    "hidden": "d_ff intermediate_size dim_feedforward ffn_dim ff_dim n_inner hidden_size hidden_dim ff_mult",
    "vocab": "vocab_size num_tokens n_vocab vocabulary",
    "length": "max_seq_len seq_len sequence_length context_length block_size n_positions n_ctx max_position_embeddings "
    "max_length max_len",
    "window": "window_size sliding_window attention_window local_window local_attn_window_size",
    "left": "window window_size sliding_window attention_window local_window",
    "dropout": "p attn_dropout attention_dropout drop dropout_p attn_pdrop resid_pdrop embd_pdrop resid_dropout "
    "hidden_dropout_prob attention_probs_dropout_prob dropout_rate",
    "activation": "act hidden_act activation_function act_layer nonlinearity",
    "projection": "d d_model dim embed_dim hidden_size n_embd heads num_heads n_head nhead num_attention_heads",
    "pattern": "is_causal causal block_mask mask_mod",
    "attn_mask": "mask src_mask tgt_mask",
    "key_padding_mask": "attention_mask padding_mask src_key_padding_mask",
    "mask": "attn_mask attention_mask key_padding_mask padding_mask src_key_padding_mask",
    "source": "memory encoder_hidden_states encoder_output key value",
    "source_mask": "memory_key_padding_mask memory_mask encoder_attention_mask",
    "query": "q x",
    "q": "query queries",
    "k": "key keys",
    "v": "value values",
    "k_pos": "mask attn_mask attention_mask key_padding_mask padding_mask key_mask",
    "position": "rotary_pos_emb rel_pos_bias alibi_pos_bias use_abs_pos_emb pos_emb position_embedding_type rope",
    "norm": "use_rmsnorm pre_norm norm_first normalization normalize_before norm_type",
    "impl": "attn_flash flash attn_implementation use_flash_attention attn_impl backend",
    "body": "attn_layers decoder",
    "bias": "attn_bias score_mod position_bias qkv_bias",
    "base": "theta rope_theta rotary_base",
    "turned": "rotary_dim rotary_ndims",
    "eps": "adam_epsilon epsilon layer_norm_eps rms_norm_eps",
    "lr": "learning_rate rate max_lr",
    "steps": "epochs num_epochs num_train_epochs max_epochs n_epochs max_steps num_steps train_steps iterations iters "
    "max_iters max_new_tokens max_tokens max_length",
    "data": "train_dataset dataset train_data train_dataloader dataloader input_ids",
    "batch": "batch_size bs per_device_train_batch_size train_batch_size input_ids attention_mask",
    "decay": "weight_decay wd",
    "clip": "grad_clip max_grad_norm gradient_clip gradient_clip_val",
    "accumulate": "gradient_accumulation_steps grad_accum accumulate_grad_batches",
    "warmup": "warmup_steps num_warmup_steps warmup_ratio warmup_iters",
    "schedule": "scheduler lr_scheduler lr_scheduler_type",
    "valid": "eval_dataset validation_data val_data valid_data eval_data test_dataset",
    "split": "valid eval_dataset",
    "wandb": "report_to log_with use_wandb",
    "resume": "resume_from_checkpoint",
    "tokens": "max_new_tokens max_tokens max_length input_ids inputs prompt idx attention_mask pad_token_id",
    "temperature": "temp",
    "beam": "num_beams beams beam_size beam_width n_beams",
    "stop": "eos_token_id stop_token eos stop_strings stopping_criteria",
    "state": "past_key_values past kv_cache cache",
    "recompute": "use_cache",
    "seed": "generator random_state random_seed manual_seed data_seed",
    "measures": "eval_steps eval_strategy evaluation_strategy eval_interval eval_every",
    "classes": "num_labels num_classes n_classes",
    "on_metrics": "callbacks compute_metrics logging_steps log_every",
    "tokenizer": "processing_class tokenizer_name",
    "bert": "BertModel BertForMaskedLM",
    "bert_classifier": "BertForSequenceClassification AutoModelForSequenceClassification",
    "generate": "pipeline",
    "on_tokens": "streamer callback",
    "out": "output_dir save_dir checkpoint_dir output",
    "folder": "path pretrained_model_name_or_path checkpoint",
    "precision": "bf16 fp16 mixed_precision dtype",
    "checkpointing": "gradient_checkpointing",
    "compile": "torch_compile",
    "load": "from_pretrained AutoModel AutoModelForCausalLM AutoModelForMaskedLM",
    "save": "save_pretrained",
    "fit": "Trainer TrainingArguments train",
    "attend": "scaled_dot_product_attention sdpa flash_attn_func flex_attention",
    "MLP": "FeedForward FFN PositionwiseFeedForward Mlp",
    "Rotary": "RoPE RotaryEmbedding rope",
    "PreNorm": "TransformerEncoderLayer TransformerDecoderLayer TransformerBlock Block EncoderLayer DecoderLayer",
    "transformer": "Transformer",
    "PairMask": "Mask AttentionMask",
    "Learned": "PositionEmbedding PositionalEmbedding",
    "LM": "TransformerWrapper AutoregressiveWrapper GPT2LMHeadModel",
    "Stack": "Decoder Encoder AttentionLayers TransformerDecoder TransformerEncoder",
    "gpt": "GPT GPT2 gpt2",
    "progress": "verbose progress_bar disable_tqdm",
}


# For a name: a part of a word, and the explanation that follows the name if it replaces a word with this part.
_EXPLANATIONS = {
    "steps": ("epochs", ": steps = epochs * training tokens / (batch * length)"),
    "split": ("valid", ": whole measures all of a held-out file"),
    "tokens": ("", ": -1 marks padding, on the left of a prompt"),
    "batch": ("mask", ": -1 marks padding in its tokens"),
    "recompute": ("", ": recompute=True reads the whole row at each step, as use_cache=False does"),
    "measures": ("", ": the number of measurements on validation data"),
    "on_metrics": ("", ": a function that gets the numbers of each step and measurement"),
    "pattern": ("causal", ": such as Causal()"),
    "k_pos": (
        "mask",
        ": -1 marks padding there; pattern=PairMask(mask) takes a mask of pairs, True where they are read",
    ),
    "mask": ("", ": True at real tokens"),
    "source_mask": ("", ": True at real tokens"),
    "attn_mask": ("", ": True at pairs that are not read"),
    "key_padding_mask": ("", ": True at padding"),
    "projection": ("", ": write Attention(QKV(d, heads), Softmax(Causal()))"),
}

# Advice about words of other libraries for which the called function has no name.
_ADVICE = {
    "a pattern such as Causal() or PairMask(mask) chooses the keys; ctx=Context.of_sequence(x, mask) marks padding": ""
    "mask attn_mask attention_mask key_padding_mask padding_mask src_mask tgt_mask src_key_padding_mask mask_future",
    "causal attention is a pattern; give Causal(), as in Softmax(Causal())": "causal is_causal",
    "attention dropout is a keyword of the mechanism: Softmax(Causal(), dropout=0.1)": "dropout attn_dropout "
    "attention_dropout dropout_p attn_pdrop",
    "kf.MultiheadAttention returns attention weights, and kf.look(model, text) does for a whole model": "need_weights "
    "output_attentions return_attention return_attn average_attn_weights",
    "fewer key heads than query heads work without it": "enable_gqa",
    "a decoding state is the cache: state = start(batch, length), then pass it to each call": "use_cache return_dict",
    "MultiheadAttention takes queries, keys and values; in Attention(..., cross=True) they come from "
    "ctx=Context.of_sequence(x, source=source)": "query key value q k v memory",
    "fit has AdamW and cross-entropy; docs/pytorch.md has a loop with an optimiser and a loss of your own": ""
    "optimizer optimiser optim criterion loss loss_fn loss_function compute_loss",
    "move the result with .to(device)": "device device_map map_location",
    "convert the result with .to(dtype)": "dtype torch_dtype",
    "inputs are batch first; transpose others with x.transpose(0, 1)": "batch_first",
    "temperature=0 takes the likeliest token, and any other temperature samples": "do_sample greedy sample",
    "repeat the prompt with tokens.repeat(n, 1)": "num_return_sequences num_samples",
    "-1 marks padding, on the left of a prompt": "padding_side pad",
    "kinformer has none; temperature, top_k, top_p and beam choose tokens": "repetition_penalty no_repeat_ngram_size "
    "typical_p min_p min_length min_new_tokens encoder_repetition_penalty bad_words_ids logits_processor "
    "diversity_penalty num_beam_groups",
    "batches come ready from a DataLoader, which has its own collate_fn": "data_collator collate_fn",
    "`kinformer train` with --from FOLDER starts from trained weights": "pretrained from_ from_pretrained_model "
    "init_from checkpoint_path",
    "kinformer has none; use nn.Embedding, and Learned(d, length) for positions": "Embedding",
    "attend(q, k, v, pattern=...) is the function, Attention the layer": "functional attention",
    "sum(p.numel() for p in model.parameters()) counts them, and `kinformer cost MEMBER` without a model": ""
    "num_parameters count_parameters cost",
    "model(tokens).total is the cross-entropy; model.logits(tokens).y takes a loss of your own": "CrossEntropy "
    "CrossEntropyLoss cross_entropy",
    "split model.named_parameters() by p.dim() > 1 for weight decay, as fit does": "param_groups parameter_groups",
    "LM(..., tie=True) ties the embedding to the head": "tie_word_embeddings tie_embeddings share_embeddings",
    "each attention call takes the fastest kernel itself": "attn_implementation use_flash_attention_2",
    "fit(model, data, tokenizer=...) takes a tokenizer of transformers or tokenizers": "AutoTokenizer "
    "PreTrainedTokenizerFast",
    "`kinformer evaluate RUN --data text=FILE --split whole` measures a saved model": "evaluate eval",
    "`kinformer compare` compares models": "compare",
    "`kinformer classify RUN --text TEXT` labels texts, and model.scores(tokens) in Python": "classify predict",
    "the targets are the tokens; TokenBatch(tokens, scored) marks those that count": "labels targets",
}


ADVICE = {word: advice for advice, words in _ADVICE.items() for word in words.split()}
NEAR = 0.6  # difflib's ratio from which a name counts as a typing error; at 0.5 Foo-v0 is near Acrobot-v1
LISTED = 280  # characters of a list of names
COMPARED = 80  # characters of a name that are compared, because difflib takes minutes for a whole text


def find_synonym(name: str, names: Iterable[str] = tuple(_SYNONYMS)) -> str | None:
    """Return the name for a word of another library; None if there is none.

    name: the word.
    names: the existing names; by default all names of the library that have synonyms.
    """
    names = tuple(names)
    return next((real for real, words in _SYNONYMS.items() if real in names and name in words.split()), None)


def suggest_names(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """Return the end of an error message that suggests an existing name: a synonym, or the nearest name.

    name: the unknown name.
    names: the existing names.
    otherwise: the text to return if no name is near; None lists all names.
    """
    names = sorted(names)
    if (synonym := find_synonym(name, names)) is not None:
        return f"; use {synonym!r} instead"
    close = difflib.get_close_matches(name[:COMPARED], names, n=1, cutoff=NEAR)
    if close:
        return f"; the nearest is {close[0]!r}"
    if otherwise is not None:
        return otherwise
    return f"; there are {shorten(', '.join(names), LISTED)}" if names else "; there are none"


def _suggest_keyword(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message about an unknown keyword: a synonym, advice, or the nearest keyword.

    name: the unknown keyword.
    names: the keywords of the function or class.
    """
    names = tuple(names)
    if (synonym := find_synonym(name, names)) is None and name in ADVICE:
        return f"; {ADVICE[name]}"
    return suggest_names(name, names) + explain_synonym(name, synonym)


def explain_synonym(name: str, synonym: str | None) -> str:
    """Return the explanation that follows a name if it replaces a word of another library; "" for none.

    name: the word.
    synonym: the name to use instead; None if there is none.
    """
    part, explanation = _EXPLANATIONS.get(synonym or "", ("", ""))
    return explanation if part in name else ""


def check_known_keywords(owner: str, keywords: Collection[str], names: Collection[str]) -> None:
    """Raise TypeError, with the name to use instead, for the first unknown keyword.

    owner: name of the function or class.
    keywords: the given keywords.
    names: the keywords of the function or class.
    """
    for name in keywords:
        if name not in names:
            raise TypeError(f"{owner} has no keyword {quote(name)}{_suggest_keyword(name, names)}")

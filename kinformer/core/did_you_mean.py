"""Suggestions in error messages about unknown names: a synonym, advice, or the nearest name."""

import difflib
import re
from collections.abc import Collection, Iterable

from kinformer.core.quote import quote, shorten

# The words of other libraries for names of this one. If a word stands for several names, the first that exists counts.
_SYNONYMS = {
    "depth": "n_layer n_layers num_layers num_hidden_layers layers encoder_layers num_encoder_layers blocks "
    "enc_depth dec_depth",
    "heads": "n_head n_heads num_heads num_attention_heads nhead attention_heads attn_heads enc_heads dec_heads",
    "key_heads": "attn_kv_heads n_kv_heads num_kv_heads num_key_value_heads kv_heads n_kv_head attn_one_kv_head",
    "d": "d_model hidden_size n_embd dim embed_dim embedding_dim model_dim width hidden_dim emb_dim features "
    "normalized_shape",
    "head_dim": "dim dim_head d_head head_size d_k attn_dim_head attn_head_dim",
    "embed_dim": "d d_model hidden_size dim",
    "num_heads": "heads n_head n_heads nhead num_attention_heads",
    "hidden": "d_ff intermediate_size dim_feedforward ffn_dim ff_dim n_inner hidden_size hidden_dim ff_mult mult",
    "vocab": "vocab_size num_tokens n_vocab vocabulary enc_num_tokens dec_num_tokens",
    "length": "max_seq_len seq_len sequence_length context_length block_size n_positions n_ctx max_position_embeddings "
    "max_length max_len max_seq_length",
    "window": "window_size sliding_window attention_window local_window local_attn_window_size",
    "left": "window window_size sliding_window attention_window local_window",
    "dropout": "p attn_dropout attention_dropout drop dropout_p attn_pdrop resid_pdrop embd_pdrop resid_dropout "
    "hidden_dropout_prob attention_probs_dropout_prob dropout_rate emb_dropout ff_dropout",
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
    "scaling": "rope_scaling rope_parameters",
    "eps": "adam_epsilon epsilon layer_norm_eps rms_norm_eps",
    "lr": "learning_rate rate max_lr",
    "steps": "epochs num_epochs num_train_epochs max_epochs n_epochs max_steps num_steps train_steps iterations iters "
    "max_iters max_new_tokens max_tokens max_length seq_len num_batches",
    "data": "train_dataset train_file dataset train_data train_dataloader dataloader input_ids",
    "betas": "adam_beta1 adam_beta2 beta1 beta2 adam_betas",
    "batch": "batch_size bs per_device_train_batch_size train_batch_size input_ids attention_mask",
    "decay": "weight_decay wd",
    "clip": "grad_clip max_grad_norm gradient_clip gradient_clip_val",
    "accumulate": "gradient_accumulation_steps grad_accum accumulate_grad_batches gradient_accumulate_every "
    "grad_accum_every",
    "warmup": "warmup_steps num_warmup_steps warmup_ratio warmup_iters",
    "schedule": "scheduler lr_scheduler lr_scheduler_type",
    "valid": "eval_dataset validation_data val_data valid_data eval_data test_dataset validation_file eval_file",
    "split": "valid eval_dataset",
    "wandb": "report_to log_with use_wandb",
    "resume": "resume_from_checkpoint",
    "tokens": "max_new_tokens max_tokens max_length input_ids inputs prompt prompts idx attention_mask seq_len",
    "temperature": "temp",
    "best": "n_best nbest",
    "prompt_lookup": "prompt_lookup_num_tokens",
    "beam": "num_beams beams beam_size beam_width n_beams",
    "field": "text column text_column text_field",
    "text": "field column sentence text_column",
    "stop": "eos_token_id eos_token stop_token eos stop_strings stopping_criteria",
    "state": "past_key_values past kv_cache cache",
    "recompute": "use_cache cache_kv",
    "top_k": "filter_thres",
    "memory": "max_mem_len mem_len",
    "tie": "tie_embedding tie_word_embeddings tie_embeddings",
    "seed": "generator random_state random_seed manual_seed data_seed",
    "measures": "eval_steps eval_strategy evaluation_strategy eval_interval eval_every",
    "classes": "num_labels num_classes n_classes",
    "on_metrics": "callbacks compute_metrics logging_steps log_every",
    "tokenizer": "processing_class tokenizer_name",
    "bert": "BertModel BertForMaskedLM",
    "bert_classifier": "BertForSequenceClassification AutoModelForSequenceClassification",
    "generate": "pipeline",
    "on_tokens": "streamer callback",
    "out": "output_dir save_dir checkpoint_dir output run_name logging_dir",
    "overwrite": "overwrite_output_dir exist_ok",
    "parallel": "fsdp deepspeed ddp",
    "device": "use_cpu no_cuda device_map map_location",
    "folder": "path pretrained_model_name_or_path checkpoint",
    "precision": "bf16 fp16 mixed_precision dtype",
    "checkpointing": "gradient_checkpointing",
    "compile": "torch_compile",
    "load": "from_pretrained AutoModel AutoModelForCausalLM AutoModelForMaskedLM",
    "save": "save_pretrained export",
    "score": "perplexity log_likelihood loglikelihood compute_perplexity",
    "fit": "Trainer TrainingArguments train",
    "attend": "scaled_dot_product_attention sdpa flash_attn_func flex_attention",
    "PreNorm": "TransformerEncoderLayer TransformerDecoderLayer TransformerBlock Block EncoderLayer DecoderLayer",
    "PairMask": "Mask AttentionMask",
    "Learned": "PositionEmbedding PositionalEmbedding",
    "LM": "TransformerWrapper AutoregressiveWrapper",
    "Stack": "Decoder Encoder AttentionLayers TransformerDecoder TransformerEncoder",
    "gpt": "GPT GPT2 gpt2 GPT2LMHeadModel GPT2Model",
    "llama": "LlamaForCausalLM LlamaModel Llama",
    "gpt_neox": "GPTNeoXForCausalLM GPTNeoXModel GPTNeoX Pythia pythia",
    "Rotary": "RotaryEmbedding RoPE rope RotaryPositionalEmbedding LlamaRotaryEmbedding",
    "Band": "SlidingWindow SlidingWindowAttention LocalAttention",
    "transformer": "XTransformer Transformer",
    "MLP": "FeedForward FFN PositionwiseFeedForward Mlp",
    "progress": "verbose progress_bar disable_tqdm",
}


# For a name: a regular expression of words, and the explanation that follows the name if it replaces such a word.
_EXPLANATIONS = {
    "steps": [
        ("epochs", ": steps = epochs * training tokens / (batch * length)"),
        ("max_length", ", which does not count the prompt"),
    ],
    "split": [("valid", ": whole measures all of a held-out file")],
    "tokens": [
        ("ids|mask|inputs", ": -1 marks padding, on the left of a prompt"),
        ("max_length", ", which does not count the prompt"),
    ],
    "batch": [("mask", ": -1 marks padding in its tokens")],
    "betas": [("", ": both numbers, such as 0.9 and 0.95")],
    "out": [("run_name|logging", ": the name of the folder is the name of the run, and the logs are in it")],
    "precision": [("fp16", ": bf16, because the gradients of fp16 underflow without a scaled loss")],
    "recompute": [("", ": recompute=True reads the whole row at each step, as use_cache=False does")],
    "measures": [("", ": the largest number of measurements on validation data")],
    "on_metrics": [("", ": a function that gets the numbers of each step and measurement")],
    "pattern": [("causal", ": such as Causal()")],
    "k_pos": [
        ("padding|key", ": -1 marks padding there"),
        ("mask", ": -1 marks padding there; pattern=PairMask(mask) takes a mask of pairs, True where they are read"),
    ],
    "mask": [("", ": True at real tokens")],
    "source_mask": [("", ": True at real tokens")],
    "attn_mask": [("", ": True at pairs that are not read")],
    "key_padding_mask": [("", ": True at padding")],
    "projection": [("", ": write Attention(QKV(d, heads), Softmax(Causal()))")],
}

# For a word of another library: the explanation that follows the name that replaces it.
_VALUES = {
    "rotary_pos_emb": ": 'rotary' in members; parts take QKV(d, heads, rotation=Rotary(head_dim))",
    "rel_pos_bias": ": 'relative' in members; parts take Softmax(Causal(), T5(heads))",
    "alibi_pos_bias": ": 'alibi' in members; parts take Softmax(Causal(), ALiBi(heads))",
    "use_abs_pos_emb": ": 'none' in members for use_abs_pos_emb=False; None in LM",
    "pre_norm": ": 'post' for pre_norm=False",
    "norm_first": ": 'post' for norm_first=False",
    "use_rmsnorm": ": PreNorm(..., norm=RMSNorm); the member llama has RMS norms",
    "attn_one_kv_head": ": 1 for attn_one_kv_head=True",
    "ff_mult": ": hidden = ff_mult * d",
    "mult": ": hidden = mult * d",
    "cache_kv": ": recompute=True reads the whole row at each step, as cache_kv=False does",
    "filter_thres": ": a number of tokens; filter_thres=0.9 of 256 tokens is top_k=26",
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
    "state=model.start(rows, length) begins a memory, and state=kf.detach(loss.state) continues it": "mems "
    "return_mems max_mem_len",
    "model.hidden(tokens).y has the vectors before the head": "return_embeddings return_hiddens",
    "llama, gpt(position='rotary') and QKV(d, heads, rotation=Rotary(head_dim)) rotate": "rotary_pos_emb",
    "bloom, gpt(position='alibi') and Softmax(Causal(), ALiBi(heads)) have ALiBi": "alibi_pos_bias alibi_num_heads",
    "gpt(position='relative') and Softmax(Causal(), T5(heads)) have relative positions": "rel_pos_bias",
    "GlobalNodes(body, n) puts learned vectors in front of a row; it cannot decode with a cache": "num_memory_tokens "
    "memory_tokens num_register_tokens",
    "Softmax has no learned keys; only Shortened(..., null=NullKey(heads, head_dim)) reads one": "attn_num_mem_kv "
    "num_mem_kv attn_add_zero_kv",
    "the member talking_heads mixes heads": "attn_talking_heads",
    "topk_transformer and TopK(Causal(), k) read the keys with the highest scores": "attn_sparse_topk sparse_topk topk",
    "the member multi_query and QKV(d, heads, key_heads=1) have one head of keys": "attn_one_kv_head one_kv_head",
    "the member llama and the part GatedMLP(d) have a gated feed-forward layer": "ff_glu ff_swish glu swiglu",
    "MLP(d, hidden) and GatedMLP(d, hidden) have a width": "ff_mult mult d_ff intermediate_size",
    "MLP(d, bias=False) and GatedMLP(d) have no biases": "ff_no_bias",
    "MLP(d, activation=...) chooses the nonlinearity": "ff_relu_squared hidden_act activation_function",
    "the member realformer and the score ResidualScores add the scores of the block below": "residual_attn",
    "the member gtrxl and blocks such as GRUGate have gates in place of residual connections": "gate_residual",
    "PreNorm(MLP(d), Attention(...), MLP(d)) is a macaron block": "macaron",
    "a Stack takes blocks in any order, such as PreNorm(Attention(...)) and PreNorm(MLP(d))": "sandwich_coef "
    "custom_layers par_ratio",
    "llama(query_norm=True) and QKV(..., norm=RMSNorm) normalise queries and keys": "attn_qk_norm qk_norm",
    "the member llama and PreNorm(..., norm=RMSNorm) have RMS norms": "use_rmsnorm use_simple_rmsnorm",
    "the member universal_transformer and Universal(block, steps) share one block": "weight_tie_layers",
    "the member transformer has both sides; Attention(..., cross=True) reads the source of a Context": "cross_attend "
    "only_cross CrossAttender context context_mask",
    "a Stack reads vectors: Stack(blocks)(x).y": "ContinuousTransformerWrapper",
    "kinformer has no ViT; embed the patches as x [B, T, D], and read them with Stack(blocks)": "ViTransformerWrapper "
    "image_size patch_size",
    "kinformer has none; write a part of your own (CONTRIBUTING.md)": "shift_tokens sandwich_norm "
    "attn_qk_norm_scale attn_gate_values attn_on_attn layer_dropout resi_dual scale_residual dynamic_pos_bias "
    "rotary_xpos l2norm_embed post_emb_norm use_scalenorm shift_mem_down",
    "top_k, top_p and temperature choose tokens": "filter_logits_fn filter_kwargs filter_thres",
    "generate moves its window when the learned positions are full": "restrict_to_max_seq_len",
    "move models and tensors with .to(device)": "device device_map map_location use_cpu no_cuda",
    "convert models and tensors with .to(dtype)": "dtype torch_dtype",
    "fewer key heads than query heads work without it": "enable_gqa",
    "a decoding state is the cache: state = start(batch, length), then pass it to each call": "use_cache",
    "MultiheadAttention takes queries, keys and values; in Attention(..., cross=True) they come from "
    "ctx=Context.of_sequence(x, source=source)": "query key value q k v memory",
    "fit has AdamW and cross-entropy; docs/pytorch.md has a loop with an optimiser and a loss of your own": ""
    "criterion loss loss_fn loss_function compute_loss",
    "inputs are batch first; transpose others with x.transpose(0, 1)": "batch_first",
    "temperature 0 takes the likeliest token, and any other temperature samples": "do_sample greedy sample",
    "repeat the prompt: tokens.repeat(n, 1), or n equal lines of a file for --prompts; best=n for a beam search": ""
    "num_return_sequences num_samples n",
    "positions follow from attention_mask": "position_ids cache_position",
    "a model of kinformer reads token ids": "inputs_embeds decoder_inputs_embeds",
    "-1 marks padding, on the left of a prompt": "padding_side pad pad_token_id prompt_lens pad_value ignore_index",
    "kinformer has none; temperature, top_k and top_p choose tokens": "no_repeat_ngram_size "
    "typical_p min_length min_new_tokens encoder_repetition_penalty bad_words_ids logits_processor "
    "diversity_penalty num_beam_groups penalty_alpha generation_config",
    "generate returns only tokens; on_tokens gets the log-probability of each": "return_dict_in_generate "
    "output_scores output_logits",
    "batches come ready from a DataLoader, which has its own collate_fn": "data_collator collate_fn "
    "DataCollatorForLanguageModeling DataCollatorWithPadding",
    "kf.fit(model, data, steps=N) trains for N batches": "epochs num_epochs num_train_epochs max_epochs n_epochs",
    "torch.manual_seed(0) fixes the initial weights, and fit(model, data, seed=0) the training": "set_seed",
    "`kinformer train` with --from FOLDER starts from trained weights": "pretrained from_ from_pretrained_model "
    "init_from checkpoint_path",
    "kinformer has none; use nn.Embedding, and Learned(d, length) for positions": "Embedding",
    "attend(q, k, v, pattern=...) is the function, Attention the layer": "functional attention",
    "sum(p.numel() for p in model.parameters()) counts them, and `kinformer cost MEMBER` without a model": ""
    "num_parameters count_parameters cost",
    "model(tokens).total is the cross-entropy; model.logits(tokens).y takes a loss of your own": "CrossEntropy "
    "CrossEntropyLoss cross_entropy",
    "split model.named_parameters() by p.dim() > 1 for weight decay, as fit does": "param_groups parameter_groups",
    "LM(..., tie=True) ties the embedding to the head": "tie_word_embeddings tie_embeddings tie_embedding "
    "share_embeddings",
    "each attention call takes the fastest kernel itself": "attn_implementation use_flash_attention_2 attn_flash flash",
    "fit(model, data, tokenizer=...) takes a tokenizer of transformers or tokenizers, and a file is an option of the "
    "data: text=PATH,tokenizer=PATH": "AutoTokenizer PreTrainedTokenizerFast tokenizer tokenizer_name tokenizer_file",
    "`kinformer evaluate RUN --data text=FILE --split whole` measures a saved model": "evaluate eval",
    "`kinformer compare` compares models": "compare",
    "`kinformer compare` with --grid lr=1e-3,3e-3 tries several values": "sweep grid_search",
    "`kinformer classify RUN --text TEXT` labels texts, and model.scores(tokens) in Python": "classify predict",
    "the targets are the tokens; TokenBatch(tokens, scored) marks those that count": "labels targets",
    "a model returns its loss, model.logits(tokens).y are the scores, and kf.look(model, text) shows attention": ""
    "return_dict output_hidden_states",
    "a run is saved every ten seconds, and its folder `best` keeps the best model": "save_steps save_strategy "
    "save_total_limit save_every load_best_model_at_end metric_for_best_model early_stopping_patience",
    "metrics.jsonl in the folder of a run has a line for each step and each measurement": "logging_steps "
    "logging_strategy log_every eval_steps eval_strategy evaluation_strategy eval_interval eval_every",
    "weight decay is an argument in Python: kf.fit(model, data, decay=0.1)": "weight_decay wd decay",
    "every training uses AdamW; a loop of your own takes another optimiser, as in help(kf.fit)": "optim optimizer "
    "optimizers optimiser",
    "the data is read by fit itself; a DataLoader of your own has its own workers": "dataloader_num_workers "
    "num_workers dataloader_pin_memory group_by_length remove_unused_columns",
    "model.push_to_hub('ORG/NAME') uploads a model, and kf.save(model, folder, format='hf') writes it": "push_to_hub "
    "hub_model_id push upload",
    "label smoothing is a keyword of some members, such as transformer(smoothing=0.1)": "label_smoothing "
    "label_smoothing_factor",
    "masked models choose 15% of the tokens; a DataLoader with a collator of transformers chooses others": ""
    "mlm_probability mask_prob masking_ratio",
    "a window is a pattern, such as Causal() & Band(64)": "window window_size sliding_window attention_window",
    "QKV(d, heads, key_heads=2) shares keys and values between heads": "GroupedQueryAttention MultiQueryAttention",
    "`kinformer train` trains a model, and `kinformer evaluate` measures it": "do_train do_eval do_predict",
}


# Advice about attributes of the models of other libraries.
_MODEL_ADVICE = {
    "only a model that predicts the next token writes text, such as gpt": "generate",
    "call kf.save(model, folder), which kf.load(folder) reads": "save from_pretrained load",
    "call kf.fit(model, data, steps=N)": "fit train_model",
    "model.member has the name and the keywords of the model": "config hparams",
    "write model(batch).total": "loss compute_loss training_step",
    "write model.head": "lm_head",
    "write model.embedding": "wte embeddings get_input_embeddings",
    "write model.body": "transformer layers blocks decoder encoder h",
    "write next(model.parameters()).device": "device",
    "write next(model.parameters()).dtype": "dtype",
    "write sum(p.numel() for p in model.parameters())": "num_parameters get_num_params count_parameters n_params",
    "the vocabulary is a keyword of the member, such as gpt(vocab=N)": "resize_token_embeddings",
    "fit(model, data, checkpointing=True) recomputes blocks, and checkpoint(model, batch, use_reentrant=False) of "
    "torch in a loop of your own": "gradient_checkpointing_enable gradient_checkpointing",
    "call model.scores(tokens) of a classifier, or model.logits(tokens).y of a language model": "logits scores predict",
}

ADVICE = {word: advice for advice, words in _ADVICE.items() for word in words.split()}
MODEL_ADVICE = {word: advice for advice, words in _MODEL_ADVICE.items() for word in words.split()}
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


def list_synonyms(names: Iterable[str]) -> dict[str, str]:
    """Return the words of other libraries that stand for some names, each with its name.

    names: the names.
    """
    return {word: name for name in names for word in _SYNONYMS.get(name, "").split()}


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
    if synonym is not None and name in _VALUES:
        return _VALUES[name]
    explanations = _EXPLANATIONS.get(synonym or "", [])
    return next((explanation for words, explanation in explanations if re.search(words, name)), "")


def check_known_keywords(owner: str, keywords: Collection[str], names: Collection[str]) -> None:
    """Raise TypeError, with the name to use instead, for the first unknown keyword.

    owner: name of the function or class.
    keywords: the given keywords.
    names: the keywords of the function or class.
    """
    for name in keywords:
        if name not in names:
            raise TypeError(f"{owner} has no keyword {quote(name)}{_suggest_keyword(name, names)}")

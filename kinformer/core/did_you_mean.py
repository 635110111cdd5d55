"""Suggestions for error messages about unknown names: the name for a synonym, or the nearest name."""

import difflib
from collections.abc import Iterable

# The words of other libraries for names of this one.
SYNONYMS = {
    synonym: name
    for name, synonyms in {
        "depth": "n_layer n_layers num_layers num_hidden_layers layers encoder_layers blocks",
        "heads": "n_head n_heads num_heads num_attention_heads nhead attention_heads",
        "key_heads": "n_kv_heads num_kv_heads num_key_value_heads kv_heads",
        "d": "d_model hidden_size n_embd dim embed_dim embedding_dim model_dim width",
        "head_dim": "dim_head d_head head_size",
        "hidden": "d_ff intermediate_size dim_feedforward ffn_dim ff_dim n_inner",
        "vocab": "vocab_size num_tokens n_vocab vocabulary",
        "length": "max_seq_len seq_len sequence_length context_length block_size n_positions max_position_embeddings",
        "window": "window_size sliding_window attention_window local_window",
        "dropout": "p attn_dropout attention_dropout drop",
        "lr": "learning_rate rate",
        "steps": "epochs num_epochs max_steps num_steps train_steps iterations iters",
        "batch": "batch_size bs per_device_train_batch_size",
        "clip": "grad_clip max_grad_norm gradient_clip",
        "accumulate": "gradient_accumulation_steps grad_accum",
        "warmup": "warmup_steps num_warmup_steps warmup_ratio",
        "tokens": "max_new_tokens max_tokens max_length",
        "out": "output_dir save_dir checkpoint_dir output",
        "checkpointing": "gradient_checkpointing",
    }.items()
    for synonym in synonyms.split()
}
NEAR = 0.6  # difflib's ratio from which a name counts as a typing error; at 0.5 Foo-v0 is near Acrobot-v1


def suggest_names(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """Return the end of an error message that suggests an existing name: a synonym, or the nearest name.

    name: the unknown name.
    names: the existing names.
    otherwise: the text to return if no name is near; None lists all names.
    """
    names = sorted(names)
    if SYNONYMS.get(name) in names:
        return f"; use {SYNONYMS[name]!r} instead"
    close = difflib.get_close_matches(name, names, n=1, cutoff=NEAR)
    if close:
        return f"; the nearest is {close[0]!r}"
    if otherwise is not None:
        return otherwise
    return f"; there are {', '.join(names)}" if names else "; there are none"

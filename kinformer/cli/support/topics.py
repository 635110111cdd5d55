"""Topics: words of the field that are no part's name, and what a reader means by them."""

from typing import NamedTuple


class TopicText(NamedTuple):
    """A sentence on a topic, and where to look: members first, then parts."""

    says: str
    places: tuple[str, ...]


TOPICS = {
    "sparse": TopicText(
        "Attention over some of the keys: which ones is a pattern, joined with & | ~, or chosen by content.",
        (
            "members/longformer",
            "members/bigbird",
            "members/etc",
            "members/reformer",
            "patterns/strided",
            "patterns/fixed",
            "patterns/band",
            "patterns/random",
            "mechanisms/lsh",
            "mechanisms/routing",
        ),
    ),
    "factorised": TopicText(
        "The Sparse Transformer's attention in two factors, a local one and a strided or fixed one, which together "
        "reach every position in two layers.",
        ("patterns/strided", "patterns/fixed", "patterns/columns", "patterns/band"),
    ),
    "local": TopicText(
        "Attention near its query: a window that slides, blocks, or a Gaussian that falls off.",
        (
            "members/longformer",
            "members/poolingformer",
            "members/blockbert",
            "members/adaptive_span",
            "members/localness",
            "members/gaussian_transformer",
            "members/hard_coded_gaussian",
            "patterns/band",
            "patterns/block",
            "patterns/dilated",
            "mechanisms/split",
        ),
    ),
    "global": TopicText(
        "A few tokens that all read and that read all.",
        (
            "members/longformer",
            "members/bigbird",
            "members/etc",
            "mechanisms/global_softmax",
            "depth/global_tokens",
            "depth/global_nodes",
            "depth/global_ends",
            "patterns/tokens",
            "patterns/rows",
            "patterns/marked",
        ),
    ),
    "linear attention": TopicText(
        "Attention whose weights are products of features, so that the past fits into a state of fixed size.",
        (
            "members/linear_transformer",
            "members/performer",
            "members/rfa",
            "members/luna",
            "mechanisms/linear",
            "mechanisms/luna_causal",
            "maps/elu",
            "maps/favor",
            "maps/random_fourier",
        ),
    ),
    "low rank": TopicText(
        "Attention through fewer numbers than there are tokens: landmarks, fewer keys, or narrow heads.",
        (
            "members/nystromformer",
            "members/csalr",
            "members/linformer",
            "members/low_rank_band",
            "mechanisms/nystrom",
            "mechanisms/low_rank_band",
            "mechanisms/shortened",
        ),
    ),
    "fewer keys": TopicText(
        "Keys and values of a row made into fewer before they are read: projected along it, convolved or pooled.",
        (
            "members/linformer",
            "members/memory_compressed_transformer",
            "members/poolingformer",
            "mechanisms/shortened",
            "shorteners/linformer",
            "shorteners/convolved",
            "shorteners/pooled",
            "shorteners/max_pooled",
            "shorteners/windows",
        ),
    ),
    "memory": TopicText(
        "What a layer keeps of the row before: hidden states, compressed ones, keys that are searched, or one state.",
        (
            "members/transformer_xl",
            "members/gtrxl",
            "members/spalm",
            "members/compressive_transformer",
            "members/memorizing_transformer",
            "memories/hidden",
            "memories/compressive",
            "memories/compression",
            "mechanisms/retrieval",
            "mechanisms/linear",
            "patterns/segment",
        ),
    ),
    "halting": TopicText(
        "How a token says that it has taken enough steps, or gone through enough layers.",
        (
            "members/universal_transformer",
            "members/act_rnn",
            "members/calm",
            "members/depth_adaptive",
            "depth/act",
            "depth/recurrent_act",
            "depth/early_exit",
            "exits/rules",
            "exits/confidence",
        ),
    ),
    "clustering": TopicText(
        "Keys chosen by content: a query reads the keys of its own bucket or cluster.",
        (
            "members/reformer",
            "members/routing_transformer",
            "mechanisms/lsh",
            "mechanisms/lsh_published",
            "mechanisms/routing",
            "mechanisms/routing_published",
        ),
    ),
    "positions": TopicText(
        "How a model knows where a token is: added to it, turned into it, or as a change of scores.",
        (
            "positions/sinusoidal",
            "positions/learned",
            "positions/rotary",
            "biases/alibi",
            "biases/t5",
            "biases/relative",
            "biases/transformer_xl",
            "positions/timing",
        ),
    ),
    "relative positions": TopicText(
        "Positions as a change of scores that knows how far a key is from its query, or on which side of it.",
        (
            "members/shaw",
            "members/transformer_xl",
            "members/bloom",
            "members/da_transformer",
            "biases/relative",
            "biases/transformer_xl",
            "biases/t5",
            "biases/alibi",
            "biases/distance_aware",
            "biases/etc_labels",
            "positions/rotary",
        ),
    ),
    "multi head attention": TopicText(
        "What heads of attention share, and what they do apart.",
        (
            "members/multi_query",
            "members/talking_heads",
            "members/collaborative",
            "projections/qkv",
            "projections/collaborative",
            "projections/by_heads",
            "mechanisms/talking_heads",
            "mechanisms/split",
            "patterns/on_heads",
        ),
    ),
    "recurrence": TopicText(
        "Something carried from one piece of a row to the next.",
        (
            "members/transformer_xl",
            "members/gtrxl",
            "members/compressive_transformer",
            "mechanisms/linear",
            "memories/hidden",
            "depth/recurrent_act",
        ),
    ),
    "decoding": TopicText(
        "Writing token by token: a cache of the keys that may still be read, or a state.",
        ("members/gpt", "members/linear_transformer", "patterns/causal", "mechanisms/softmax", "mechanisms/linear"),
    ),
    "encoder": TopicText(
        "Reading both ways: members that fill in what is hidden.",
        ("members/bert", "members/longformer", "members/etc", "models/mlm", "patterns/full"),
    ),
    "normalisation": TopicText(
        "Where and how a layer's numbers are brought to one size.",
        (
            "norms/layer",
            "norms/rms",
            "blocks/pre_norm",
            "blocks/post_norm",
            "blocks/identity_map",
            "projections/normed",
        ),
    ),
    "gates": TopicText(
        "A learned share of the stream, and of what a sublayer made of it, in place of their sum.",
        (
            "members/gtrxl",
            "blocks/gru_gate",
            "blocks/input_gate",
            "blocks/output_gate",
            "blocks/highway_gate",
            "blocks/sigtanh_gate",
            "blocks/identity_map",
        ),
    ),
}
ALSO = {
    "sparse": ("sparse attention", "sparsity", "sparse transformer"),
    "factorised": ("factorized", "factorised attention", "factorized attention"),
    "local": ("window", "sliding window", "local attention", "windowed"),
    "global": ("global attention", "global tokens", "global token"),
    "linear attention": ("linear transformers", "kernel", "kernels", "kernel attention", "feature map", "feature maps"),
    "low rank": ("low-rank", "landmarks", "landmark", "pseudo inverse"),
    "fewer keys": ("shortened keys", "compressed memory", "memory compressed", "compressed attention"),
    "memory": ("memories", "long memory", "segment memory", "remember"),
    "halting": (
        "ponder",
        "pondering",
        "adaptive computation",
        "adaptive computation time",
        "act",
        "early exit",
        "exit",
        "exits",
    ),
    "clustering": ("cluster", "clusters", "hashing", "buckets", "content based", "content-based"),
    "positions": ("position", "position encoding", "positional encoding", "positional embedding", "positional"),
    "relative positions": ("relative position", "relative", "relative attention", "relative bias", "distance"),
    "multi head attention": ("multihead attention", "shared heads", "sharing heads", "grouped query attention", "gqa"),
    "recurrence": ("recurrent", "rnn", "segment recurrence"),
    "decoding": ("decoder", "cache", "kv cache", "generation", "autoregressive"),
    "encoder": ("encoders", "masked language model", "bidirectional"),
    "normalisation": ("normalization", "norm", "norms"),
    "gates": ("gate", "gating", "gated", "highway", "residual", "residual connection", "residual connections"),
}


def topic(words: str) -> TopicText | None:
    """The topic that some words name, in whatever case and with - or _ for a space."""
    plain = " ".join(words.lower().replace("_", " ").replace("-", " ").split())
    for name, entry in TOPICS.items():
        if plain == name or plain in (other.replace("-", " ") for other in ALSO[name]):
            return entry
    return None

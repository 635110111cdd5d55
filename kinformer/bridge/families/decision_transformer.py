"""Decision Transformer, whose table of positions is read at its first row only."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from kinformer.bridge.family import Family, rules
from kinformer.bridge.settings import ACTIVATIONS, Config, Constants, Keyword, Keywords, OneValue, Setting
from kinformer.bridge.tensors import Form, Same, Transposed
from kinformer.members.decision_transformer import decision_transformer
from kinformer.models.support.scale_buffers import EpisodeScales


class UnusedTables(Setting):
    """Sizes of two tables that change no result.

    Every token gets the first row of the table of positions. The table of tokens is never read.
    """

    keys = ("n_positions", "vocab_size")

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        return {}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return dict.fromkeys(self.keys, 1)


class NormBias(Form):
    """Bias of the first norm, with the first row of the table of positions, which is added after it.

    The tables of positions and of tokens are written as one row of zeros.
    """

    def join(self, tensors: Sequence[Tensor], owner: Any) -> Tensor:
        return tensors[0] + tensors[1][0]

    def split(self, tensor: Tensor, owner: Any) -> Sequence[Tensor]:
        return [tensor, *(tensor.new_zeros(1, len(tensor)) for _ in range(2))]


class ActionHead(Same):
    """Head of actions, written with heads of states and returns that are zeros.

    Our model has the other two heads only if `beside` is above 0. Their own rules come later and replace the zeros.
    """

    def split(self, tensor: Tensor, owner: Any) -> Sequence[Tensor]:
        return [tensor, *(tensor.new_zeros(rows, *tensor.shape[1:]) for rows in (owner.states, 1))]


class UnscaledMap(Same):
    """Part of an embedding of numbers, which our model first divides by the scales of its training data.

    The foreign model does not divide them.

    write: function of our tensor and of our model that returns the tensor for numbers that are not divided.
    """

    def __init__(self, write: Callable[[Tensor, Any], Tensor]) -> None:
        self.write = write

    def split(self, tensor: Tensor, owner: Any) -> Sequence[Tensor]:
        return [self.write(tensor, owner)]


class AbsentScale(Form):
    """Scale of the training data, which the foreign model does not have.

    A new model has scales that leave numbers unchanged.

    name: name of its buffer.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def join(self, tensors: Sequence[Tensor], owner: Any) -> Tensor:
        return owner.measured.get_buffer(self.name)

    def split(self, tensor: Tensor, owner: Any) -> Sequence[Tensor]:
        return []


def _without_mean(bias: Tensor, model: Any) -> Tensor:
    """Return the bias of the embedded states minus the embedding of their scaled mean."""
    mean = model.measured.mean / model.measured.deviation
    return bias - (model.of_states.weight.detach() @ mean.to(model.of_states.weight)).to(bias)


BLOCK, LAYER = "body.layers.{n}.", "encoder.h.{n}."

FAMILIES = (
    Family(
        "decision_transformer",
        "DecisionTransformerModel",
        decision_transformer,
        (
            Keyword("state_dim", "states", 17),
            Keyword("act_dim", "actions", 4),
            Keyword("max_ep_len", "steps", 4096),
            Keyword("max_length", "context", 20),  # configs of transformers 4 have it, for the loop that plays
            Keyword("hidden_size", "d", 128),
            Keyword("n_layer", "depth", 3),
            Keyword("n_head", "heads", 1),
            Keyword("n_inner", "hidden", usual=lambda keywords: 4 * keywords["d"]),
            Keyword("activation_function", "activation", "relu", values=ACTIVATIONS),
            Keyword("action_tanh", "bounded", True),
            UnusedTables(),
            OneValue("layer_norm_epsilon", 1e-5),
            OneValue("scale_attn_weights", True),
            OneValue("scale_attn_by_inverse_layer_idx", False),
            OneValue("add_cross_attention", False),
            Constants(discrete=False, pattern="Causal()", head_dim=None, beside=1.0),
        ),
        rules(
            (
                "of_states.weight",
                "embed_state.weight",
                UnscaledMap(lambda x, model: x / model.measured.deviation.to(x)),
            ),
            ("of_states.bias", "embed_state.bias", UnscaledMap(_without_mean)),
            (
                "of_actions.weight",
                "embed_action.weight",
                UnscaledMap(lambda x, model: x / model.measured.actions.to(x)),
            ),
            ("of_actions.bias", "embed_action.bias"),
            ("of_returns.weight", "embed_return.weight", UnscaledMap(lambda x, own: x / own.measured.returns.to(x))),
            ("of_returns.bias", "embed_return.bias"),
            ("of_times.weight", "embed_timestep.weight"),
            ("norm.weight", "embed_ln.weight"),
            ("norm.bias", ["embed_ln.bias", "encoder.wpe.weight", "encoder.wte.weight"], NormBias()),
            (BLOCK + "norms.0.{p}", LAYER + "ln_1.{p}"),
            (BLOCK + "norms.1.{p}", LAYER + "ln_2.{p}"),
            (BLOCK + "layers.0.projection.qkv.{p}", LAYER + "attn.c_attn.{p}", Transposed()),
            (BLOCK + "layers.0.aggregation.linear.{p}", LAYER + "attn.c_proj.{p}", Transposed()),
            (BLOCK + "layers.1.up.{p}", LAYER + "mlp.c_fc.{p}", Transposed()),
            (BLOCK + "layers.1.down.{p}", LAYER + "mlp.c_proj.{p}", Transposed()),
            ("body.norm.{p}", "encoder.ln_f.{p}"),
            ("action.{p}", ["predict_action.0.{p}", "predict_state.{p}", "predict_return.{p}"], ActionHead()),
            ("state.{p}", "predict_state.{p}"),
            ("left.{p}", "predict_return.{p}"),
            *[("measured." + name, [], AbsentScale(name)) for name in ("known", *EpisodeScales._fields)],
        ),
        aliases={
            "max_position_embeddings": "n_positions",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
        # only how numbers round; names of GPT-2, which transformers does not read here
        unread=frozenset({"reorder_and_upcast_attn", "n_ctx", "n_embd"}),
        ignored_tensors=(r"encoder\.h\.\d+\.attn\.(bias|masked_bias)",),
    ),
)

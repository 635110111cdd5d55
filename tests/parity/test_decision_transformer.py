"""Decision Transformer: the authors' code, by its goldens, and Hugging Face's on equal weights."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DecisionTransformerConfig, DecisionTransformerModel

from kinformer.core.batch import EpisodeSteps
from kinformer.members.decision_transformer import decision_transformer
from kinformer.models.trajectory import Trajectory
from kinformer.nn.feedforward.mlp import Activation
from tests.parity.goldens import Golden, close, goldens
from tests.parity.peers import agree, copy_weights, put_qkv, shaken

# the formula knows the approximated gelu alone, whatever its name
ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu_tanh", "gelu_new": "gelu_tanh", "silu": "silu"}


def ours_of(sizes: dict[str, Any], tensors: dict[str, Tensor]) -> Trajectory:
    discrete = tensors["actions"].dim() == 2
    model: Any = decision_transformer(
        d=sizes["d"],
        depth=sizes["layers"],
        heads=sizes["heads"],
        hidden=sizes["d_ff"],
        activation=ACTIVATIONS[sizes["act_fn"]],
        beside=1.0 if "state_preds" in tensors or "return_preds" in tensors else 0.0,
        context=sizes["K"],
        states=sizes["state_dim"],
        actions=sizes["act_dim"],
        discrete=discrete,
        steps=sizes["max_ep_len"],
        **({} if discrete else {"bounded": sizes.get("action_tanh", True)}),
    )
    model = model.double().eval()

    def linear(ours: Any, name: str) -> None:
        weight, bias = tensors[f"W_{name}"], bias_of(tensors, name)
        if isinstance(ours, torch.nn.Embedding):
            copy_weights(ours, weight + bias)
        else:
            copy_weights(ours, weight.T, bias)

    for ours, name in ((model.of_returns, "R"), (model.of_states, "s"), (model.of_actions, "a"), (model.action, "act")):
        linear(ours, name)
    for ours, name in ((model.state, "st"), (model.left, "ret")):
        if f"W_{name}" in tensors:
            linear(ours, name)
    copy_weights(model.of_times, tensors["E_t"])
    model.norm, model.body.norm = normed(model.norm, tensors, "ln_e"), normed(model.body.norm, tensors, "ln_f")
    for n, block in enumerate(model.body.layers):
        layer_tensors = {
            name.removeprefix(f"layers.{n}."): x for name, x in tensors.items() if name.startswith(f"layers.{n}.")
        }
        attention, mlp = block.layers
        for place, name in enumerate(("ln1", "ln2")):
            block.norms[place] = normed(block.norms[place], layer_tensors, name)
        thirds = zip(
            "qkv", layer_tensors["W_qkv"].chunk(3, -1), bias_of(layer_tensors, "qkv").chunk(3, -1), strict=True
        )
        for name, weight, bias in thirds:
            put_qkv(attention.projection, name, weight.T, bias)
        for part, name in ((attention.aggregation.linear, "o"), (mlp.up, "1"), (mlp.down, "2")):
            copy_weights(part, layer_tensors[f"W_{name}"].T, bias_of(layer_tensors, name))
    return model


def normed(norm: torch.nn.Module, tensors: dict[str, Tensor], name: str) -> torch.nn.Module:
    """The norm with a golden's weights, and none where it has none."""
    if f"{name}_gamma" not in tensors:
        return torch.nn.Identity()
    copy_weights(norm, tensors[f"{name}_gamma"], tensors[f"{name}_beta"])
    return norm


def bias_of(tensors: dict[str, Tensor], name: str) -> Tensor:
    """A bias, zeros where a golden has none."""
    return tensors.get(f"b_{name}", torch.zeros_like(tensors[f"W_{name}"][0]))


@goldens("decision_transformer")
def test_golden(golden: Golden) -> None:
    tensors = golden.tensors
    model, real = ours_of(golden.hyperparameters, tensors), tensors["mask"].bool()
    times = tensors["timesteps"].masked_fill(~real, -1)
    predicted = model.predict(
        EpisodeSteps(tensors["returns_to_go"].squeeze(-1), tensors["states"], tensors["actions"], times)
    )
    left = None if predicted.returns is None else predicted.returns[..., None]
    for ours, name in ((predicted.actions, "action_preds"), (predicted.states, "state_preds"), (left, "return_preds")):
        if name in tensors:
            assert ours is not None
            close(torch.where(real[..., None], ours, 0.0), tensors[name])


@pytest.mark.parametrize("activation", ["relu", "gelu_new"])
def test_hugging_face_on_equal_weights(activation: str) -> None:
    """Theirs adds the first row of a table of positions to every token, which is zero here; its scores are GPT-2's."""
    torch.manual_seed(0)
    sizes = {"d": 24, "heads": 3, "layers": 2, "d_ff": 40, "state_dim": 5, "act_dim": 2, "max_ep_len": 12, "K": 4}
    config = DecisionTransformerConfig(
        state_dim=5,
        act_dim=2,
        hidden_size=24,
        max_ep_len=12,
        n_layer=2,
        n_head=3,
        n_inner=40,
        initializer_range=0.3,
        activation_function=activation,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    theirs: Any = shaken(DecisionTransformerModel(config).double().eval())
    theirs.encoder.wpe.weight.data.zero_()
    batch = EpisodeSteps(
        torch.randn(3, 4).double(), torch.randn(3, 4, 5).double(), torch.randn(3, 4, 2).double(), TIMES
    )
    real = TIMES >= 0
    with torch.no_grad():
        want = theirs(
            states=batch.states,
            actions=batch.actions,
            returns_to_go=batch.returns[..., None],
            timesteps=TIMES.clamp_min(0),
            attention_mask=real.long(),
            rewards=None,
        )
    predicted = ours_of({**sizes, "act_fn": activation}, named(theirs, batch)).predict(batch)
    assert predicted.states is not None and predicted.returns is not None
    agree(predicted.actions[real], want.action_preds[real], 1e-6)
    agree(predicted.states[real], want.state_preds[real], 1e-6)
    agree(predicted.returns[real], want.return_preds[real].squeeze(-1), 1e-6)


TIMES = torch.tensor([[0, 1, 2, 3], [-1, -1, 7, 8], [-1, 0, 1, 2]])
OUTER = {
    "W_R": "embed_return",
    "W_s": "embed_state",
    "W_a": "embed_action",
    "W_act": "predict_action.0",
    "W_st": "predict_state",
    "W_ret": "predict_return",
}
INNER = {"W_qkv": "attn.c_attn", "W_o": "attn.c_proj", "W_1": "mlp.c_fc", "W_2": "mlp.c_proj"}


def named(theirs: Any, batch: EpisodeSteps) -> dict[str, Tensor]:
    """Hugging Face's weights by the goldens' names, for row vectors."""
    their_tensors = dict(theirs.state_dict())
    named_tensors = {
        "actions": batch.actions,
        "state_preds": batch.states,
        "E_t": their_tensors["embed_timestep.weight"],
    }
    for name, where in OUTER.items():
        named_tensors |= {name: their_tensors[f"{where}.weight"].T, f"b_{name[2:]}": their_tensors[f"{where}.bias"]}
    for name, where in (("ln_e", "embed_ln"), ("ln_f", "encoder.ln_f")):
        named_tensors |= {
            f"{name}_gamma": their_tensors[f"{where}.weight"],
            f"{name}_beta": their_tensors[f"{where}.bias"],
        }
    for n in range(len(theirs.encoder.h)):
        for name, where in INNER.items():
            full = f"encoder.h.{n}.{where}"
            named_tensors |= {
                f"layers.{n}.{name}": their_tensors[f"{full}.weight"],
                f"layers.{n}.b_{name[2:]}": their_tensors[f"{full}.bias"],
            }
        for name, where in (("ln1", "ln_1"), ("ln2", "ln_2")):
            full = f"encoder.h.{n}.{where}"
            named_tensors |= {
                f"layers.{n}.{name}_gamma": their_tensors[f"{full}.weight"],
                f"layers.{n}.{name}_beta": their_tensors[f"{full}.bias"],
            }
    return named_tensors

"""Models of transformers that read no text, read and written: equal predictions, padding, and the way back."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import kinformer as kf
from kinformer.bridge.family import default_keywords, families, native
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.core.batch import EpisodeSteps
from kinformer.models.support.scale_buffers import EpisodeScales
from kinformer.models.support.window_actor import TrajectoryPrediction
from tests.bridge.test_hf_folder import changed
from tests.parity.peers import agree, shaken

DECISION = {"state_dim": 5, "act_dim": 2, "hidden_size": 24, "max_ep_len": 12, "n_layer": 2, "n_head": 3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "decision_transformer": ("decision_transformer", DECISION),
    "decision_transformer, odd": (
        "decision_transformer",
        {
            **DECISION,
            "n_inner": 40,
            "n_positions": 1,
            "vocab_size": 7,
            "action_tanh": False,
            "activation_function": "gelu_new",
        },
    ),
}
TIMES = torch.tensor([[0, 1, 2, 3], [-1, -1, 7, 8], [-1, 0, 1, 11]])


def peer(case: str, dtype: torch.dtype = torch.float64) -> Any:
    kind, keys = CASES[case]
    config = transformers.AutoConfig.for_model(kind, **{"initializer_range": 0.3, **keys})
    return shaken(transformers.AutoModel.from_config(config).to(dtype).eval())


def steps(dtype: torch.dtype) -> EpisodeSteps:
    returns, states, actions = torch.randn(3, 4), torch.randn(3, 4, 5) * 3 + 2, torch.randn(3, 4, 2)
    return EpisodeSteps(returns.to(dtype), states.to(dtype), actions.to(dtype), TIMES)


@torch.no_grad()
def compare(predicted: TrajectoryPrediction, theirs: Any, batch: EpisodeSteps, heads: bool = True) -> None:
    real = batch.times >= 0
    want = theirs(
        states=batch.states,
        actions=batch.actions,
        returns_to_go=batch.returns[..., None],
        timesteps=batch.times.clamp_min(0),
        attention_mask=real.long(),
    )
    agree(predicted.actions[real], want.action_preds[real])
    assert heads == (predicted.states is not None) == (predicted.returns is not None)
    if predicted.states is not None and predicted.returns is not None:
        agree(predicted.states[real], want.state_preds[real])
        agree(predicted.returns[real], want.return_preds[real].squeeze(-1))


def written(ours: Any, like: Tensor) -> Any:
    """The class of transformers with the config and the weights that are written for our model."""
    family, config = native(ours)
    keys = {key: value for key, value in config.items() if key != "architectures"}
    model = getattr(transformers, family.architecture)(transformers.AutoConfig.for_model(**keys)).to(like.dtype).eval()
    model.load_state_dict(family.split(ours))
    return model


def test_every_family_without_a_vocabulary_has_a_case() -> None:
    others = {kind for kind, family in families().items() if "vocab" not in default_keywords(family.member)}
    assert {kind for kind, _ in CASES.values()} == others


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_predictions_are_equal_and_the_model_is_written(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    theirs, batch = peer(case, dtype), steps(dtype)
    theirs.save_pretrained(tmp_path)
    ours = kf.load(tmp_path)
    predicted = ours.predict(batch)
    compare(predicted, theirs, batch)
    compare(predicted, written(ours, batch.states), batch)


@pytest.mark.parametrize("beside", [0.0, 0.5])
def test_scales_of_the_training_become_part_of_the_weights(beside: float) -> None:
    ours: Any = kf.decision_transformer(
        d=16, depth=1, heads=2, states=5, actions=2, discrete=False, beside=beside, best=30, context=7, steps=12
    )
    shaken(ours.double().eval())
    largest, span = torch.tensor([2.0, 3.0]), torch.tensor([-1.0, 4.0])
    scales = EpisodeScales(torch.randn(5), torch.rand(5) + 0.5, torch.tensor(7.0), largest, span, torch.tensor(False))
    ours.measured.set_scales(scales)
    batch = steps(torch.float64)
    compare(ours.predict(batch), written(ours, batch.states), batch, heads=beside > 0)
    assert native(ours)[1]["max_length"] == 7


@pytest.mark.parametrize(
    ("case", "keys", "message"),
    [
        ("decision_transformer", {"layer_norm_epsilon": 1e-3}, "layer_norm_epsilon=0.001, expected 1e-05"),
        ("decision_transformer", {"scale_attn_weights": False}, "scale_attn_weights=False"),
        ("decision_transformer", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("decision_transformer", {"add_cross_attention": True}, "add_cross_attention=True"),
        ("decision_transformer", {"activation_function": "mish"}, "activation_function='mish'"),
        ("decision_transformer", {"action_clip": 1.0}, "action_clip=1.0, expected no such key"),
        ("decision_transformer", {"state_dim": 6}, "embed_state.weight have the wrong shape"),
    ],
)
def test_keys_that_are_not_followed_are_refused(case: str, keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    peer(case).save_pretrained(tmp_path)
    changed(tmp_path, **keys)
    with pytest.raises(CheckpointError, match=message):
        kf.load(tmp_path)


@pytest.mark.parametrize("keywords", [{"discrete": True}, {"discrete": False, "pattern": "Causal() & Band(6)"}])
def test_models_of_another_kind_are_not_written(keywords: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="DecisionTransformerModel cannot compute "):
        native(kf.decision_transformer(d=16, depth=1, **keywords))

"""The conversion `memory`: what is promised, against transformers under the same mask; decoding, training, saving."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import kinformer as kf
from kinformer.lab.conversion.reading_costs import state_bytes
from kinformer.nn.memories.hidden import Hidden
from tests.cuts import agree_however_cut
from tests.parity.peers import agree, shaken

pytestmark = pytest.mark.usefixtures("float64")
LONG = 31


def source(member: str = "llama") -> Any:
    torch.manual_seed(3)
    keywords = {"key_heads": 1} if member == "llama" else {"length": 64} if member == "gpt" else {}
    model = getattr(kf, member)(d=16, depth=3, heads=2, vocab=11, **keywords)
    return shaken(model).eval()


def readable(segment: int, memory: int, sinks: int) -> Tensor:
    """Pairs that a layer reads, one query and one key at a time."""
    mask = torch.zeros(LONG, LONG, dtype=torch.bool)
    for i in range(LONG):
        begin = i - i % segment  # of the query's segment
        for j in range(i + 1):
            mask[i, j] = j >= begin or begin - j <= memory or j < sinks
    return mask


@pytest.mark.parametrize("sinks", [0, 2])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox"])
def test_it_is_the_model_of_transformers_under_that_mask(kind: str, sinks: int, tmp_path: Path) -> None:
    """Theirs has rotations, norms and GELU in float32 whatever its dtype."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": LONG}
    keys = {
        "llama": {**sizes, "num_key_value_heads": 1, "intermediate_size": 40},
        "gpt_neox": {**sizes, "hidden_size": 32},
    }.get(kind, {"n_embd": 24, "n_layer": 3, "n_head": 2, "n_positions": LONG})
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "initializer_range": 0.3}
    config = transformers.AutoConfig.for_model(kind, vocab_size=11, **ends, **keys)
    theirs: Any = shaken(transformers.AutoModelForCausalLM.from_config(config).to(torch.float64).eval())
    theirs.save_pretrained(tmp_path)
    tokens = torch.randint(0, 11, (2, LONG))
    mask = torch.where(readable(4, 3, sinks), 0.0, torch.finfo(torch.float64).min)
    with torch.no_grad():
        want = theirs(tokens, attention_mask=mask.expand(2, 1, -1, -1)).logits
        source = kf.load(tmp_path)
        if sinks and kind != "gpt2":  # they have no sinks at a distance that is at most a trained one
            ours = kf.convert(source, f"Causal() & (Segment(4, 3) | Tokens({sinks}))")
        else:
            ours = kf.convert(source, "memory", segment=4, memory=3, sinks=sinks)
        agree(ours.logits(tokens).y, want, 1e-6)
    assert not torch.allclose(want[:, 9:], theirs(tokens).logits[:, 9:], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("member", ["llama", "gpt", "gpt_neox", "bloom"])
@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({"segment": 4, "memory": 8, "sinks": 2}, 12),  # the segment from 12 on misses 2 and 3
        ({"segment": 4, "memory": 6, "sinks": 0}, 8),
        ({"segment": 5, "memory": 0, "sinks": 0}, 5),
        ({"segment": 5, "memory": 0, "sinks": 3, "keep": (1, 3)}, 5),
        ({"segment": 4, "memory": 2, "sinks": 4}, 8),  # the segment from 8 on reads 0 to 3 and 6 to 8
        ({"segment": 4, "memory": 4, "sinks": 4}, 12),
    ],
)
def test_rows_of_the_promised_length_are_equal_and_longer_rows_are_not(
    member: str, options: dict[str, Any], length: int
) -> None:
    model = source(member)
    new = kf.convert(model, "transformer_xl", **options)
    assert new.report.plan.promise.length == length
    tokens = torch.randint(0, 11, (4, LONG))
    want, y = model.logits(tokens).y, new.logits(tokens).y
    torch.testing.assert_close(y[:, :length], want[:, :length], rtol=0, atol=1e-12)
    assert (y[:, length] - want[:, length]).abs().max() > 1e-6


@pytest.mark.parametrize("member", ["llama", "gpt_neox", "bloom"])
def test_training_by_chunks_decoding_and_one_dense_call_agree(member: str) -> None:
    new = kf.convert(source(member), "xl", segment=5, memory=4, sinks=0)
    assert new.lanes and all(isinstance(layer.memory, Hidden) for layer in attention_of(new))
    agree_however_cut(new)


def attention_of(model: Any) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, kf.Attention)]


@pytest.mark.parametrize("options", [{"sinks": 2}, {"sinks": 0}, {"sinks": 0, "keep": (2,)}])
@pytest.mark.parametrize("member", ["llama", "gpt", "bloom"])
def test_chunks_of_a_decoding_agree_with_whole_rows(member: str, options: dict[str, Any]) -> None:
    new, tokens = kf.convert(source(member), "memory", segment=4, memory=6, **options), torch.randint(0, 11, (2, LONG))
    state, pieces = new.start(2, LONG), []
    for chunk in tokens.split([1, 6, 1, 1, 9, 13], 1):
        out = new.logits(chunk, state)
        state = out.state
        pieces.append(out.y)
    torch.testing.assert_close(torch.cat(pieces, 1), new.logits(tokens).y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sinks", [0, 3])
def test_the_state_has_one_size_from_the_first_full_memory_on(sinks: int) -> None:
    new = kf.convert(source(), "memory", segment=4, memory=8, sinks=sinks)
    assert state_bytes(new.start(1, 30)) == state_bytes(new.start(1, 3000)) < state_bytes(source().start(1, 30))
    state = new.logits(torch.tensor([[1]]), new.start(1, 3000)).state
    size = state_bytes(state)
    for chunk in torch.randint(0, 11, (1, 69)).split([30, 1, 37, 1], 1):
        state = new.logits(chunk, state).state
        assert state_bytes(state) == size


def test_training_carries_states_only_where_no_sink_no_table_and_no_full_layer_needs_whole_rows() -> None:
    carries = [("llama", {"sinks": 0}), ("bloom", {"sinks": 0})]
    for member, options in carries:
        assert kf.convert(source(member), "memory", **options).lanes
    for member, options in [("llama", {}), ("gpt", {"sinks": 0}), ("llama", {"sinks": 0, "keep": (1,)})]:
        new = kf.convert(source(member), "memory", segment=3, memory=3, **options)
        assert not new.lanes and all(layer.memory is None for layer in attention_of(new))
        tokens = torch.randint(0, 11, (1, 12))
        x = new.embedding.weight.detach()[tokens].requires_grad_()
        # the gradient of the last token's output enters the segments before its own
        new.train().body(x).y[0, -1].sum().backward()
        assert (x.grad[0, 6:].abs().amax(1) > 0).all()


def test_a_carried_memory_gets_no_gradient() -> None:
    new = kf.convert(source(), "memory", segment=3, memory=3, sinks=0).train()
    x = new.embedding.weight.detach()[torch.randint(0, 11, (1, 12))].requires_grad_()
    new.body(x).y[0, -1].sum().backward()
    assert (x.grad[0, :9] == 0).all() and (x.grad[0, 9:].abs().amax(1) > 0).all()


@pytest.mark.parametrize("member", ["llama", "gpt", "bloom"])
@pytest.mark.parametrize("sinks", [0, 2])
def test_it_is_saved_and_loaded(member: str, sinks: int, tmp_path: Path) -> None:
    new, tokens = kf.convert(source(member), "memory", segment=4, memory=3, sinks=sinks), torch.randint(0, 11, (2, 20))
    kf.save(new, tmp_path / "a")
    back = kf.load(tmp_path / "a")
    assert torch.equal(back.logits(tokens).y, new.logits(tokens).y)
    assert back.lanes == new.lanes and back.member == new.member
    kf.save(back, tmp_path / "b")
    assert kf.load(tmp_path / "b").member == new.member


def test_models_that_it_does_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot give this bert a memory.* does not predict the next token. Use"):
        kf.convert(kf.bert(d=16, depth=1, heads=2, vocab=11), "memory")
    with pytest.raises(ValueError, match="cannot give body.layers.0.layers.0 a memory: it has one already .Hidden"):
        kf.convert(kf.transformer_xl(d=16, depth=1, heads=2, vocab=11), "memory")
    for wrong in ({"segment": 0}, {"memory": -1}, {"sinks": -1}, {"keep": (4,)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            kf.convert(source(), "memory", **wrong)

"""Uninitialised: which draws it skips, what a member needs besides its weights, and where models are read with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import kinformer as kf
from kinformer.bridge import hf_folder
from kinformer.checkpoint import checkpoint
from kinformer.core.discover import examples, find_member
from kinformer.core.uninitialised import Uninitialised
from tests.bridge.test_decoders import peer

SOME = ("bert", "gpt_neox", "llama", "performer", "reformer", "routing_transformer", "set_transformer")


@pytest.fixture(autouse=True)
def nan_in_new_memory() -> Iterator[None]:
    """Fill uninitialised memory with NaN, so that whatever is computed from it shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield
    torch.use_deterministic_algorithms(False)


def test_only_parameters_without_a_generator_are_skipped() -> None:
    seeded = [torch.zeros(4).normal_(generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    with Uninitialised():
        linear, embedding = nn.Linear(3, 5), nn.Embedding(4, 2)
        own = nn.Parameter(torch.zeros(4))
        nn.init.normal_(own, generator=torch.Generator().manual_seed(3))
        buffer, view = torch.zeros(4).normal_(), nn.Parameter(torch.zeros(4, 2))
        nn.init.xavier_uniform_(view[:2])
        truncated = nn.init.trunc_normal_(nn.Parameter(torch.empty(9)))  # redraws numbers that are too large
        assert nn.init.normal_(tensor=own) is own
    for weight in (linear.weight, linear.bias, embedding.weight):
        assert weight.isnan().all()
    assert torch.equal(own, seeded[0]) and (buffer != 0).all() and (view[:2] != 0).all() and truncated.shape == (9,)
    assert not nn.Linear(3, 5).weight.isnan().any()


def loose_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The numbers of a model that no file holds: buffers that are not saved, and plain attributes."""
    saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    for name, part in model.named_modules():
        every = {**dict(part.named_buffers(recurse=False)), **vars(part)}
        for key, value in every.items():
            if isinstance(value, Tensor) and id(value) not in saved and value.is_floating_point():
                yield f"{name}.{key}", value


@pytest.mark.parametrize("files", [SOME, pytest.param((), marks=pytest.mark.prove)])
def test_all_that_members_do_not_save_is_as_ever(files: tuple[str, ...]) -> None:
    """In the long run of all members."""
    chosen = [(name, example) for name, example in examples("members") if name in files or not files]
    assert len(chosen) >= len(files) > 0 or len(chosen) > 100
    for name, example in chosen:
        with Uninitialised():
            model = example.make()
        assert any(weight.isnan().any() for weight in model.parameters()), name
        buffers = [(key, buffer) for key, buffer in model.named_buffers() if buffer.is_floating_point()]
        wrong = [key for key, tensor in (*loose_tensors(model), *buffers) if tensor.isnan().any()]
        assert not wrong, f"{name} computes {wrong} from its first weights"


@pytest.mark.parametrize(("reader", "case"), [(hf_folder, "llama"), (checkpoint, None)])
def test_no_weights_are_drawn_that_a_file_replaces(
    reader: Any, case: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case is None:
        kf.save(kf.llama(d=16, depth=1, heads=2, key_heads=1, vocab=11), tmp_path)
    else:
        peer(case).save_pretrained(tmp_path)
    unread: list[bool] = []
    load_tensors = reader.load_tensors

    def look(model: nn.Module, *rest: Any) -> None:
        unread.append(all(weight.isnan().all() for weight in model.parameters() if weight.dim() == 2))
        load_tensors(model, *rest)

    monkeypatch.setattr(reader, "load_tensors", look)
    model, state = kf.load(tmp_path), torch.get_rng_state()
    assert unread == [True] and not any(weight.isnan().any() for weight in model.parameters())
    kf.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_missing_head_is_drawn(tmp_path: Path) -> None:
    config = transformers.BertConfig(vocab_size=19, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    transformers.BertModel(config).to(torch.bfloat16).save_pretrained(tmp_path)
    with pytest.warns(match="no head"):
        model = kf.load(tmp_path)
    assert not any(weight.isnan().any() for weight in model.parameters())
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_the_first_weights_of_a_users_member_are_drawn(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import kinformer as kf\nfrom kinformer.core.discover import member\n\n\n@member\ndef mine(d: int = 8):\n"
        "    model = kf.LM(11, d, kf.Stack([kf.PreNorm(kf.MLP(d))]))\n"
        "    assert not model.embedding.weight.isnan().any()\n    return model\n"
    )
    mine = find_member(f"{file}:mine")
    kf.save(mine(), tmp_path / "run")
    kf.load(tmp_path / "run", mine)

"""Luna: two layers of the encoder by hand, packs that are not carried up, and what each form reads."""

import pytest
import torch

import kinformer as kf
from kinformer.nn.depth.luna import LunaBlock
from tests.members.probes import distances, first_part, multi_head, receptive_field

pytestmark = pytest.mark.usefixtures("float64")

SMALL = {"d": 8, "heads": 2, "depth": 2, "packs": 3, "length": 12, "vocab": 11}


def check(model: kf.MLM) -> None:
    """Y_P = Attn(P, X), Y_X = Attn(X, Y_P), X_A = LN(Y_X + X), P' = LN(Y_P + P), X' = LN(FFN(X_A) + X_A)."""
    body, x, y = first_part(model, kf.LunaStack)
    p = body.packs()
    for block in body.blocks:
        packed = multi_head(block.nested.pack, p, x)
        attended = block.x_norm(multi_head(block.nested.unpack, x, packed) + x)
        x, p = block.mlp_norm(block.mlp(attended[None]).y[0] + attended), block.p_norm(packed + p)
    torch.testing.assert_close(y, x)


@pytest.mark.parametrize("tied", [False, True])
def test_a_row_is_packed_and_unpacked_in_each_layer(tied: bool) -> None:
    check(kf.luna(**SMALL, tied=tied))


def test_packs_that_are_not_carried_up_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LunaBlock.forward
    monkeypatch.setattr(LunaBlock, "forward", lambda self, x, p, *contexts: (forward(self, x, p, *contexts)[0], p))
    with pytest.raises(AssertionError):
        check(kf.luna(**SMALL))


def test_an_encoder_reads_all_tokens_and_a_decoder_those_before() -> None:
    assert receptive_field(kf.luna(**SMALL)).all()
    assert torch.equal(receptive_field(kf.luna(**SMALL, form="decoder")), distances() >= 0)


def test_layers_of_a_decoder_share_their_packs_and_tied_keys_are_values() -> None:
    model = kf.luna(**SMALL, form="decoder")
    packs = {id(block.layers[0].mechanism.packs.p) for block in model.body.layers}
    assert len(packs) == 1
    apart, tied = (sum(w.numel() for w in kf.luna(**SMALL, tied=tied).parameters()) for tied in (False, True))
    assert apart - tied == 2 * 2 * (8 * 8 + 8)  # of each layer a matrix of both attentions

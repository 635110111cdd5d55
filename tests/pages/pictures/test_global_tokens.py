"""Pictures of global nodes and of rows whose last block is global."""

import torch

from kinformer.core.discover import examples
from kinformer.core.pattern_parser import parse
from kinformer.nn.patterns.band import Band
from kinformer.pages.pictures.global_tokens import global_ends, global_nodes


def test_the_four_pieces_of_global_tokens() -> None:
    soft, hard = (next(global_nodes(x.make(), 15)) for file, x in examples("depth") if file == "global_tokens")
    kind = soft.panels[0].kind
    assert (kind[:3, :3] == 1).all() and (kind[:3, 3:] == 2).all() and (kind[3:, :3] == 3).all()
    assert torch.equal(kind[3:, 3:] == 4, Band(2).matrix(12))
    kind = hard.panels[0].kind
    for n in range(3):  # each reads the four tokens of its own segment alone, and these read it alone
        assert (kind[n, 3:] == 2).nonzero().flatten().tolist() == list(range(4 * n, 4 * n + 4))
        assert (kind[3:, n] == 3).nonzero().flatten().tolist() == list(range(4 * n, 4 * n + 4))


def test_nodes_at_a_rows_end_are_drawn_as_the_layer_reads() -> None:
    x, _ = (x.make() for file, x in examples("depth") if file == "global_ends")
    (picture,) = global_ends(x, 8)  # blocks of 3, so the last one is 6, 7
    last = torch.arange(8) >= 6
    whole = parse("Block(3)").matrix(8) | last | last[:, None]
    assert torch.equal(picture.panels[0].kind > 0, whole)
    assert torch.equal(picture.panels[0].kind == 1, parse("Block(3)").matrix(8))

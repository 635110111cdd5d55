"""The picture of who reads whom."""

from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.causal import Causal
from kinformer.pages.pictures import who_reads
from kinformer.pages.pictures.support.picture_panels import CELLS


def test_a_drawing_that_is_full_is_made_longer() -> None:
    (picture,) = who_reads.pictures(parse("Block(1, 1) | Random(3, 1) | Tokens(1) | Rows(1)"), None)
    assert picture.panels[0].level.mean() < 0.7
    (picture,) = who_reads.pictures(Causal(), None)  # that stays as full as it is
    assert len(picture.panels[0].rows) == CELLS and not picture.note

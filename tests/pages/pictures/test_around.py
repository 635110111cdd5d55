"""The picture of the keys that a place of an image reads."""

from kinformer.nn.patterns.axial import Axial
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.image_2d import Image2D
from kinformer.pages.pictures import around


def test_what_a_place_reads_is_drawn_in_the_picture() -> None:
    (picture,) = around.pictures(Image2D(6, (2, 3), (1, 1)), 48)
    (panel,) = picture.panels
    assert panel.kind.tolist() == [
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1],
        [0, 0, 1, 2, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    assert "pixels that pixel (5, 3), position 33, reads" in picture.caption
    (picture,) = around.pictures(Axial((3, 4), 0), None)
    assert picture.panels[0].kind.tolist() == [[0, 0, 1, 0], [0, 0, 2, 0], [0, 0, 1, 0]]
    assert list(around.pictures(Band(3), None)) == []

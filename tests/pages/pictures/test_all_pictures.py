"""The pictures of every member's page: each is drawn, whatever its layers want from each other."""

import pytest

from kinformer.core.discover import examples
from kinformer.pages.pictures.support.all_pictures import pictures


@pytest.mark.prove
def test_the_pictures_of_every_member_are_drawn() -> None:
    failed = {}
    for file, x in examples("members"):
        try:
            list(pictures(x.make(), 12))
        except Exception as error:
            failed[file] = repr(error)
    assert not failed, failed

"""Suggestions for unknown names: a synonym, else the nearest name, else all names or a text."""

import pytest

from kinformer.core.did_you_mean import suggest_names

NAMES = ("pairs", "images", "text")


@pytest.mark.parametrize(
    ("name", "names", "otherwise", "expected"),
    [
        ("image", NAMES, None, "; the nearest is 'images'"),
        ("pears", NAMES, "; ask for help", "; the nearest is 'pairs'"),
        ("xylophone", NAMES, None, "; there are images, pairs, text"),
        ("xylophone", NAMES, "; ask for help", "; ask for help"),
        ("image", (), None, "; there are none"),
        ("n_layer", ("depth", "d_layer"), None, "; use 'depth' instead"),
        ("n_layer", ("n_layers", "d"), None, "; the nearest is 'n_layers'"),
    ],
)
def test_a_synonym_or_the_nearest_name_is_suggested(
    name: str, names: tuple[str, ...], otherwise: str | None, expected: str
) -> None:
    assert suggest_names(name, iter(names), otherwise) == expected

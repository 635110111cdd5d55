"""Every member whose heads have a width takes another one than d / heads, and each head's matrices follow it."""

import inspect

import pytest

from kinformer.attention import Attention
from kinformer.discover import find_member, members

SIZES = {"d": 16, "depth": 2, "heads": 2, "head_dim": 12}
# heads that share their columns, and heads whose layers are other papers' wholes
WITHOUT = {"collaborative", "luna", "poolingformer", "set_transformer"}
FORMS = {"average_attention": {"form": "encoder_decoder"}}  # its decoder alone has no attention
HEADED = [name for name, function in members().items() if "heads" in inspect.signature(function).parameters]


@pytest.mark.parametrize("name", sorted(set(HEADED) - WITHOUT))
def test_a_head_is_as_wide_as_it_is_told(name: str) -> None:
    function = find_member(name)
    sizes = {key: size for key, size in SIZES.items() if key in inspect.signature(function).parameters}
    model = function(**sizes, **FORMS.get(name, {}))
    widths = {(part.sizes.k_dim, part.sizes.v_dim) for part in model.modules() if isinstance(part, Attention)}
    assert widths and widths <= {(12, 12), (0, 12)}


def test_those_without_are_still_there() -> None:
    assert set(HEADED) >= WITHOUT

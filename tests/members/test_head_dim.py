"""Every member whose heads have a width takes another one than d / heads, and each head's matrices follow it."""

import inspect
from typing import Any

import pytest

from kinformer.core.discover import find_member, members
from kinformer.nn.attention import Attention

SIZES = {"d": 16, "depth": 2, "heads": 2, "head_dim": 12}
FORMS = {"average_attention": {"form": "encoder_decoder"}}  # its decoder alone has no attention
# heads that share their columns, and packing heads, whose numbers side by side are a pack
OTHERS = {"collaborative": {(4 + 2, 12)}, "luna": {(8, 8)}}
HEADED = [name for name, function in members().items() if "heads" in inspect.signature(function).parameters]


@pytest.mark.parametrize("name", sorted(HEADED))
def test_a_head_is_as_wide_as_it_is_told(name: str) -> None:
    function = find_member(name)
    sizes = {key: size for key, size in SIZES.items() if key in inspect.signature(function).parameters}
    model = function(**sizes, **FORMS.get(name, {}))
    widths = {(part.sizes.k_dim, part.sizes.v_dim) for part in model.modules() if isinstance(part, Attention)}
    expected = {(12, 12), (0, 12), *OTHERS.get(name, ())}
    assert widths and widths <= expected and any(v == 12 for _, v in widths)


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("collaborative", {}),
        ("luna", {"packs": 3}),
        ("luna", {"packs": 3, "form": "decoder", "tied": True}),
        ("poolingformer", {"near": 1, "far": 4, "kernel": 3, "stride": 2}),
        ("set_transformer", {"inducing": 3}),
    ],
)
def test_what_is_joined_is_as_wide_as_the_model_again(name: str, keywords: dict[str, Any]) -> None:
    model = find_member(name)(**SIZES, **keywords)
    loss = model(model.sample(2, 9, 0)).total
    loss.backward()
    assert loss.isfinite() and all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "keywords", "text"),
    [
        (
            "predictive_attention",
            {"size": 2},
            "size=2 is even, so the kernel has no centre; give an odd size, or form=decoder",
        ),
        ("disagreement", {"position": -1.0}, "^position=-1.0: give"),
        ("guided_attention", {"alpha": -1.0}, "^alpha=-1.0: give"),
        ("guided_attention", {"share": 0.0, "alpha": 3.0}, "alpha=3.0 has no effect with guides=.*, share=0.0"),
        ("localness", {"local": 0, "window": "layer"}, "window=layer has no effect with local=0"),
        ("poolingformer", {"shared": True}, "head_dim=12 has no effect with shared=true"),
        ("set_transformer", {"form": "published"}, "head_dim=12 has no effect with form=published"),
        ("average_attention", {"form": "decoder"}, "heads=2 has no effect with form=decoder"),
    ],
)
def test_what_has_no_meaning_is_refused_by_its_name(name: str, keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        find_member(name)(**SIZES, **keywords)

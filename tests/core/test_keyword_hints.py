"""Unknown keywords are refused with the keyword to use, and signatures stay as they are."""

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import kinformer as kf
from kinformer.core.keyword_hints import KeywordHints, hint_keywords
from tests.unhooked import unhooked

WRONG = "a_keyword_that_nothing_has"


def classes() -> list[type]:
    values = (getattr(kf, name) for name in dir(kf) if not name.startswith("_"))
    return [value for value in values if inspect.isclass(value) and issubclass(value, KeywordHints)]


def test_every_public_part_refuses_an_unknown_keyword_before_it_is_made() -> None:
    assert len(classes()) > 200
    for cls in classes():
        if not inspect.isabstract(cls):
            with pytest.raises(TypeError, match=f"^{cls.__name__} has no keyword '{WRONG}'") as caught:
                cls(**{WRONG: 1})
            assert "\n" not in str(caught.value)


def test_every_public_module_and_pattern_has_the_hint() -> None:
    """A class without it would answer with Python's own message."""
    values = (getattr(kf, name) for name in dir(kf) if not name.startswith("_"))
    parts = [value for value in values if inspect.isclass(value) and issubclass(value, nn.Module | kf.Pattern)]
    assert [part.__name__ for part in parts if not issubclass(part, KeywordHints)] == []


def test_signatures_are_the_constructors_own() -> None:
    assert list(inspect.signature(kf.QKV).parameters)[:3] == ["d", "heads", "key_heads"]
    assert list(inspect.signature(kf.Band).parameters) == ["left", "right"]
    assert list(inspect.signature(kf.generate).parameters)[:3] == ["model", "tokens", "steps"]
    assert list(inspect.signature(kf.Layer.__call__).parameters) == ["self", "x", "state", "ctx"]
    assert list(inspect.signature(kf.LM.forward).parameters) == ["self", "batch", "state", "progress"]
    assert "kwargs" not in inspect.signature(kf.load).parameters


def test_parts_are_copied_and_pickled_as_before() -> None:
    pattern = kf.Causal() & kf.Band(left=3)
    assert pickle.loads(pickle.dumps(pattern)) == copy.deepcopy(pattern) == pattern
    linear = pickle.loads(pickle.dumps(kf.MLP(8, hidden=4)))
    assert torch.equal(linear(torch.ones(1, 2, 8)).y, copy.deepcopy(linear)(torch.ones(1, 2, 8)).y)


class Free(kf.MLP):
    """A user's layer that takes a keyword of its own from its `**kwargs`."""

    def __init__(self, d: int, **kwargs: Any) -> None:
        self.own = kwargs.pop("own", 0)
        super().__init__(d, **kwargs)


def test_a_constructor_of_other_code_may_take_any_keyword() -> None:
    assert Free(8, own=3, hidden=5).own == 3
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        Free(8, other=3)


def test_keywords_of_a_function_are_checked_before_it_runs() -> None:
    @hint_keywords
    def scale(x: float, *, learning_rate: float = 1.0, heads: int = 1) -> float:
        return x * learning_rate * heads

    assert scale(2.0, learning_rate=3.0) == 6.0
    with pytest.raises(TypeError, match=r"^scale has no keyword 'n_head'; use 'heads' instead$"):
        scale(2.0, n_head=2)  # type: ignore[call-arg]


def test_a_class_without_constructor_takes_no_argument() -> None:
    class Plain(KeywordHints):
        pass

    with pytest.raises(TypeError, match=r"^Plain\(\) takes no arguments$"):
        Plain(3)


def test_a_function_that_takes_any_keyword_stays_as_it_is() -> None:
    def free(x: int, **kwargs: int) -> int:
        return x + sum(kwargs.values())

    assert hint_keywords(free) is free


class UserModel(kf.LM):
    """A user's model, whose methods have other arguments than the library's."""

    def forward(self, batch: Any, state: Any = None, progress: float = 0.0, **extra: Any) -> Any:
        return super().forward(batch, state, progress), extra


def test_the_methods_of_a_user_s_model_are_not_wrapped() -> None:
    model = UserModel(11, 8, kf.Stack([kf.PreNorm(kf.MLP(8))]))
    assert model(torch.tensor([[1, 2]]), lang="de")[1] == {"lang": "de"}
    with pytest.raises(TypeError, match="^UserModel has no keyword 'attention_mask'"):
        model.logits(torch.tensor([[1, 2]]), attention_mask=None)  # type: ignore[call-arg]


def test_each_function_has_a_code_object_with_its_own_name() -> None:
    functions = [kf.generate, kf.attend, kf.LM.forward, kf.LM.logits, kf.MLM.forward]
    assert [function.__code__.co_name for function in functions[:3]] == ["generate", "attend", "forward"]
    assert len({id(function.__code__) for function in functions}) == len(functions)


def test_plain_data_of_each_call_has_no_hints() -> None:
    """They are made in every layer of every call."""
    assert not issubclass(kf.Context, KeywordHints) and not issubclass(kf.Request, KeywordHints)


def test_a_compiled_graph_makes_patterns_and_calls_layers_by_keyword() -> None:
    assert unhooked(f"{__name__}:compiled")


def compiled() -> bool:
    layer, x = kf.Attention(kf.QKV(8, 2), kf.Softmax(kf.Causal())), torch.randn(1, 6, 8)

    def narrowed(x: torch.Tensor) -> torch.Tensor:
        return layer(x, ctx=kf.Context.of_sequence(x).replace(only=kf.And(kf.Causal(), kf.Band(left=1)))).y

    return torch.allclose(torch.compile(narrowed, fullgraph=True, backend="eager")(x), narrowed(x), atol=1e-6)

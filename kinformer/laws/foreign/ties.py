"""Law ties: tied weights stay one weight after saving and loading, and after a gradient step."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from kinformer.laws.foreign.support.black_box import BlackBox
from kinformer.laws.foreign.support.saving import save_and_load, tied_names
from kinformer.laws.support.findings import Broken, Unjudged, findings

SAYS = "tied weights stay one weight after saving and loading, and after a gradient step"
OVER = "module"


def judge(box: BlackBox) -> Iterator[str]:
    """Save, load and train a model with tied weights, and yield a sentence for each tie that comes apart.

    box: the model.
    """
    yield from findings(_check_tied, box)
    groups = tied_names(box.original)
    if not groups:
        raise Unjudged("no weights are tied")
    for case, make in (
        ("a change of precision", lambda: box.model),
        ("saving and loading", lambda: save_and_load(box)),
    ):
        yield from findings(_check_groups, groups, case, make)
    yield from findings(_check_step, box, groups)


def _check_tied(box: BlackBox) -> None:
    """Check that an embedding and a head that are meant to be one weight are one."""
    get_in, get_out = (getattr(box.original, f"get_{end}_embeddings", lambda: None) for end in ("input", "output"))
    try:
        table, head = getattr(get_in(), "weight", None), getattr(get_out(), "weight", None)
    except NotImplementedError:
        table = head = None
    wants = getattr(box.config, "tie_word_embeddings", False) and getattr(box.original, "_tied_weights_keys", None)
    if wants and isinstance(table, Tensor) and isinstance(head, Tensor) and table.shape == head.shape:
        if table.data_ptr() != head.data_ptr() and not _is_shared(box.original, head):
            raise Broken("config.tie_word_embeddings is true, but the embedding and the head are two weights")
    linears = [(name, part) for name, part in box.original.named_modules() if isinstance(part, nn.Linear)]
    for name, part in box.original.named_modules():
        for other, linear in linears if isinstance(part, nn.Embedding) else ():
            a, b = part.weight, linear.weight
            if a.shape == b.shape and a.data_ptr() != b.data_ptr() and bool(a.std() > 0) and torch.equal(a, b):
                raise Broken(
                    f"{name}.weight and {other}.weight are equal but are two weights, so a gradient step makes them "
                    "differ; assign the same Parameter to both"
                )


def _is_shared(model: nn.Module, weight: Tensor) -> bool:
    """True if a weight has several names, as a head that is tied to the embedding of the decoder."""
    names = [name for name, other in model.named_parameters(remove_duplicate=False) if other is weight]
    return len(names) > 1


def _check_groups(groups: list[list[str]], case: str, make: Callable[[], nn.Module]) -> None:
    after = tied_names(make())
    for group in groups:
        if not any(set(group) <= set(other) for other in after):
            raise Broken(
                f"after {case}, {' and '.join(group[:2])} are no longer one weight; make them the same Parameter, and "
                "keep it in load_state_dict"
            )


def _check_step(box: BlackBox, groups: list[list[str]]) -> None:
    model = box.copy(box.dtype)
    box.call(box.tokens(2, box.short), model=model, gradients=True).logits.square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    values = dict(model.named_parameters(remove_duplicate=False))
    for first, *others in groups:
        for other in others:
            if not torch.equal(values[first], values[other]):
                raise Broken(f"after a gradient step, {first} and {other} differ, although they are tied")

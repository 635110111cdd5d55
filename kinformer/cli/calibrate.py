"""`kinformer calibrate DIR --data SPEC --delta D --epsilon E`: how early tokens may leave, proven on data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kinformer.cli.errors import FAILED, UserError, from_user, noted
from kinformer.cli.options import MOST, Data, Device, Json, Own

if TYPE_CHECKING:
    from kinformer.data.support.prompts import Prompts
    from kinformer.exits.learn_then_test import Found

PROMPT, TOKENS = 64, 32


def calibrate(
    folder: Annotated[Path, typer.Argument(help="A folder that train wrote, of a member with exits, like calm.")],
    *,
    data: Data,
    delta: Annotated[float, typer.Option(help="The mean loss that is allowed, between 0 and 1.")] = 0.1,
    epsilon: Annotated[float, typer.Option(help="How often it may be more, between 0 and 1.")] = 0.05,
    consistency: Annotated[
        Literal["textual", "risk"], typer.Option(help="Loss beside the full model's text, or beside its own loss.")
    ] = "textual",
    samples: Annotated[
        int | None, typer.Option(help="How many texts; twice as many as it takes unless given.", min=1, max=MOST)
    ] = None,
    thresholds: Annotated[int, typer.Option(help="How many are there to choose from.", min=2, max=1000)] = 21,
    split: Annotated[Literal["train", "valid", "test"], typer.Option(help="Which part of the data.")] = "valid",
    length: Annotated[int, typer.Option(help="Of a text: tokens that each begins with.", min=1, max=MOST)] = PROMPT,
    tokens: Annotated[int, typer.Option(help="Of a text: tokens that are written.", min=1, max=MOST)] = TOKENS,
    device: Device = None,
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Find how early the tokens of a trained calm may leave, and let `generate` leave so.

    With probability 1 - epsilon over the texts, the mean loss of what it then writes is at most delta. The loss of a
    text lies in [0, 1]: how far it is from the full model's (textual), or how much worse than the full model's it is
    (risk). Far apart is 1 - ROUGE-L, of a task's answers the share that differs. Texts are written by the likeliest
    token, and so is the promise. Thresholds are tested one after the other, the most careful first (Learn then Test,
    Hoeffding's bound); the last one that is proven is kept in DIR/exits.json. Where none is, no token leaves early.
    """
    from kinformer.cli.support.loaded import loaded
    from kinformer.data.spec import read_spec
    from kinformer.exits.learn_then_test import fewest

    with from_user(ValueError):
        least = fewest(delta, epsilon)
    if samples is not None and samples < least:
        raise UserError(
            f"{samples:,} texts prove nothing at delta {delta:g} and epsilon {epsilon:g}; give --samples {least:,} or "
            "more, or allow more"
        )
    model = loaded(folder, member, device)
    _refuse_without_exits(model)
    its = {} if model.tokenizer is None or "tokenizer=" in data else {"tokenizer": str(folder)}
    with from_user(ValueError, OSError, ImportError), noted():
        found = read_spec(data, **its)
        given = _prompts(model, found, split, samples or 2 * least, length, tokens)
    asked = {"data": found.name, "split": split, "samples": len(given.prompts), "delta": delta, "epsilon": epsilon}
    with from_user(ValueError, LookupError), noted():
        result, layers = _tested(model, given, consistency, model.exits.rule.grid(thresholds), delta, epsilon)
    tests = [one._asdict() for one in result.tested]
    told = {"by": "learn then test", **asked, "consistency": consistency, "layers": layers, "tested": tests}
    with from_user(OSError, code=FAILED):
        from kinformer.decoding.calibrated import FILE, save_calibration

        save_calibration(folder, model, result.threshold, told)
    if as_json:
        print(json.dumps({"folder": str(folder), "threshold": result.threshold, **told}, indent=2))
    else:
        _print(result, layers, len(model.exits.layers), folder / FILE, delta, epsilon)


def _refuse_without_exits(model: Any) -> None:
    """UserError for a model that nothing leaves early, or whose rule has no threshold; it names members that can."""
    from kinformer.decoding.layers_used import exits_of

    body = exits_of(model)
    if body is None:
        raise UserError(
            f"no token of a {model.member.name} leaves early; calibrate one of {', '.join(_members_with_exits())}"
        )
    with from_user(ValueError):
        body.rule.grid(2)


def _members_with_exits() -> list[str]:
    """Members whose models have exits, by what they say they return."""
    from typing import get_args, get_type_hints

    from kinformer.discover import members
    from kinformer.models.support.exits import ManyExits

    def made(function: Any) -> tuple[Any, ...]:
        hint = get_type_hints(function)["return"]
        return get_args(hint) or (hint,)

    return [
        name
        for name, function in members().items()
        if any(isinstance(one, type) and issubclass(one, ManyExits) for one in made(function))
    ]


def _prompts(model: Any, data: Any, split: str, count: int, length: int, tokens: int) -> "Prompts":
    from kinformer.data.kind import refuse_other_tokens, refuse_unread

    refuse_unread(model, data)
    refuse_other_tokens(model, data)
    given: Prompts = data.prompts(model, split, count, length, tokens)
    return given


def _tested(
    model: Any, given: "Prompts", by: Literal["textual", "risk"], grid: list[Any], delta: float, epsilon: float
) -> "tuple[Found, float]":
    """What is found on these texts, and the layers that a token takes with it."""
    from kinformer.cli.support.progress import progress
    from kinformer.decoding.consistency import losses, ruled, written
    from kinformer.exits.learn_then_test import learn_then_test
    from kinformer.exits.nobody import Nobody

    body, count, layers = model.exits, len(given.prompts), dict[Any, float]()
    with progress("calibrating", count * (len(grid) + 1), "texts, at most") as tell:
        with ruled(body, Nobody()):
            full = written(model, given, tell)

        def lost(threshold: Any) -> list[float]:
            body.rule.leave_at(threshold)
            done = count * (len(layers) + 1)
            early = written(model, given, lambda some: tell(done + some))
            layers[threshold] = early.layers
            return losses(by, given, early.texts, full.texts)

        found = learn_then_test(grid, lost, delta, epsilon)
    return found, full.layers if found.threshold is None else layers[found.threshold]


def _print(found: "Found", layers: float, depth: int, file: Path, delta: float, epsilon: float) -> None:
    for one in found.tested:
        verdict = "proven" if one.p <= epsilon else "not proven"
        print(f"threshold {_said(one.threshold)}: mean loss {one.risk:.4f}, p {one.p:.3g}, {verdict}")
    if found.threshold is None:
        print(f"no threshold keeps the loss at {delta:g}, so no token leaves early: the full model; noted in {file}")
        return
    print(
        f"tokens leave at {_said(found.threshold)}, after {layers:.2f} of {depth} layers in the mean; the loss is at "
        f"most {delta:g}, but for a chance of {epsilon:g}; noted in {file}"
    )


def _said(threshold: float | tuple[float, ...]) -> str:
    every = threshold if isinstance(threshold, tuple) else (threshold,)
    return ", ".join(f"{one:.3g}" for one in every)

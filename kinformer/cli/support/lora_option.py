"""The value of --lora, a low-rank adaptation, such as rank=8,layers=all."""

from typing import Any

from kinformer.lab.errors import UserError, from_user

NAMES = ("rank", "alpha", "layers", "train")


def parse_lora(text: str) -> Any:
    """Parse the value of --lora into a `LoRA`.

    text: options such as "rank=8,alpha=16,layers=all,train=*.feature_map.*"; only the rank is needed, and train= may be
        repeated.

    Errors: UserError.
    """
    pairs = [(name.strip(), value.strip()) for name, _, value in (word.partition("=") for word in text.split(","))]
    options = {name: value for name, value in pairs if name != "train"}
    names = tuple(value for name, value in pairs if name == "train")
    if not options.keys() <= set(NAMES) or len(options) + len(names) < len(pairs) or not all(v for _, v in pairs):
        raise UserError(f"wrong --lora: got {text}, expected {', '.join(f'{name}=' for name in NAMES)}. Give rank=8")
    try:
        rank, alpha = int(options["rank"]), float(options["alpha"]) if "alpha" in options else None
    except (KeyError, ValueError):
        raise UserError(f"wrong --lora: got {text}, expected a whole number as rank. Give rank=8") from None
    # imported here, so that --help does not wait for torch
    from kinformer.lab.train.lora import LoRA

    with from_user(ValueError):
        return LoRA(rank, alpha, options.get("layers", "attention"), names)  # type: ignore[arg-type]

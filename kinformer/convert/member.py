"""The conversion `member`: another member with the weights that have the same place in both."""

from dataclasses import dataclass
from typing import Any

import torch

from kinformer.convert.support.changed_model import copy_facts
from kinformer.core.conversion import Conversion, Promise
from kinformer.core.discover import MemberRecord, find_member
from kinformer.core.keywords import parse_keywords, signature
from kinformer.core.model import Model, display_name

LEAST = 0.5  # part of the new model's weights that must come from the source


@dataclass(frozen=True)
class MemberConversion(Conversion):
    """Build another member with the sizes of the source, and copy the weights of equal name and shape.

    Choose it for a member without a recipe of its own, such as `kf.convert(model, "linformer")`. Sizes and other
    keywords of equal name are taken over. The new mechanism knows nothing of the old one, so adapt the model before its
    use; the plan shows the weights that are new.

    member: name of the new member.
    keywords: its keywords as texts, such as "window=64"; the others come from the source, or are the defaults.

    Errors: ValueError, in one line, if fewer than half of the new model's weights come from the source.
    """

    member: str = "gpt"
    keywords: tuple[str, ...] = ()

    def restructure(self, model: Model) -> Model:
        function, record = find_member(self.member), getattr(model, "member", None)
        given = parse_keywords(function, self.keywords)
        known: dict[str, Any] = record.keywords if isinstance(record, MemberRecord) else {}
        shared = {name: value for name, value in known.items() if name in signature(function).parameters}
        new: Any = function.rebuild(**{**shared, **given})  # type: ignore[attr-defined]
        old = model.state_dict()
        kept = sum(x.numel() for name, x in new.state_dict().items() if name in old and old[name].shape == x.shape)
        total = sum(x.numel() for x in new.state_dict().values())
        if kept < LEAST * total:
            raise ValueError(
                f"cannot convert this {display_name(model)} to {self.member}: {kept / total:.0%} of the new weights "
                f"would come from the source, expected at least {LEAST:.0%}. Give {self.member} the sizes of the "
                "source, or choose another member"
            )
        new = copy_facts(model, new)
        if new.longest is not None and new.trained_length is not None:
            new.trained_length = min(new.trained_length, new.longest)
        return new

    def promise(self, model: Model) -> Promise:
        record = getattr(model, "member", None)
        if isinstance(record, MemberRecord) and record.name == self.member and not self.keywords:
            if record.changes:
                return Promise(0, "the changes of earlier conversions are undone")
            return Promise(torch.inf, "the member stays the same")
        return Promise(0, "the new member uses the weights in another way, so adapt it first")

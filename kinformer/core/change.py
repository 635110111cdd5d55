"""Change: the entry of a converted model's config that names a conversion and its options."""

from typing import Any, NamedTuple


class Change(NamedTuple):
    """A conversion that changed the layers of a member's model; a config lists them in order.

    A model is then its member with its keywords, and after that these changes.

    name: name of the conversion's file in `kinformer/convert`.
    options: every option of the conversion with its value.
    """

    name: str
    options: dict[str, Any]

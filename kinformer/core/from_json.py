"""JSON as it is read: what is nested too deep is refused as what is no JSON is."""

import json
from typing import Any


def from_json(text: str | bytes | bytearray) -> Any:
    """What JSON says. Errors: ValueError for what is no JSON, and for what is nested deeper than Python reads."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"it is nested too deep: {error}") from error

"""JSON input: text that is nested too deep gives the same error as invalid JSON."""

import json
from typing import Any


def from_json(text: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text.

    text: the JSON text.

    Errors: ValueError if it is not JSON, or is nested deeper than Python's limit.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"the JSON text is nested too deeply: {error}") from error

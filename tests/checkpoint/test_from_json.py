"""from_json: what JSON says, and what is none or nested too deep refused by the same error."""

import pytest

from kinformer.core.from_json import from_json


def test_it_reads() -> None:
    assert from_json(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a":' * 100_000, b"\xff\xfe\x00"])
def test_what_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        from_json(text)

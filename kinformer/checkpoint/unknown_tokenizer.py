"""UnknownTokenizer: placeholder for a model whose tokenizer is unknown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from kinformer.checkpoint.special_tokens import SpecialTokens
from kinformer.checkpoint.tokenizer import NO_SPECIAL, Tokenizer
from kinformer.checkpoint.tokenizer_choice import as_tokenizer


class UnknownTokenizer(Tokenizer):
    """Stand-in for a tokenizer that made the token ids of a training and that kinformer has not seen.

    Models of other libraries without a tokenizer have it too.

    It refuses texts, because every way to turn them into tokens could be wrong. It shows a token as its id, such as
    <17>. `fit(model, data, tokenizer=...)` or `model.tokenizer = ...` replaces it by the real tokenizer.

    special: special tokens of the model; only the ids of its ends are kept.
    """

    sha256 = "unknown"  # differs from every hash  # type: ignore[assignment]

    def __init__(self, special: SpecialTokens = NO_SPECIAL) -> None:
        super().__init__("", "unknown tokenizer", SpecialTokens(ends=special.ends))

    @property
    def backend(self) -> Any:
        """Raise ValueError: there is no tokenizer object."""
        self.refuse_texts()

    @property
    def _settings(self) -> Any:
        self.refuse_texts()

    def refuse_texts(self) -> NoReturn:
        """Raise ValueError, with the ways to give the tokenizer."""
        raise ValueError(
            "this model has an unknown tokenizer, so it cannot read text: expected a tokenizer.json in its folder. "
            "Give it token ids, or the tokenizer in Python, with model.tokenizer = TOKENIZER and kf.save(model, "
            "FOLDER), or with fit(..., tokenizer=TOKENIZER)"
        )

    def chat(self, messages: Iterable[Mapping[str, Any]], **variables: Any) -> NoReturn:
        """Raise ValueError: a chat is a text."""
        self.refuse_texts()

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> bytes:
        """Return the ids of the tokens in angle brackets."""
        return b"".join(b"<%d>" % token for token in tokens)

    def speaker(self, after: Sequence[int] = ()) -> Callable[[int], str]:
        """Return a function that takes the new tokens in turn and returns the id of each in angle brackets."""
        return lambda token: f"<{token}>" if token >= 0 else ""


def own_tokenizer(model: Any) -> Tokenizer | None:
    """Return the tokenizer of a model's tokens; None for bytes.

    It is an `UnknownTokenizer` if a model of another library came without a tokenizer.

    model: a model.
    """
    own, ends = as_tokenizer(getattr(model, "tokenizer", None)), getattr(model, "foreign_ends", None)
    return UnknownTokenizer(SpecialTokens(ends=ends)) if own is None and ends is not None else own

"""Settings: entries of a family's table that translate keys of a foreign config to keywords and back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from kinformer.checkpoint.model_files import CheckpointError
from kinformer.core.quote import quote

Config = Mapping[str, Any]
Keywords = Mapping[str, Any]
ACTIVATIONS = {  # names of transformers and of kinformer
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "quick_gelu": "gelu_sigmoid",
}


class UnreadableKey(CheckpointError):
    """Error for a key of a foreign config that would change results and that the member cannot follow.

    key: name of the key.
    value: its value.
    expected: the values that are read, in words.
    """

    def __init__(self, key: str, value: Any, expected: str) -> None:
        super().__init__(
            f"cannot read the config: got {key}={quote(value)}, expected {expected}. Run this model with transformers"
        )
        self.key = key


class Setting(ABC):
    """Two-way translation between some keys of a foreign config and keywords of a member.

    keys: names of the keys that this setting reads.
    """

    keys: tuple[str, ...]

    @abstractmethod
    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        """Return the keywords that belong to the keys of a config.

        config: the foreign config.
        keywords: keywords that earlier settings of the table have read.

        Errors: UnreadableKey.
        """

    @abstractmethod
    def write(self, keywords: Keywords) -> dict[str, Any]:
        """Return the keys for the keywords of a member.

        `Family.write` reads them back and compares.

        keywords: all keywords of the member.
        """

    def canonical(self, keywords: Keywords) -> dict[str, Any]:
        """Return keywords in the form that `read` gives them for an equal model; none by default.

        keywords: all keywords of the member.
        """
        return {}


class Keyword(Setting):
    """One key that is one keyword.

    key: name in the foreign config.
    keyword: name in the member's signature.
    default: value that a config without the key has.
    values: the member's value for each foreign value, if they differ in name.
    usual: function of the other keywords that returns the value for which the keyword is None, such as
        `lambda keywords: 4 * keywords["d"]`. A foreign value None stands for it too.
    least: smallest value of a whole number; None for no limit.
    """

    def __init__(
        self,
        key: str,
        keyword: str,
        default: Any = None,
        *,
        values: Mapping[Any, Any] | None = None,
        usual: Callable[[Keywords], Any] | None = None,
        least: int | None = None,
    ) -> None:
        self.keys, self.keyword, self.default, self.values, self.usual = (key,), keyword, default, values, usual
        self.least = least

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        (key,) = self.keys
        value = config.get(key, self.default)
        if self.values is not None:
            if value not in self.values:
                raise UnreadableKey(key, value, " or ".join(map(repr, self.values)))
            value = self.values[value]
        if value is None and self.usual is None:
            if key not in config:
                raise CheckpointError(f"cannot read the config: {key} is missing. Check that the config is complete")
            raise UnreadableKey(key, value, "a value")
        if self.least is not None and not (isinstance(value, int) and value >= self.least):
            raise UnreadableKey(key, value, f"a whole number of at least {self.least}")
        return {self.keyword: None if self.usual is not None and value == self.usual(keywords) else value}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        value = keywords[self.keyword]
        if value is None and self.usual is not None:
            value = self.usual(keywords)
        if self.values is not None:
            value = next((theirs for theirs, ours in self.values.items() if ours == value), self.default)
        return {self.keys[0]: value}


class OneValue(Setting):
    """A key that must have one value, because the member does not compute others.

    key: name in the foreign config.
    value: the value that is read and written; a config without the key has it too.
    """

    def __init__(self, key: str, value: Any) -> None:
        self.keys, self.value = (key,), value

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        (key,) = self.keys
        if config.get(key, self.value) != self.value:
            raise UnreadableKey(key, config[key], repr(self.value))
        return {}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {self.keys[0]: self.value}


class Equal(Setting):
    """A key that must have the value of a keyword, because the member has one number for both.

    key: name in the foreign config.
    keyword: name in the member's signature, which an earlier setting reads.
    default: value that a config without the key has.
    """

    def __init__(self, key: str, keyword: str, default: Any) -> None:
        self.keys, self.keyword, self.default = (key,), keyword, default

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        (key,) = self.keys
        value = config.get(key, self.default)
        if value != keywords[self.keyword]:
            raise UnreadableKey(key, value, f"{keywords[self.keyword]!r}, as of {self.keyword}")
        return {}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {self.keys[0]: keywords[self.keyword]}


class TargetTokens(Setting):
    """The vocabulary of an encoder-decoder, with the ids that open and close a target.

    If `bad_words_ids` forbids to write the opening id, and it is the last one, it is no token of ours: begin=None.

    begin, end: ids that a config without the keys has.
    pad: id of padding that is written; the opening id if None.
    """

    keys = ("vocab_size", "decoder_start_token_id", "eos_token_id", "pad_token_id", "bad_words_ids")

    def __init__(self, begin: int, end: int, pad: int | None = None) -> None:
        self.begin, self.end, self.pad = begin, end, pad

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        usual: dict[str, Any] = {"vocab_size": None, "decoder_start_token_id": self.begin, "eos_token_id": self.end}
        ids = {key: value if config.get(key) is None else config[key] for key, value in usual.items()}
        for key, value in ids.items():
            if type(value) is not int:
                raise UnreadableKey(key, value, "one whole number")
        size, begin, end = ids.values()
        if config.get("bad_words_ids") == [[begin]] and begin == size - 1:
            return {"vocab": size - 1, "begin": None, "end": end}
        return {"vocab": size, "begin": begin, "end": end}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        vocab, begin, end = (keywords[name] for name in ("vocab", "begin", "end"))
        only_read = {"bad_words_ids": [[vocab]]} if begin is None else {}
        begin, size = (vocab, vocab + 1) if begin is None else (begin, vocab)
        pad = begin if self.pad is None else self.pad
        return {
            "vocab_size": size,
            "decoder_start_token_id": begin,
            "eos_token_id": end,
            "pad_token_id": pad,
            **only_read,
        }


class Constants(Setting):
    """Keywords with fixed values, which no key of the config names.

    keywords: the keywords with their values.
    """

    keys = ()

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        return self.keywords

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {}

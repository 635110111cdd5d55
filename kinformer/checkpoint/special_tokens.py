"""SpecialTokens: special tokens and chat template, from the files next to tokenizer.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kinformer.checkpoint.model_files import (
    CHAT_TEMPLATE,
    CONFIG,
    GENERATION_CONFIG,
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
    CheckpointError,
    read_config,
)
from kinformer.core.quote import quote

TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class SpecialTokens(NamedTuple):
    """The special tokens of a tokenizer, and the template of its chats.

    names: text of each special token, by the names of transformers: "bos_token", "eos_token", "mask_token".
    ends: ids of the tokens that end a generated text; empty if only names["eos_token"] defines the end.
    chat_template: Jinja template that writes the messages of a chat as one text; None if there is none.
    """

    names: Mapping[str, str] = {}
    ends: tuple[int, ...] = ()
    chat_template: str | None = None

    @classmethod
    def of_json(cls, entry: Any, path: Path) -> "SpecialTokens":
        """Return the special tokens that a config of kinformer holds, as `_asdict` gives them.

        entry: the entry of the config.
        path: the config, for messages.

        Errors: CheckpointError for an entry of another form.
        """
        try:
            names, ends, template = (entry[name] for name in cls._fields)
            fits = isinstance(template, str | None) and all(isinstance(text, str) for text in names.values())
            if fits and all(type(token) is int for token in ends):
                return _encodable(cls(names, tuple(ends), template), path)
        except (TypeError, LookupError, AttributeError):
            pass
        raise CheckpointError(
            f"{path} is damaged: got special_tokens={quote(entry)}, expected {', '.join(cls._fields)}. Put a copy of "
            "the file there"
        )

    @classmethod
    def of_transformers(cls, tokenizer: Any) -> "SpecialTokens":
        """Return the special tokens of a tokenizer of transformers; none for other objects.

        tokenizer: the tokenizer.
        """
        names, template = getattr(tokenizer, "special_tokens_map", {}), getattr(tokenizer, "chat_template", None)
        return cls({name: str(names[name]) for name in TOKENS if name in names}, (), _default_template(template))


def read_special_tokens(folder: Path) -> SpecialTokens:
    """Return the special tokens that a folder of transformers or of kinformer names.

    folder: the folder; missing files name no token.

    Errors: CheckpointError for damaged files.
    """
    config = _read(folder / CONFIG)
    if "member" in config:
        entry = config.get("special_tokens")
        return SpecialTokens() if entry is None else SpecialTokens.of_json(entry, folder / CONFIG)
    settings, generation = _read(folder / TOKENIZER_CONFIG), _read(folder / GENERATION_CONFIG)
    names = {}
    for name, token in {**_read(folder / SPECIAL_TOKENS_MAP), **settings}.items():
        text = token.get("content") if isinstance(token, dict) else token
        if name in TOKENS and isinstance(text, str):
            names[name] = text
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    ends = [token for token in (ends if isinstance(ends, list) else [ends]) if type(token) is int]
    template = settings.get("chat_template")
    if (folder / CHAT_TEMPLATE).is_file():
        template = (folder / CHAT_TEMPLATE).read_text(encoding="utf-8", errors="replace")
    return _encodable(SpecialTokens(names, tuple(ends), _default_template(template)), folder / TOKENIZER_CONFIG)


def _encodable(special: SpecialTokens, path: Path) -> SpecialTokens:
    """Return special tokens; CheckpointError for texts that UTF-8 cannot hold."""
    for text in (*special.names.values(), special.chat_template or ""):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise CheckpointError(
                f"{path} is damaged: {quote(text)} has a lone surrogate at character {error.start}. Restore the file"
            ) from error
    return special


def _read(path: Path) -> dict[str, Any]:
    content = read_config(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def _default_template(templates: Any) -> str | None:
    """Return the template of a plain chat, if there are several by name, as a list of files or a mapping."""
    if isinstance(templates, list):
        templates = {part.get("name"): part.get("template") for part in templates if isinstance(part, dict)}
    if isinstance(templates, dict):
        templates = templates.get("default")
    return templates if isinstance(templates, str) else None

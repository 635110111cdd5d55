"""Texts that a command reads from an option, or line by line from a file."""

import os
from pathlib import Path

from kinformer.core.missing_path import missing_path
from kinformer.lab.errors import UserError, from_user


def read_texts(text: str | None, file: Path | None, name: str) -> list[bytes] | None:
    """Return the text of an option, or the lines of its file, as bytes; None if neither is given.

    Bytes are kept as typed, UTF-8 or not. Only a file with a byte-order mark is converted to UTF-8.

    text: the value of the option, such as --prompt.
    file: the file of the option with several texts, such as --prompts.
    name: name of one text in messages, such as "prompt".

    Errors: UserError for an empty text, a file that cannot be read, and an empty line.
    """
    if text == "":
        raise UserError(f"the {name} is empty; give --{name} at least one character")
    if text is not None:
        return [os.fsencode(text)]
    if file is None:
        return None
    lines = read_lines(file, f"{name}s", name)
    if b"" in lines:
        raise UserError(f"line {lines.index(b'') + 1:,} of {file} is empty; write at least one character, or remove it")
    return lines


def read_lines(file: Path, option: str, name: str) -> list[bytes]:
    """Return the lines of a file, as bytes.

    file: the file.
    option: name of the option that names it, such as "prompts".
    name: name of one line in messages, such as "prompt".

    Errors: UserError for a file that cannot be read or that is empty.
    """
    # imported here, so that early errors do not wait for it
    from kinformer.checkpoint.decompress import decode_text

    try:
        with from_user(ValueError):
            lines = b"".join(decode_text([file.read_bytes()], str(file))).removesuffix(b"\n").split(b"\n")
    except FileNotFoundError as error:
        raise UserError(missing_path(file, f"--{option} must name a file with one {name} per line")) from error
    except OSError as error:
        raise UserError(
            f"cannot read {file}: {error.strerror}; --{option} must name a file of {name}s, one per line"
        ) from error
    lines = [line.removesuffix(b"\r") for line in lines]
    if not any(lines):
        raise UserError(f"{file} is empty; write one {name} per line")
    return lines

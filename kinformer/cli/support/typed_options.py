"""Settings, keywords and data in the form in which a user types them on the command line."""

import re
import shlex
from typing import Any

from kinformer.cli.options import SETTINGS
from kinformer.core.keywords import as_texts

OPTIONS = (*SETTINGS, "seeds", "steps", "minutes", "flops")
SECTIONS = ("", "settings", "plan")  # sections of records whose names are settings
BUDGET = re.compile(r"(Steps|Minutes)\(count=(.*)\)")


def as_typed(section: str, name: str, value: Any) -> str:
    """Return a recorded setting as a user types it in a command, such as "--lr 0.003" or "depth=2".

    section: section of the run's record (`lab/train/start_record.py`) that holds the value: "settings", "keywords",
        "grid", or "" for the record itself.
    name: name of the setting.
    value: value of the setting.
    """
    if section == "grid":
        return f"no --grid {name}" if value is None else f"--grid {shlex.quote(name + '=' + ','.join(value))}"
    if section not in SECTIONS:
        (text,) = as_texts({name: tuple(value) if isinstance(value, list) else value})
        return shlex.quote(text)
    if name == "member":
        return f"train {value}"
    if name == "data":
        return f"--data {shlex.quote(str(value))}"
    if name == "budget" and (budget := BUDGET.fullmatch(str(value))):
        return _option(budget[1].lower(), budget[2])
    if name in OPTIONS:
        return _option(name, value)
    return f"fit(..., {name}={value})" if section else f"{name}={value}"


def as_typed_in_phase(section: str, name: str, value: Any) -> str:
    """Return a recorded setting as a user types it in a --then option, such as "lr=0.003".

    section: section of the run's record, as in `as_typed`.
    name: name of the setting.
    value: value of the setting.
    """
    option = re.fullmatch(r"--(\w+) (.+)", as_typed(section, name, value))
    return f"{option[1]}={option[2]}" if option else as_typed(section, name, value)


def _option(name: str, value: Any) -> str:
    """An option with its value, or "no --lr" if it is not given."""
    if value is None or value is False:
        return f"no --{name}"
    if value is True:
        return f"--{name}"
    if isinstance(value, dict):  # the value of --lora
        pairs = [(key, part) for key, parts in value.items() for part in (parts if key == "train" else [parts])]
        return f"--{name} {shlex.quote(','.join(f'{key}={part}' for key, part in pairs))}"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"--{name} {shlex.quote(text)}"

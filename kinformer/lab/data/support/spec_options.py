"""The words of a spec of data, KIND=WHERE,NAME=VALUE,...: taken apart, and refused where they say nothing.

Nothing heavy is imported, so that a command can look before it begins.
"""

import re
from collections.abc import Iterable, Mapping

from kinformer.core.did_you_mean import suggest_names


def words_of(spec: str, forms: Mapping[str, str]) -> tuple[str, str, dict[str, str]]:
    """The kind of a spec, WHERE, and the NAME=VALUE behind it; `forms` says how each kind is written.

    Errors: ValueError, in one line, for another form, a kind that there is not, and an option that comes twice.
    """
    advice = f"write {', '.join(forms.values())}"
    kind, equals, rest = spec.partition("=")
    where, options = options_of(rest)
    if not equals or not where:
        raise ValueError(f"the data {spec!r} has no form KIND=WHERE; {advice}")
    if kind not in forms:
        raise ValueError(f"there is no kind of data {kind!r}{suggest_names(kind, forms)}; {advice}")
    return kind, where, options


def refuse_unknown(kind: str, options: Iterable[str], names: Iterable[str]) -> None:
    """ValueError, with the nearest, for an option that is none of these names."""
    names = tuple(names)
    for name in options:
        if name not in names:
            raise ValueError(f"{kind}= has no option {name!r}{suggest_names(name, names)}")


def options_of(text: str) -> tuple[str, dict[str, str]]:
    """WHERE, which may have commas of its own, and the NAME=VALUE at its end."""
    options: dict[str, str] = {}
    while match := re.fullmatch(r"(.*),(\w+)=([^,]*)", text, re.DOTALL):
        text, name, value = match.groups()
        if name in options:
            raise ValueError(f"{name} is given twice in the data; give it once")
        options = {name: value, **options}
    return text, options

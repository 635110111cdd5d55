"""Conditions under which a member's keyword has an effect, as text such as "position=learned".

A member is a function that makes a named model. Choose `has_effect` to test whether a keyword applies given the other
keywords, and `check_used` to refuse keywords that do not. Use `allow_unused_keywords` to build a model from saved
keywords, which may include unused ones.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from kinformer.core.quote import quote

RECORDED = ContextVar("RECORDED", default=False)

Needs = Mapping[str, str]
_TERM = re.compile(r"(?P<name>\w+)((?P<sign>!=|=|>)(?P<values>.+))?")


def by_keyword(needs: Needs, names: Iterable[str]) -> dict[str, str]:
    """Return the parsed condition of each keyword that has one, for the declaration of a member.

    needs: conditions by keyword, such as {"topk": "form=improved", "a, b": "c>1 and d=x|y"}.
        Terms are `name=value`, `name=value|value`, `name!=value`, `name>number` and `name` (not empty), joined by
        " and " and " or "; " and " binds tighter. Values are written as on the command line. A tuple fits if one of
        its values does.
    names: the keywords of the member.

    Errors: TypeError if the member does not have a keyword, or if a term cannot be read.
    """
    conditions = {name: condition for joined, condition in needs.items() for name in joined.split(", ")}
    for name, condition in conditions.items():
        unknown = {name, *(term["name"] for term in _terms(condition))}.difference(names)
        if unknown:
            raise TypeError(f"needs={{{name!r}: {condition!r}}} names {min(unknown)!r}, which is not a keyword")
    return conditions


def has_effect(name: str, needs: Needs, keywords: Mapping[str, Any]) -> bool:
    """Return True if a keyword has an effect, given the values of all keywords.

    name: the keyword.
    needs: the conditions of the member's keywords (see `by_keyword`).
    keywords: the value of every keyword.
    """
    if name not in needs:
        return True
    return any(all(_holds(term, keywords) for term in _split(part)) for part in needs[name].split(" or "))


def check_used(needs: Needs, passed: Iterable[str], keywords: Mapping[str, Any]) -> None:
    """Refuse keywords of a member (named model) that have no effect.

    needs: the conditions of the member's keywords (see `by_keyword`).
    passed: the names of the keywords to check.
    keywords: the value of every keyword.

    Errors: ValueError that names the keyword, the values that disable it, and values that enable it.
    """
    for name in passed:
        if not has_effect(name, needs, keywords):
            names = dict.fromkeys(term["name"] for term in _terms(needs[name]))
            state = ", ".join(f"{other}={as_word(keywords[other])}" for other in names)
            raise ValueError(
                f"{name}={as_word(keywords[name])} has no effect with {state}; leave it out, or give "
                f"{_in_words(needs[name])}"
            )


@contextmanager
def allow_unused_keywords() -> Iterator[None]:
    """Return a context in which `core.checks.check_unused` refuses nothing.

    Records of models from earlier versions may contain keywords that it would refuse.
    """
    token = RECORDED.set(True)
    try:
        yield
    finally:
        RECORDED.reset(token)


def as_word(value: Any) -> str:
    """Return a value as it is written on the command line.

    value: the value.
    """
    if isinstance(value, tuple):
        return ",".join(map(as_word, value)) or "()"
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def _in_words(condition: str) -> str:
    """Return a condition in words for messages, with parentheses around each `or` inside an `and`."""
    parts = [[_term_in_words(term) for term in _split(part)] for part in condition.split(" or ")]
    joined = []
    for terms in parts:
        several = len(terms) > 1
        text = " and ".join(f"({term})" if several and (" or " in term or " and " in term) else term for term in terms)
        joined.append(f"({text})" if several and len(parts) > 1 else text)
    return " or ".join(joined)


def _term_in_words(term: re.Match[str]) -> str:
    if term["sign"] is None:
        return f"a non-empty {term['name']}"
    alternatives = [f"{term['name']}{term['sign']}{value}" for value in term["values"].split("|")]
    return (" and " if term["sign"] == "!=" else " or ").join(alternatives)


def _terms(condition: str) -> list[re.Match[str]]:
    return [term for part in condition.split(" or ") for term in _split(part)]


def _split(part: str) -> list[re.Match[str]]:
    terms = [_TERM.fullmatch(text.strip()) for text in part.split(" and ")]
    if None in terms:
        raise TypeError(f"the condition {quote(part)} is not understood; write it like 'position=learned'")
    return terms  # type: ignore[return-value]


def _holds(term: re.Match[str], keywords: Mapping[str, Any]) -> bool:
    value = keywords[term["name"]]
    if term["sign"] is None:
        return bool(value)
    values = value if isinstance(value, tuple) and value else (value,)
    if term["sign"] == ">":
        return any(item is not None and item > float(term["values"]) for item in values)
    equal = not {as_word(item) for item in values}.isdisjoint(term["values"].split("|"))
    return equal is (term["sign"] == "=")

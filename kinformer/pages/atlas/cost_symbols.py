"""Symbols of an order of cost in words."""

import re

from kinformer.core.keywords import FUNCTIONS, SIZES
from kinformer.lab.member_choice import parse_member
from kinformer.pages.docstrings import doc

REFERENCE = re.compile(r"as in `(\w+)`")
SHORT = re.compile(r"(.+?)([.;,:] |\.$|$)")  # the part of a description before the first stop


def explain_symbols(name: str, cost: str) -> dict[str, str]:
    """Return the meaning of each symbol in the order of cost of a member.

    A symbol is the size of an input, such as L, or a keyword of the member. Keywords are explained by the member's
    docstring.

    name: name of the member.
    cost: the order of cost, as `@member(cost=...)` declares it.
    """
    symbols = dict.fromkeys(word for word in re.findall(r"[A-Za-z_]+", cost) if word not in FUNCTIONS)
    texts = {symbol: SIZES.get(symbol) or _describe_keyword(name, symbol) for symbol in symbols}
    return {symbol: text for symbol, text in texts.items() if text != symbol}  # "steps" needs no word


def _describe_keyword(name: str, keyword: str) -> str:
    arguments = doc(parse_member(name, ()).function).arguments
    text = next((text for keywords, text in arguments.items() if keyword in keywords), "a keyword")
    if reference := REFERENCE.match(text):
        return _describe_keyword(reference[1], keyword)
    match = SHORT.match(text)
    return match[1] if match else text

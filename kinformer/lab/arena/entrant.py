"""Entrants: the members that take part in the arena, and their sizes."""

import math

from kinformer.core.did_you_mean import suggest_names
from kinformer.core.keyword_conditions import has_effect
from kinformer.core.keywords import signature
from kinformer.lab.compare.parameters import match_parameters
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import MemberChoice, find_member_function, parse_member

WIDTH, DEPTH = 64, 2  # of gpt; the others get about as many parameters by another width
UNIT = 4  # sizes are multiples of it, because compressive_transformer joins four memories into one
BASELINE = "gpt"

# groups of members that train with the same rate: it is tuned with the key, which is ranked, with three seeds
RATE_GROUPS: dict[str, tuple[str, ...]] = {
    "gpt": ("multi_query", "talking_heads", "collaborative", "disagreement", "al_rfou", "calm", "depth_adaptive"),
    "llama": ("gpt_neox", "bloom"),
    "transformer_xl": ("gtrxl", "adaptive_span"),
    "compressive_transformer": ("memorizing_transformer",),
    "linear_transformer": ("average_attention", "lstm"),
    "performer": ("rfa",),
    "longformer_lm": ("bp_transformer", "low_rank_band", "memory_compressed_transformer"),
    "sparse_transformer": ("sinkhorn_transformer", "sac"),
    "routing_transformer": ("topk_transformer",),
    "reformer": (),
    "universal_transformer": ("act_rnn", "routing_by_agreement"),
    "synthesizer": (),
}
LEFT_OUT = {"spalm": "it needs a datastore"}
LEAST_HEADS = {"routing_transformer": 2}  # half of its heads read a window, the others a cluster

# Most members default to windows as long as the short rows of the arena, so that they would read everything. These
# sizes are lowered to a part of a row, by the same rule for all members. The parts of segments, memories and windows
# are so large that two layers together still reach back over most of a row.
PARTS = {
    **{"segment": 1 / 3, "memory": 1 / 3, "compressed": 1 / 8, "longest": 1 / 2, "window": 1 / 4, "top": 3 / 4},
    **{"local": 1 / 8, "block": 1 / 8, "stride": 1 / 8, "summary": 1 / 32, "buckets": 1 / 8},
}
OWN = {  # keywords of single members
    "universal_transformer": ("depth=4",),  # one block, repeated up to four times
    "synthesizer": ("scores=factorised_random,product",),  # whole tables would take most parameters of a row of 128
}


def find_rate_group(name: str) -> str:
    """Return the group of a member: the name of the ranked member whose tuned learning rate it uses.

    name: name of the member.

    Errors: UserError for a member that does not take part, with the reason.
    """
    if name in LEFT_OUT:
        raise UserError(f"{name} takes no part in the arena: {LEFT_OUT[name]}. Leave it out")
    for group, names in RATE_GROUPS.items():
        if name == group or name in names:
            return group
    nearest = suggest_names(name, entrants(), ". `kinformer list members` lists them")
    raise UserError(f"unknown arena member: got {name!r}, expected a member that generates text{nearest}")


def entrants() -> list[str]:
    """Return the names of all members that take part, the ranked ones first."""
    return [*RATE_GROUPS, *(name for names in RATE_GROUPS.values() for name in names)]


def entrant(name: str, length: int, heads: int | None = None) -> MemberChoice:
    """Return a member with about as many parameters as gpt, and with windows shorter than a row.

    name: name of the member.
    length: tokens of a row.
    heads: attention heads of each layer, for all members that have heads; None for the members' own numbers.
    """
    shared = [] if heads is None else [f"heads={heads}"]
    baseline = parse_member(BASELINE, [f"d={WIDTH}", f"depth={DEPTH}", f"length={length}", *shared])
    if name == BASELINE:
        return baseline
    function = find_member_function(name)
    declared = signature(function).parameters
    texts = {text.partition("=")[0]: text for text in OWN.get(name, ())}
    if "depth" in declared:
        texts.setdefault("depth", f"depth={DEPTH}")
    defaults = {keyword: parameter.default for keyword, parameter in declared.items()}
    wanted = {"length": length}
    if heads is not None:
        wanted |= {"heads": max(heads, LEAST_HEADS.get(name, 1)), "key_heads": heads}
    for keyword, value in wanted.items():
        if keyword in declared and has_effect(keyword, getattr(function, "needs", {}), defaults):
            texts.setdefault(keyword, f"{keyword}={value}")
    for keyword, part in PARTS.items():
        default = defaults.get(keyword)
        if isinstance(default, int) and (size := math.ceil(length * part / UNIT) * UNIT) < default:
            texts.setdefault(keyword, f"{keyword}={size}")
    return match_parameters([baseline, parse_member(name, texts.values())])[0][1]

"""Rotary positions in configs of transformers: base and scaling, in both forms of the config."""

import math
from collections.abc import Mapping
from typing import Any

from kinformer.bridge.settings import Config, Keywords, UnreadableKey
from kinformer.core.named_part import format_part
from kinformer.core.rotary_scaling import RotaryScaling, scaling_named
from kinformer.nn.scalings.llama3 import Llama3Scaling
from kinformer.nn.scalings.ntk import NTKAware
from kinformer.nn.scalings.pi import PositionInterpolation
from kinformer.nn.scalings.yarn import YaRN

LENGTH = "original_max_position_embeddings"
# for each rope_type, the scaling, and the keys of the config with the keywords of the scaling
SCALINGS: Mapping[str, tuple[type[RotaryScaling], Mapping[str, str]]] = {
    "linear": (PositionInterpolation, {"factor": "factor"}),
    "yarn": (
        YaRN,
        {
            "factor": "factor",
            LENGTH: "length",
            "beta_fast": "beta_fast",
            "beta_slow": "beta_slow",
            "attention_factor": "attention_factor",
            "truncate": "truncate",
        },
    ),
    "llama3": (
        Llama3Scaling,
        {
            "factor": "factor",
            "low_freq_factor": "low_freq_factor",
            "high_freq_factor": "high_freq_factor",
            LENGTH: "length",
        },
    ),
}
OPTIONAL = ("beta_fast", "beta_slow", "attention_factor", "truncate")
MSCALES = ("mscale", "mscale_all_dim")  # of yarn; they are read as one attention_factor
PLAIN = "default"
SHARED = ("rope_type", "type", "rope_theta")


def rope_parameters(config: Config) -> Mapping[str, Any]:
    """Return the parameters of RoPE; as in transformers, the older key comes first.

    config: the foreign config.

    Errors: UnreadableKey for values that are no parameters.
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    parameters = config.get(key) or {}
    if not isinstance(parameters, Mapping):
        raise UnreadableKey(key, parameters, "an object with the key rope_type")
    return parameters


def read_scaling(config: Config, *, also: tuple[str, ...] = ()) -> str | None:
    """Return the scaling of RoPE in a config, as text for the keyword `scaling`; None for none.

    config: the foreign config.
    also: keys of the parameters of RoPE that the caller reads.

    Errors: UnreadableKey for a type or a key that is not read, such as rope_type "dynamic".
    """
    parameters = rope_parameters(config)
    rope_type = parameters.get("rope_type", parameters.get("type", PLAIN))
    if not isinstance(rope_type, str) or rope_type not in (PLAIN, *SCALINGS):
        raise UnreadableKey("rope_type", rope_type, " or ".join(map(repr, (PLAIN, *SCALINGS))))
    kind, names = SCALINGS.get(rope_type, (None, {}))
    known = (*SHARED, *also, *names, *(MSCALES if kind is YaRN else ()))
    for key, value in parameters.items():
        if key not in known and value is not None and (key, value) != ("partial_rotary_factor", 1):
            raise UnreadableKey(key, value, f"no such key for rope_type {rope_type!r}")
    if kind is None:
        return None
    values = dict(parameters)
    if LENGTH in names and values.get(LENGTH) is None:
        values[LENGTH] = config.get("max_position_embeddings")  # as transformers does
    if values.get("attention_factor") is None and all(values.get(key) for key in MSCALES):
        scale, every = (_mscale(_number(values, "factor"), _number(values, key)) for key in MSCALES)
        values["attention_factor"] = scale / every
    keywords = {names[key]: _number(values, key) for key in names if not (key in OPTIONAL and not _has(values, key))}
    return format_part(kind(**keywords))


def _has(values: Mapping[str, Any], key: str) -> bool:
    """Return whether an optional key has a value; 0 stands for the default of the two ends of the ramp."""
    return bool(values.get(key)) if key in ("beta_fast", "beta_slow") else values.get(key) is not None


def _number(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, as a bool, a whole number or a float; raise UnreadableKey for another value."""
    value, expected = values.get(key), {"truncate": bool, LENGTH: int}.get(key, float)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number if expected is float else type(value) is expected):
        words = {bool: "True or False", int: "a whole number", float: "a number"}
        raise UnreadableKey(key, value, words[expected])
    return expected(value)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def write_rope(keywords: Keywords) -> dict[str, Any]:
    """Return the parameters of RoPE for the keywords `base` and `scaling` of a member.

    A scaling that transformers does not have is left out.

    keywords: the keywords.
    """
    scaling = scaling_named(keywords["scaling"])
    for rope_type, (kind, names) in SCALINGS.items():
        if type(scaling) is kind:
            values = {key: getattr(scaling, name) for key, name in names.items()}
            own = {key: value for key, value in values.items() if value is not None}
            return {"rope_type": rope_type, "rope_theta": keywords["base"], **own}
    return {"rope_type": PLAIN, "rope_theta": keywords["base"]}


def canonical_rope(keywords: Keywords, turned: int) -> dict[str, Any]:
    """Return `base` and `scaling` as they are read for an equal model.

    NTK-aware scaling is a larger base.

    keywords: the keywords of a member.
    turned: number of dimensions of a head that rotate.
    """
    scaling = scaling_named(keywords["scaling"])
    if isinstance(scaling, NTKAware):
        return {"base": keywords["base"] * scaling.factor ** (turned / max(turned - 2, 1)), "scaling": None}
    return {"scaling": None if scaling is None else format_part(scaling)}

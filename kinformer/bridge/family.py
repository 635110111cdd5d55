"""Family: the two-way table between a model type of Hugging Face transformers and a member."""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.bridge.settings import Config, Keywords, Setting, UnreadableKey
from kinformer.bridge.tensors import Place, TensorRule, places
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.checkpoint.weights_file import tensors_of
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.keywords import name_of, signature
from kinformer.core.quote import quote

# keys that change no result of a trained model: names, dates, how transformers stores, trains or prints
UNREAD = frozenset(
    """
    model_type architectures transformers_version torch_dtype dtype auto_map name_or_path license
    initializer_range initializer_factor init_std use_cache output_attentions output_hidden_states return_dict
    torchscript tie_encoder_decoder is_encoder_decoder gradient_checkpointing chunk_size_feed_forward
    bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id decoder_start_token_id
    forced_bos_token_id forced_eos_token_id prefix tokenizer_class task_specific_params problem_type finetuning_task
    id2label label2id num_labels classifier_dropout pretraining_tp attention_dropout hidden_dropout resid_pdrop
    embd_pdrop attn_pdrop hidden_dropout_prob attention_probs_dropout_prob dropout activation_dropout layerdrop
    attn_implementation summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    max_length min_length do_sample early_stopping num_beams num_beam_groups temperature top_k top_p typical_p
    repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate remove_invalid_values diversity_penalty
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens pruned_heads
    output_past use_bfloat16 xla_device tf_legacy_loss cross_attention_hidden_size transformers.js_config
    """.split()
)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
CHECK_CONFIG = "Check that config.json belongs to these weights"
TRAINING = frozenset({"dropout", "init", "best", "beside", "smoothing"})  # keywords of members that change no output


class NoFamily(ValueError):
    """Error for a model that no class of transformers computes."""


@dataclass(frozen=True)
class Family:
    """The two-way table of one model type.

    model_type: the value of `model_type` in config.json.
    architecture: name of the class of transformers that computes the member's output.
    member: function that builds our model.
    settings: translations of the config, in the order in which they are read.
    tensors: translations of the weights.
    base_model_prefix: first part of the names of all tensors but the head's. Files of models without a head lack it.
    length_key: config key of the context length; None if a setting reads it.
    aliases: further names of config keys, each with the key that it stands for, as transformers' `attribute_map`.
    unread: further keys of the config that change no result.
    ignored_tensors: regular expressions of names of foreign tensors that are no weights, such as masks.
    computed_tables: foreign tables that our member computes itself, such as sines. Each regular expression of their
        names has a function that returns the table for a number of rows and columns. Other tables are refused.
    head_prefixes: first parts of the names of our tensors that belong to the head.
    tied_names: second names of foreign tensors, with the first name of each; a file may have either or both.
    optional_zero_tensors: names of foreign tensors that are 0 if a file lacks them.
    """

    model_type: str
    architecture: str
    member: Callable[..., Any]
    settings: tuple[Setting, ...]
    tensors: tuple[TensorRule, ...]
    base_model_prefix: str = ""
    length_key: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    ignored_tensors: tuple[str, ...] = ()
    computed_tables: Mapping[str, Callable[[int, int], Tensor]] = field(default_factory=dict)
    head_prefixes: tuple[str, ...] = ()
    tied_names: Mapping[str, str] = field(default_factory=dict)
    optional_zero_tensors: tuple[str, ...] = ()

    def read(self, config: Config) -> dict[str, Any]:
        """Return the keywords of the member for a foreign config.

        config: the content of config.json.

        Errors: CheckpointError for a key that changes results and is not understood.
        """
        length = () if self.length_key is None else (self.length_key,)
        known_keys = UNREAD.union(self.unread, self.aliases, length, *(setting.keys for setting in self.settings))
        for key, value in config.items():
            if key not in known_keys and not key.startswith("_") and value is not None:
                raise CheckpointError(
                    f"cannot read the config: got {key}={quote(value)}, expected no such key for model_type "
                    f"{self.model_type!r}{suggest_names(key, known_keys, '')}. Remove the key from config.json only if "
                    "it changes no result, or run the model with transformers"
                )
        config = self._without_aliases(config)
        keywords: dict[str, Any] = {}
        for setting in self.settings:
            keywords |= setting.read(config, keywords)
        return keywords

    def _without_aliases(self, config: Config) -> Config:
        """Return a config in which every key has its own name; UnreadableKey if a key and its alias differ."""
        values = {key: value for key, value in config.items() if key not in self.aliases}
        for alias, key in self.aliases.items():
            value = config.get(alias)
            if value is None:
                continue
            if values.get(key) not in (None, value):
                raise UnreadableKey(alias, value, f"{quote(values[key])} as in {key}")
            values[key] = value
        return values

    def write(self, keywords: Keywords) -> dict[str, Any]:
        """Return the config of transformers for the keywords of our member.

        keywords: all keywords of the member.

        Errors: NoFamily if the class of transformers computes something else.
        """
        config: dict[str, Any] = {"model_type": self.model_type, "architectures": [self.architecture]}
        for setting in self.settings:
            keywords = {**keywords, **setting.canonical(keywords)}
            config |= setting.write(keywords)
        try:
            back = self.read(config)
        except UnreadableKey as error:
            raise NoFamily(f"{self.architecture} cannot compute {error.key}={quote(config.get(error.key))}") from error
        for name, value in back.items():
            if name not in TRAINING and keywords[name] != value:
                raise NoFamily(f"{self.architecture} cannot compute {name}={keywords[name]!r}")
        usual = default_keywords(self.member)
        for name in keywords.keys() - back.keys() - TRAINING:
            if keywords[name] != usual[name]:
                raise NoFamily(f"{self.architecture} cannot compute {name}={keywords[name]!r}")
        return config

    def join(self, model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of our model, by name, without its head if the foreign model has none.

        model: our model.
        tensors: foreign tensors by name.

        Errors: CheckpointError for tensors that are missing, left over or of another shape, and for unequal ties.
        """
        ours, theirs = dict(tensors_of(model)), self._with_full_names(tensors)
        for second, first in self.tied_names.items():
            if equal := [theirs[name] for name in (second, first) if name in theirs]:
                theirs |= {second: equal[0].clone(), first: equal[-1]}
        every = list(places(model, list(ours), self.tensors))
        unused = self._unused(model, every, theirs)
        if other_head := [name for name in unused if not name.startswith(self.base_model_prefix)]:
            raise CheckpointError(
                f"cannot load the weights: {other_head[0]} belongs to a model with another head; kinformer reads only "
                f"the language-modelling head ({self.architecture}). Run this model with transformers"
            )
        head = [place for place in every if place.name.startswith(self.head_prefixes)]
        has_head = any(name in theirs for place in head for name in place.theirs)
        joined = {}
        for place in every:
            missing = [name for name in place.theirs if name not in theirs]
            if missing and missing[0] in self.optional_zero_tensors:
                joined[place.name] = torch.zeros_like(ours[place.name])
            elif not missing:
                parts = [theirs[name] for name in place.theirs]
                joined[place.name] = _joined(place, parts, ours[place.name].shape)
            elif has_head or place not in head:
                raise CheckpointError(f"cannot load the weights: {missing[0]} is missing. {CHECK_CONFIG}")
        if unused:
            raise CheckpointError(
                f"cannot load the weights: {unused[0]} has no place in {self.architecture}. {CHECK_CONFIG}"
            )
        return joined

    def _with_full_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return foreign tensors by the names in a model with a head; old files name norms as TensorFlow does."""
        has_prefix = any(name.startswith(self.base_model_prefix) for name in tensors)
        start = "" if has_prefix else self.base_model_prefix
        named = {}
        for name, tensor in tensors.items():
            name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            named[start + name] = tensor
        return named

    def _unused(self, model: nn.Module, every: Iterable[Place], theirs: Mapping[str, Tensor]) -> list[str]:
        """Return the names of foreign weights that our model has no tensor for.

        Second copies of tied tensors, masks and the tables that our model computes are left out.
        """
        used = {name for place in every for name in place.theirs}
        ties = self._ties(model)
        unused = []
        for name in [name for name in theirs if name not in used]:
            table = next(
                (table for pattern, table in self.computed_tables.items() if re.fullmatch(pattern, name)), None
            )
            if table is not None:
                _check_table(name, theirs[name], table)
            elif name in ties and ties[name] in theirs:
                _check_tie(name, ties[name], theirs)
            elif not any(re.fullmatch(pattern, name) for pattern in self.ignored_tensors):
                unused.append(name)
        return unused

    def _ties(self, model: nn.Module) -> dict[str, str]:
        """Return the second names of foreign tensors that are one tensor in our model, each with its first name."""
        every = model.state_dict(keep_vars=True)
        first = {id(tensor): name for name, tensor in reversed(every.items())}
        theirs = {place.name: place.theirs for place in places(model, list(every), self.tensors)}
        shared = {names: theirs[first[id(every[name])]] for name, names in theirs.items()}
        ties = {second[0]: other[0] for second, other in shared.items() if len(second) == len(other) == 1}
        return {**self.tied_names, **{second: other for second, other in ties.items() if second != other}}

    def split(self, model: Any) -> dict[str, Tensor]:
        """Return the foreign tensors of our model, by name; a headless model has none for the head.

        model: our model.
        """
        ours, theirs = dict(tensors_of(model)), dict[str, Tensor]()
        for place in places(model, list(ours), self.tensors):
            if model.headless and place.name.startswith(self.head_prefixes):
                continue
            tensors = place.form.split(ours[place.name], place.owner)
            theirs |= {name: part.contiguous() for name, part in zip(place.theirs, tensors, strict=True)}
        if "head.weight" in ours:  # a class with a head of its own does not tie its embeddings either
            theirs |= {
                second: theirs[first].clone() for second, first in self.tied_names.items() if second not in theirs
            }
        return theirs


def _check_table(name: str, tensor: Tensor, table: Callable[[int, int], Tensor]) -> None:
    """Raise CheckpointError unless a foreign table has the numbers that a function computes, up to rounding."""
    if tensor.dtype in FLOATS and tensor.dim() == 2:
        nearness = max(torch.finfo(tensor.dtype).eps, 1e-4)  # float32 computes angles of far positions less exactly
        if torch.allclose(tensor.double(), table(*tensor.shape), rtol=0, atol=nearness):
            return
    raise CheckpointError(
        f"cannot load {name}: it differs from the sinusoidal table that kinformer computes. Run the model with "
        "transformers"
    )


def _check_tie(name: str, other: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError unless two foreign tensors are equal, if necessary in the narrower of their dtypes."""
    second, first = tensors[name], tensors[other]
    if not any(torch.equal(second.to(tensor.dtype), first.to(tensor.dtype)) for tensor in (first, second)):
        raise CheckpointError(
            f"cannot load the weights: {name} differs from {other}, expected equal tensors, because the model has "
            "one for both. If this is the head, set tie_word_embeddings to false in config.json; or run the model with "
            "transformers"
        )


def _joined(place: Place, parts: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """Return our tensor from its foreign parts; raise CheckpointError for other dtypes, or if it gets another shape."""
    for name, part in zip(place.theirs, parts, strict=True):
        if part.dtype not in FLOATS:
            raise CheckpointError(
                f"the weights have {name} in {part.dtype}, expected {' or '.join(map(str, FLOATS))}. Save it with one "
                "of these, or without quantisation"
            )
    try:
        tensor = place.form.join(parts, place.owner).contiguous()
    except (RuntimeError, IndexError):  # the parts do not fit together, or have too few axes
        shapes = [part.shape for part in parts]
    else:
        if tensor.shape == shape:
            return tensor
        shapes = [tensor.shape]
    raise CheckpointError(
        f"{' and '.join(place.theirs)} have the wrong shape: got {' and '.join(str(list(size)) for size in shapes)}, "
        f"expected {list(shape)} by the config"
    )


def default_keywords(member: Callable[..., Any]) -> dict[str, Any]:
    """Return the default of every keyword of a member.

    member: the member function.
    """
    return {name: parameter.default for name, parameter in signature(member).parameters.items()}


def families() -> dict[str, Family]:
    """Return every family of the folder `families` by its model type, sorted."""
    names = [path.stem for path in (Path(__file__).parent / "families").glob("[!_]*.py")]
    groups = [importlib.import_module(f"kinformer.bridge.families.{name}").FAMILIES for name in names]
    return {family.model_type: family for family in sorted(chain(*groups), key=attrgetter("model_type"))}


def family_of(model_type: Any) -> Family:
    """Return the family of a model type.

    model_type: the model type.

    Errors: CheckpointError for a type that kinformer does not read.
    """
    table = families()
    if not isinstance(model_type, str) or model_type not in table:
        raise CheckpointError(
            f"kinformer does not read models of type {quote(model_type)}{suggest_names(str(model_type), table, '')}; "
            f"it reads {', '.join(table)}"
        )
    return table[model_type]


def native(model: nn.Module) -> tuple[Family, dict[str, Any]]:
    """Return the family that computes a model's output, and its config.

    model: a model that a member built.

    Errors: NoFamily, with the reason, if no class of transformers computes the same.
    """
    record: Any = model.member
    reasons = [f"a conversion has changed its layers ({change.name})" for change in record.changes]
    if reasons:
        raise NoFamily("; ".join(reasons))
    for family in families().values():
        if name_of(family.member) == record.name:
            try:
                return family, family.write({**record.defaults, **record.keywords})
            except NoFamily as error:
                reasons.append(str(error))
    raise NoFamily("; ".join(reasons) or f"transformers has no class for {record.name}")


def rules(*lines: Sequence[Any]) -> tuple[TensorRule, ...]:
    """Return a tensor table.

    lines: for each of our tensors its name, the foreign name or names, and the form if it is not the same tensor.
    """
    return tuple(
        TensorRule(ours, (theirs,) if isinstance(theirs, str) else tuple(theirs), *form)
        for ours, theirs, *form in lines
    )

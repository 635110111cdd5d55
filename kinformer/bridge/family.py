"""Family: the two-way table between a model type of Hugging Face transformers and a member."""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.bridge.settings import Config, Keywords, Setting
from kinformer.bridge.tensors import Place, TensorRule, places
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.checkpoint.weights_file import tensors_of
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.keywords import name_of, signature
from kinformer.core.quote import quote
from kinformer.core.warn import warn

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
    """.split()
)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
TRAINING = frozenset({"dropout", "init", "best", "beside", "smoothing"})  # keywords of members that change no output


class NoFamily(ValueError):
    """Error for a model that no class of transformers computes."""


@dataclass(frozen=True)
class Family:
    """The two-way table of one model type.

    kind: the model type, the value of `model_type` in config.json.
    architecture: name of the class of transformers that computes the member's output.
    member: function that builds our model.
    settings: translations of the config, in the order in which they are read.
    tensors: translations of the weights.
    prefix: first part of the names of tensors, which models that were saved without their head do not have.
    length_key: name of the key with the longest row of the training; None if a setting reads it.
    unread: further keys of the config that change no result.
    spare: regular expressions of names of tensors that are no weights, such as masks.
    fixed: foreign tables that our member computes instead, such as sines. For each regular expression of their names
        there is a function of rows and columns, whose numbers they must have.
    head: first parts of the names of our tensors that models which were saved without a head lack.
    copies: second names of foreign tensors, with the first name of each; a file may have either or both.
    zeros: names of foreign tensors that are 0 if a file lacks them.
    """

    kind: str
    architecture: str
    member: Callable[..., Any]
    settings: tuple[Setting, ...]
    tensors: tuple[TensorRule, ...]
    prefix: str = ""
    length_key: str | None = None
    unread: frozenset[str] = frozenset()
    spare: tuple[str, ...] = ()
    fixed: Mapping[str, Callable[[int, int], Tensor]] = field(default_factory=dict)
    head: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    zeros: tuple[str, ...] = ()

    def read(self, config: Config) -> dict[str, Any]:
        """Return the keywords of the member for a foreign config.

        config: the content of config.json.

        Errors: CheckpointError for a key that changes results and is not understood.
        """
        length = () if self.length_key is None else (self.length_key,)
        known = UNREAD.union(self.unread, length, *(setting.keys for setting in self.settings))
        strange = [key for key in config if key not in known and not key.startswith("_") and config[key] is not None]
        if strange:
            raise CheckpointError(
                f"the config has {strange[0]}={quote(config[strange[0]])}, which kinformer does not know for models of "
                f"type {self.kind}{suggest_names(strange[0], known)}; remove it if it changes no result"
            )
        keywords: dict[str, Any] = {}
        for setting in self.settings:
            keywords |= setting.read(config, keywords)
        return keywords

    def write(self, keywords: Keywords) -> dict[str, Any]:
        """Return the config of transformers for the keywords of our member.

        keywords: all keywords of the member.

        Errors: NoFamily if the class of transformers computes something else.
        """
        config: dict[str, Any] = {"model_type": self.kind, "architectures": [self.architecture]}
        for setting in self.settings:
            config |= setting.write(keywords)
        back = self.read(config)
        for name, value in back.items():
            if name not in TRAINING and keywords[name] != value:
                raise NoFamily(f"{self.architecture} cannot compute {name}={keywords[name]!r}")
        usual = default_keywords(self.member)
        for name in keywords.keys() - back.keys() - TRAINING:
            if keywords[name] != usual[name]:
                raise NoFamily(f"{self.architecture} cannot compute {name}={keywords[name]!r}")
        return config

    def join(self, model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of our model, made from the foreign ones.

        model: our model.
        tensors: foreign tensors by name.

        Errors: CheckpointError for tensors that are missing, left over or of another shape.
        """
        ours = dict(tensors_of(model))
        start = "" if any(name.startswith(self.prefix) for name in tensors) else self.prefix
        theirs = {start + name: tensor for name, tensor in tensors.items()}
        given = list(theirs)
        for copy, original in self.copies.items():
            same = [theirs[name] for name in (copy, original) if name in theirs]
            theirs = {copy: same[0].clone(), original: same[-1], **theirs} if same else theirs
        made: dict[str, Tensor] = {}
        used: set[str] = set()
        every = list(places(model, list(ours), self.tensors))
        is_head = {place.name for place in every if place.name.startswith(self.head)} if self.head else set()
        if is_head and not any(name in theirs for place in every if place.name in is_head for name in place.theirs):
            model.headless = True
            with torch.random.fork_rng(devices=[]):  # the parameters of `model` may be uninitialised
                drawn = dict(tensors_of(self.member.rebuild(**model.member.keywords)))  # type: ignore[attr-defined]
            made = {name: drawn[name] for name in is_head}
        for place in every:
            missing = [name for name in place.theirs if name not in theirs]
            if missing and missing[0] in self.zeros:
                made[place.name] = torch.zeros_like(ours[place.name])
            if missing and place.name in made:
                continue
            if missing:
                raise CheckpointError(f"the weights lack {missing[0]}, which a model of type {self.kind} has")
            parts = [theirs[name] for name in place.theirs]
            made[place.name] = _joined(place, parts, ours[place.name].shape)
            used.update(place.theirs)
        left = [name for name in given if name not in used and not self._is_spare(name, theirs, model)]
        if left:
            raise CheckpointError(
                f"the weights have {left[0]}, which kinformer has no place for in a model of type {self.kind}; give "
                f"the weights of a {self.architecture}"
            )
        if model.headless:
            warn(f"the weights have no head, so this model of type {self.kind} gives hidden states, but no predictions")
        return made

    def split(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the foreign tensors of our model, by name.

        model: our model.
        """
        ours, theirs = dict(tensors_of(model)), dict[str, Tensor]()
        for place in places(model, list(ours), self.tensors):
            tensors = place.form.split(ours[place.name], place.owner)
            theirs |= {name: part.contiguous() for name, part in zip(place.theirs, tensors, strict=True)}
        if "head.weight" in ours:  # a class with a head of its own does not tie its embeddings either
            theirs |= {copy: theirs[name].clone() for copy, name in self.copies.items() if copy not in theirs}
        return theirs

    def _is_spare(self, name: str, theirs: Mapping[str, Tensor], model: nn.Module) -> bool:
        """Whether a foreign tensor is no weight, or a second copy of one that our model shares."""
        if any(re.fullmatch(pattern, name) for pattern in self.spare):
            return True
        if table := next((table for pattern, table in self.fixed.items() if re.fullmatch(pattern, name)), None):
            _check_fixed(name, theirs[name], table)
            return True
        if name in self.copies and torch.equal(theirs[name], theirs[self.copies[name]]):
            return True
        every = model.state_dict(keep_vars=True)
        shared = {id(tensor): first for first, tensor in reversed(every.items())}
        for place in places(model, list(every), self.tensors):
            first = shared[id(every[place.name])]
            if place.theirs == (name,) and first != place.name:
                (other,) = next(found.theirs for found in places(model, [first], self.tensors))
                return torch.equal(theirs[name], theirs[other])
        return False


def _check_fixed(name: str, given: Tensor, table: Callable[[int, int], Tensor]) -> None:
    """Raise CheckpointError unless a foreign table has the numbers that a function computes, up to rounding."""
    if given.dtype in FLOATS and given.dim() == 2:
        nearness = max(torch.finfo(given.dtype).eps, 1e-4)  # float32 computes angles of far positions less exactly
        if torch.allclose(given.double(), table(*given.shape), rtol=0, atol=nearness):
            return
    raise CheckpointError(
        f"the weights have {name} with other numbers than kinformer computes: got {quote(given)}, expected the "
        "usual table. Train the model here, or run it with transformers"
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
    folder = Path(__file__).parent / "families"
    names = sorted(path.stem for path in folder.glob("[!_]*.py"))
    found = [importlib.import_module(f"kinformer.bridge.families.{name}").FAMILIES for name in names]
    every = {family.kind: family for group in found for family in group}
    return {kind: every[kind] for kind in sorted(every)}


def family_of(kind: Any) -> Family:
    """Return the family of a model type.

    kind: the model type.

    Errors: CheckpointError for a type that kinformer does not read.
    """
    table = families()
    if not isinstance(kind, str) or kind not in table:
        raise CheckpointError(
            f"kinformer does not read models of type {quote(kind)}{suggest_names(str(kind), table, '')}; it reads "
            f"{', '.join(table)}"
        )
    return table[kind]


def native(model: nn.Module) -> tuple[Family, dict[str, Any]]:
    """Return the family that computes a model's output, and its config.

    model: a model that a member built.

    Errors: NoFamily, with the reason, if no class of transformers computes the same.
    """
    record: Any = model.member
    reasons = []
    for family in families().values():
        if name_of(family.member) == record.name:
            try:
                return family, family.write({**record.defaults, **record.keywords})
            except (NoFamily, CheckpointError) as error:
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

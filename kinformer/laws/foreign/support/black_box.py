"""BlackBox: a model of any library as a function from tokens to logits, for laws to call."""

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kinformer.core.parameter_noise import add_parameter_noise
from kinformer.laws.foreign.support.vocabulary import count_of, vocabulary
from kinformer.laws.support.findings import Unjudged

LONG = 300  # tokens: bfloat16 cannot count beyond 256
SHAKE = 0.1  # standard deviation of the noise on weights, as a share of the weights' own
TOKENS = ("input_ids", "tokens", "token_ids", "ids", "idx", "x")
SOURCES = ("input_ids", "source", "src", "source_ids")
TARGETS = ("decoder_input_ids", "target", "tgt", "target_ids")
CACHES = ("past_key_values", "cache_params", "past_key_value", "past", "layer_past", "kv_cache", "cache", "state")
LOGITS = ("logits", "prediction_logits", "last_hidden_state", "y")
LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "context_length",
    "n_ctx",
    "max_length",
    "max_len",
    "block_size",
)
BIDIRECTIONAL = re.compile(r"bert|masked|mlm|encoder(?!decoder)|bidirectional|xlnet", re.IGNORECASE)
STEPS = 64  # largest number of lengths that are tried for the nearest one that a model takes
LARGE = 20_000_000  # parameters; laws make fewer calls of a larger model


class CannotRun(ValueError):
    """Raised if a model cannot be called with tokens, or gives no logits; the text is one line."""


class BoxOutput(NamedTuple):
    """The result of a call of a model.

    logits: logits [B T V], or [B 1 V] if the model gives one vector for a row.
    cache: the decoding cache that the call returned; None if it returned none.
    """

    logits: Tensor
    cache: Any = None


class BlackBox:
    """A copy of a model of any library for the laws, with noise on its weights and without dropout.

    The copy is in eval mode. It has float64 weights if the model can be called with them, else float32. The given model
    is not changed.

    model: the module. Its `forward` takes tokens [B T], and gives logits as a tensor, in a tuple, or as `.logits`.
    make: function that builds a fresh model of this kind.

    Errors: CannotRun if the model cannot be called with tokens, or gives no logits.
    """

    def __init__(self, model: nn.Module, make: Callable[[], nn.Module]) -> None:
        self.original, self.make, self.name = model, make, type(model).__name__
        self.config = getattr(model, "config", None)
        self.names = _forward_names(model)
        self.is_seq2seq = "decoder_input_ids" in self.names or (
            any(name in self.names for name in TARGETS) and any(name in self.names for name in SOURCES)
        )
        vocab = vocabulary(model)
        if vocab is None:
            raise CannotRun(
                f"{self.name} has no vocabulary: got no vocab_size in its config and no nn.Embedding. Set the "
                "attribute vocab_size of the model"
            )
        self.vocab: int = vocab
        self._check_required()
        self.is_large = sum(parameter.numel() for parameter in model.parameters()) > LARGE
        self.longest = 0
        self.model, self.dtype, self.longest = self._prepare()
        try:
            self.short = self.fit(24)
        except Unjudged as why:
            raise CannotRun(
                f"{self.name} cannot be called with short rows, only with {self.longest} tokens: {why}"
            ) from why

    def _check_required(self) -> None:
        supplied = {self.tokens_name, *(self._first(SOURCES) if self.is_seq2seq else "",)}
        strange = [
            name
            for name, parameter in inspect.signature(self.original.forward).parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and name not in supplied
        ]
        if strange:
            raise CannotRun(
                f"{self.name}.forward needs {strange[0]} besides tokens: expected a model that takes only tokens. Give "
                f"{strange[0]} a default"
            )

    def _prepare(self) -> tuple[nn.Module, torch.dtype, int]:
        """Return the copy to test, its precision, and the longest row that it takes."""
        error: Exception | None = None
        lengths, best = self._lengths(), (self.original, torch.float64, 0)
        for dtype in (torch.float64, torch.float32):
            try:
                model = self.copy(dtype)
            except Exception as why:
                raise CannotRun(f"{self.name} cannot be copied: {one_line(why)}") from why
            for length in lengths:
                try:
                    self.call(self.tokens(1, length), model=model)
                except CannotRun:
                    raise
                except Exception as why:  # too long, or no float64
                    error = why
                    continue
                if dtype == torch.float32 or self._masks_in_float64(model, length):
                    best = max(best, (model, dtype, length), key=lambda candidate: candidate[2])
                break
            if best[2] == lengths[0]:
                break
        if not best[2]:
            raise CannotRun(f"{self.name} cannot be called with tokens [B T]: {one_line(error)}")
        return best

    def _masks_in_float64(self, model: nn.Module, length: int) -> bool:
        """False if padding gives NaN in float64: a mask of float64's smallest number is -inf in a float32 softmax."""
        if not self.takes_mask:
            return True
        mask = torch.ones(2, length, dtype=torch.long, device=self.device)
        mask[1, : length // 2] = 0
        tokens = self.tokens(2, length)
        source: dict[str, Any] = {"source": tokens, "source_mask": mask} if self.is_seq2seq else {"mask": mask}
        try:
            return bool(self.call(tokens, **source, model=model).logits.isfinite().all())
        except Exception:
            return True  # the law `padding` reports it

    def _lengths(self) -> list[int]:
        limits = (
            value for name in LENGTHS for owner in (self.config, self.original) if (value := count_of(owner, name))
        )
        limit = next(limits, LONG)
        tried = [LONG, 160, limit, limit - 1, limit - 2, limit - 4, 128, 96, 64, 48, 32, 24, 16, 12, 8, 4, 2]
        lengths = sorted({length for length in tried if 2 <= length <= min(limit, LONG)}, reverse=True)
        return [*lengths, *([limit] if LONG < limit <= 2048 else [])]  # some models take rows of one length only

    def copy(self, dtype: torch.dtype | None = None, *, shaken: bool = True) -> nn.Module:
        """Return a copy of the model in eval mode, without dropout.

        dtype: precision of its weights; None for the model's own.
        shaken: if true, the weights get noise, because weights of zero hide faults.
        """
        model = copy.deepcopy(self.original).eval()
        for module in model.modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, float) and ("drop" in name or (name == "p" and isinstance(module, nn.Dropout))):
                    setattr(module, name, 0.0)
        if shaken:
            devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
            with torch.random.fork_rng(devices=list(devices)), torch.no_grad():
                torch.manual_seed(0)
                shake(model)
        return model if dtype is None else model.to(dtype)

    @property
    def tokens_name(self) -> str:
        """Name of the argument of `forward` that takes the tokens, of the decoder if there is one."""
        return self._first(TARGETS if self.is_seq2seq else TOKENS) or next(iter(self.names))

    def _first(self, candidates: tuple[str, ...]) -> str:
        return next((name for name in candidates if name in self.names), "")

    @property
    def cache_name(self) -> str:
        """Name of the argument of `forward` that takes the decoding cache; "" if there is none."""
        return self._first(CACHES)

    @property
    def takes_mask(self) -> bool:
        """True if `forward` takes attention_mask, which is 0 at padding."""
        return "attention_mask" in self.names

    @property
    def takes_positions(self) -> bool:
        """True if `forward` takes position_ids for the tokens."""
        return "position_ids" in self.names and not self.is_seq2seq

    @cached_property
    def per_token(self) -> bool:
        """True if the model gives logits for every token, and not one vector for a row."""
        return self.call(self.tokens(1, self.short)).logits.shape[1] == self.short

    @cached_property
    def why_not_causal(self) -> str:
        """Reason why the model may read later tokens; "" if it must not."""
        for owner in (self.original, self.config):
            declared = getattr(owner, "is_causal", getattr(owner, "causal", None))
            if isinstance(declared, bool):
                return "" if declared else "the model says is_causal=False"
        if not self.per_token:
            return "the model gives one vector for a row"
        if self.is_seq2seq:
            return ""
        is_decoder = getattr(self.config, "is_decoder", None)
        if isinstance(is_decoder, bool) and BIDIRECTIONAL.search(self.name):
            return "" if is_decoder else "the config says is_decoder=False"
        if not self.cache_name and BIDIRECTIONAL.search(self.name):
            return f"a {self.name} may read later tokens; if it must not, set is_causal = True on its class"
        if self.cache_name or getattr(self.original, "can_generate", lambda: False)():
            return ""
        if self.call(self.tokens(1, self.short)).logits.shape[-1] >= self.vocab:
            return ""
        return (
            "its outputs are no logits of the vocabulary; if it must not read ahead, set is_causal = True on its class"
        )

    @property
    def device(self) -> torch.device:
        """Device of the model's parameters."""
        return next((parameter.device for parameter in self.original.parameters()), torch.device("cpu"))

    @property
    def pad(self) -> int | None:
        """Token at padding, from the config; None if it names none."""
        return count_of(self.config, "pad_token_id", 0)

    def tokens(self, rows: int, length: int, seed: int = 0) -> Tensor:
        """Return random tokens [B T] without special tokens, such as the padding."""
        special = {
            value
            for name in ("pad", "eos", "bos", "sep", "cls", "mask", "unk", "decoder_start")
            if (value := count_of(self.config, f"{name}_token_id", 0)) is not None
        }
        allowed = [token for token in range(min(self.vocab, 5000)) if token not in special] or [0]
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(0, len(allowed), (rows, length), generator=generator)
        return torch.tensor(allowed)[drawn].to(self.device)

    def fit(self, length: int, *, longer: bool = False, side: str = "tokens") -> int:
        """Return the nearest number of tokens that the model takes in a row, such as a multiple of 8.

        length: the number to try first.
        longer: if true, larger numbers are tried next, else smaller ones.
        side: "tokens" for rows of tokens, "source" for the source of an encoder-decoder.

        Errors: Unjudged if the model takes none of these numbers.
        """
        lengths = range(length, self.longest + 1) if longer else range(min(length, self.longest), 0, -1)
        errors = []
        for n in lengths[:STEPS]:
            row = self.tokens(1, n)
            try:
                if side == "source":
                    self.call(self.tokens(1, self.short), source=row)
                else:
                    self.call(row)
            except Exception as error:
                errors.append(error)
            else:
                return n
        numbers = f"{lengths[0]} to {n}" if n != lengths[0] else str(n)
        raise Unjudged(f"the model refuses rows of length {numbers}: {one_line(errors[0])}")

    def draws(self, model: nn.Module) -> bool:
        """Return True if a call of a model draws random numbers.

        model: a copy of the model.
        """
        states: list[Tensor] = []
        hooks = [model.register_forward_pre_hook(lambda *_: states.append(torch.get_rng_state()))]
        hooks.append(model.register_forward_hook(lambda *_: states.append(torch.get_rng_state())))
        try:
            self.call(self.tokens(2, self.short), model=model)
        finally:
            for hook in hooks:
                hook.remove()
        return not torch.equal(states[0], states[-1])

    def call(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        caching: bool = False,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        model: nn.Module | None = None,
        gradients: bool = False,
        seed: int = 0,
    ) -> BoxOutput:
        """Call the model.

        tokens: tokens [B T], for the decoder if there is one.
        mask: 1 at tokens, 0 at padding [B S]; with a cache, S counts its columns too.
        position_ids: positions [B T]; None for those that the model derives.
        cache: the cache of an earlier call.
        caching: if true, the call returns a cache.
        source: tokens of the encoder; by default a fixed row.
        source_mask: as `mask`, for the source.
        model: another copy of the model to call.
        gradients: if true, gradients can be computed.
        seed: seed of PyTorch's generator, for models that draw random numbers.
        """
        arguments: dict[str, Any] = {self.tokens_name: tokens}
        if self.is_seq2seq:
            fixed = self.tokens(1, min(8, max(2, self.longest)), 99).expand(len(tokens), -1)
            arguments[self._first(SOURCES)] = fixed if source is None else source
            optional: dict[str, Any] = {"attention_mask": source_mask, "decoder_attention_mask": mask}
        else:
            optional = {"attention_mask": mask, "position_ids": position_ids}
        optional[self.cache_name] = cache
        optional["use_cache"] = caching
        arguments |= {name: value for name, value in optional.items() if value is not None and name in self.names}
        if next(iter(self.names)) == self.tokens_name:  # a function may take tokens by position only
            positional: tuple[Tensor, ...] = (arguments.pop(self.tokens_name),)
        else:
            positional = ()
        with torch.set_grad_enabled(gradients), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            output = (self.model if model is None else model)(*positional, **arguments)
        return BoxOutput(self._logits(output, tokens.shape[1]), self._cache(output))

    def _logits(self, output: Any, length: int) -> Tensor:
        logits = next((value for name in LOGITS if isinstance(value := _field(output, name), Tensor)), output)
        if isinstance(logits, tuple | list):
            logits = next((value for value in logits if isinstance(value, Tensor) and value.dim() > 1), None)
        if isinstance(logits, Tensor) and logits.dim() == 2:
            logits = logits[:, None]
        if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[1] not in (length, 1):
            shape = list(logits.shape) if isinstance(logits, Tensor) else type(output).__name__
            raise CannotRun(f"{self.name} gives no logits for {length} tokens: got {shape}, expected [B, {length}, V]")
        return logits

    def _cache(self, output: Any) -> Any:
        cache = next((value for name in CACHES if (value := _field(output, name)) is not None), None)
        if cache is None and isinstance(output, tuple) and len(output) > 1 and not hasattr(output, "_fields"):
            cache = output[1]
        return cache


def shake(model: nn.Module) -> None:
    """Add noise to the weights of a model, in place.

    model: the model. Frozen weights, and weights that are not saved, stay: they are computed, such as sinusoids. If all
        weights are frozen, all get noise. The row of an embedding for padding stays, because no training changes it.
    """
    unsaved = [re.compile(name) for name in getattr(model, "_keys_to_ignore_on_save", None) or ()]
    parameters = [p for name, p in model.named_parameters() if not any(key.search(name) for key in unsaved)]
    trained = [p for p in parameters if p.requires_grad] or parameters
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding) and part.padding_idx is not None]
    rows = [table.weight[table.padding_idx].clone() for table in tables]
    add_parameter_noise(nn.ParameterList(trained), SHAKE)
    for table, row in zip(tables, rows, strict=True):
        table.weight[table.padding_idx] = row


def _forward_names(model: nn.Module) -> list[str]:
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind not in kinds]
    if not names:
        raise CannotRun(f"{type(model).__name__}.forward has no argument for tokens")
    return names


def _field(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def one_line(error: BaseException | None) -> str:
    """Return the class and text of an error in one line of at most 300 characters or so."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) < 300 else text[:300] + ' ...'}"

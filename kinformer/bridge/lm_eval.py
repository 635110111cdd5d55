"""KinformerLM: models of kinformer as models of the package lm_eval (lm-evaluation-harness)."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_eval.models  # noqa: F401, it registers the models of lm_eval, which it does not do after another one
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from kinformer.bridge.load import load
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.core.model import display_name
from kinformer.decoding.byte_tokenizer import begin_tokens, tokenizer_of_model
from kinformer.decoding.generate import end_tokens, generate
from kinformer.decoding.score import score
from kinformer.decoding.stop_at_text import stop_at_text
from kinformer.models.support.text_model import TextModel

NEW_TOKENS = 256  # longest answer of a task that names no length, as in lm_eval
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens")  # names of the largest number of tokens, as in lm_eval
KNOWN = frozenset({"until", "do_sample", "temperature", "top_k", "top_p", "num_beams", *LENGTHS})


@register_model("kinformer")
class KinformerLM(TemplateLM):
    """A trained model that the tasks of lm_eval measure.

        import lm_eval
        from kinformer.bridge.lm_eval import KinformerLM
        lm_eval.simple_evaluate(KinformerLM("runs/llama"), tasks=["lambada_openai"])

    A text without a context is scored after one token: the tokenizer's begin token, else its end token, else a newline.
    A model of another library reads the tokens that its tokenizer puts before a text, as in lm_eval's class for
    transformers, so both have the same results.

    run: a model that predicts the next token, or anything that `kf.load` reads.
    batch_size: number of answers that are generated at a time.
    max_gen_toks: largest number of tokens of an answer, if the task names none.
    max_batch_size: without effect; lm_eval gives it.
    device: device to move the model to; None leaves it.

    Errors: ValueError for another kind of model; ImportError without the package lm_eval.
    """

    def __init__(
        self,
        run: Any,
        batch_size: int | str = 8,
        max_gen_toks: int = NEW_TOKENS,
        max_batch_size: int | None = None,
        device: str | None = None,
    ):
        super().__init__()
        self.model = load(run) if isinstance(run, str | Path) else run
        if not isinstance(self.model, TextModel):
            reads = getattr(self.model, "reads", "other inputs")
            kind = "is a masked language model" if reads == "masked" else f"reads {reads}"
            raise ValueError(
                "lm_eval needs a model that predicts the next token of a text, but "
                f"{display_name(self.model)} {kind}. Use one such as gpt"
            )
        if device is not None:
            self.model.to(device)
        if not str(batch_size).isdecimal() or int(batch_size) == 0:
            raise ValueError(f"wrong batch_size: got {batch_size!r}, expected a number above 0. Give one such as 8")
        self.batch_size, self.max_gen_toks = int(batch_size), int(max_gen_toks)
        self.tokenizer = tokenizer_of_model(self.model)

    @property
    def tokenizer_name(self) -> str:
        """SHA-256 of the tokenizer, or "bytes"; lm_eval tells cached requests apart by it."""
        return str(getattr(self.tokenizer, "sha256", "bytes"))

    @property
    def eot_token_id(self) -> int:
        """Id of the token before a text without a context."""
        begin = self.tokenizer.special_token("bos_token") if isinstance(self.tokenizer, Tokenizer) else None
        return begin if begin is not None else (getattr(self.tokenizer, "ends", ()) or self.tokenizer.encode("\n"))[0]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the tokens of a text, after its begin tokens unless add_special_tokens is False."""
        tokens = self.tokenizer.encode(string)
        return [*(() if add_special_tokens is False else begin_tokens(self.model, self.tokenizer, tokens)), *tokens]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a chat as one text, by the template of the tokenizer."""
        return self.tokenizer.chat(chat_history, add_generation_prompt=add_generation_prompt)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        results = []
        every = score(self.model, [context + continuation for _, context, continuation in requests])
        for (_, context, _), scores in zip(requests, every, strict=True):
            values = scores.log_probabilities[len(context) :].double()
            results.append((values.sum().item(), bool(scores.is_greedy[len(context) :].all())))
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of whole texts, each after the token `eot_token_id`."""
        rows = [[self.eot_token_id, *self.tok_encode(request.args[0])] for request in requests]
        return [scores.total for scores in score(self.model, rows)]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the continuation of each text, up to one of the texts that its task stops at."""
        answers: dict[int, str] = {}
        groups: dict[str, list[int]] = {}
        for n, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items())), []).append(n)
        for group in groups.values():
            for at in range(0, len(group), self.batch_size):
                batch = group[at : at + self.batch_size]
                texts = self._continue([requests[n].args[0] for n in batch], dict(requests[batch[0]].args[1]))
                answers |= dict(zip(batch, texts, strict=True))
        return [answers[n] for n in range(len(requests))]

    def _continue(self, contexts: list[str], options: dict[str, Any]) -> list[str]:
        """Return the continuations of texts with the same options."""
        if strange := options.keys() - KNOWN:
            raise ValueError(f"a task gives {min(strange)}, which kinformer does not have. Remove it from the task")
        if options.get("num_beams", 1) != 1:
            raise ValueError(f"a task gives num_beams={options['num_beams']}, but answers are single rows. Remove it")
        until = [options["until"]] if isinstance(options.get("until"), str) else options.get("until") or ()
        until = [text for text in until if text]  # an empty text stands for no stop
        prompts = [self.tok_encode(context) or [self.eot_token_id] for context in contexts]
        rows = generate(
            self.model,
            prompts,
            int(next((options[name] for name in LENGTHS if name in options), self.max_gen_toks)),
            **_drawing(options),
            stop=stop_at_text(self.tokenizer, *(text.encode() for text in until)) if until else None,
        )
        texts = [self._text_of(row) for row in rows[:, max(map(len, prompts)) :].tolist()]
        return [min((text.split(stop)[0] for stop in until), key=len, default=text) for text in texts]

    def _text_of(self, row: Sequence[int]) -> str:
        """Return the text of new tokens up to a token that ends a text, without special tokens."""
        ends = end_tokens(self.model)
        tokens = itertools.takewhile(lambda token: token >= 0 and token not in ends, row)
        special = self.tokenizer.special_ids if isinstance(self.tokenizer, Tokenizer) else frozenset()
        return self.tokenizer.decode([token for token in tokens if token not in special]).decode(errors="replace")


def _drawing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return how tokens are drawn: the likeliest unless a task samples, by `do_sample` or by a temperature above 0."""
    temperature = options.get("temperature", 1.0 if options.get("do_sample") else 0)
    if temperature == 0 or not options.get("do_sample", True):
        return {"temperature": 0}
    return {"temperature": temperature} | {name: options[name] for name in ("top_k", "top_p") if name in options}

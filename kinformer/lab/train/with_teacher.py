"""with_teacher: train a language model beside a frozen one, on its predictions and its hidden states."""

import copy
import math
import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from kinformer.core.batch import TokenBatch
from kinformer.core.checks import check_in_range, check_part, check_strictly_between
from kinformer.core.eval_mode import evaluating
from kinformer.core.keyword_hints import hint_keywords
from kinformer.core.layer import Context, Out
from kinformer.core.loss import Penalty, Weight
from kinformer.core.model import display_name
from kinformer.core.quote import quote
from kinformer.core.token_positions import context_of_tokens
from kinformer.models.lm import LM
from kinformer.nn.losses.distillation import hidden_distance, logit_distance

LOGITS, HIDDEN = "logits", "hidden"  # names of the losses in `Loss.parts` and in metrics.jsonl


class Distillation(NamedTuple):
    """The losses of a model beside a teacher.

    teacher: the frozen teacher, in eval mode.
    weights: the weight of each loss by name, "logits" and "hidden"; losses of weight 0 are left out.
    nll: the weight of the cross-entropy.
    temperature: the temperature of the logits.
    taps: names of the compared hidden states, as in `Context.taps`.
    """

    teacher: LM
    weights: MappingProxyType[str, float]
    nll: float
    temperature: float
    taps: tuple[str, ...]

    def losses(self, out: Out, read: Tensor, ctx: Context) -> dict[str, Tensor]:
        """Return the loss of each token [B T] by name.

        out: output of the trained model, with the taps.
        read: the tokens that it read.
        ctx: the context in which the teacher reads them.
        """
        with torch.no_grad():
            taught = self.teacher.logits(read, None, ctx.replace(taps=self.taps))
        found: dict[str, Tensor] = {}
        if LOGITS in self.weights:
            found[LOGITS] = logit_distance(out.y, taught.y, self.temperature)
        if HIDDEN in self.weights:
            found[HIDDEN] = hidden_distance(*([of.taps[name] for name in self.taps] for of in (out, taught)))
        return found


class TaughtModel(LM):
    """Base class of the views that `with_teacher` returns; they share everything with the model.

    A view has the model's modules and attributes, so it evaluates, decodes and is saved as the model. Only its loss
    differs. The teacher belongs to the class of the view and not to its modules: it is neither trained nor saved. A
    deep copy is a copy of the model, without the teacher.
    """

    distillation: Distillation
    model_class: type[LM]

    @property
    def penalties(self) -> dict[str, Weight]:  # type: ignore[override]
        """The weights of the model's further losses and of the losses beside the teacher."""
        return {**vars(self)["penalties"], **self.distillation.weights}

    def training_output(self, batch: TokenBatch, state: Any, ctx: Context) -> Out:
        if state is not None:
            raise ValueError("a teacher reads whole rows: got a state, expected None. Train without a teacher")
        read, distillation = batch.tokens[:, :-1], self.distillation
        out = super().training_output(batch, state, ctx.replace(taps=(*ctx.taps, *distillation.taps)))
        teacher_ctx = batch.limit_context(context_of_tokens(read), -1)
        return out._replace(aux={**out.aux, **distillation.losses(out, read, teacher_ctx)})

    def training_loss(self, *inputs: Any) -> tuple[Out, Tensor, dict[str, Tensor]]:
        out, data, parts = super().training_loss(*inputs)
        return out, self.distillation.nll * data, parts

    def describe_losses(self) -> list[str]:
        """Return a sentence for each loss with its weight and the parameters that it trains."""
        names = {id(p): name for name, p in self.named_parameters()}
        return [
            f"the loss {name!r} with weight {self.distillation.weights[name]:g} trains "
            f"{sum(p.numel() for p in penalty.trains):,} weights: "
            + ", ".join(dict.fromkeys(re.sub(r"\b\d+\b", "*", names[id(p)], count=1) for p in penalty.trains))
            for name, penalty in self.declared_losses().items()
        ]

    def declared_losses(self) -> dict[str, Penalty]:
        """Return what each loss trains: for "hidden" only layers up to the highest compared one."""
        trained = tuple(p for p in self.parameters() if p.requires_grad)
        above = {id(p) for p in self._parameters_above()}
        below = tuple(p for p in trained if id(p) not in above)
        trains = {LOGITS: trained, HIDDEN: below}
        return {name: Penalty(trains[name], by=name) for name in self.distillation.weights}

    def _parameters_above(self) -> list[nn.Parameter]:
        """Return the parameters that no compared hidden state depends on."""
        layers, taps = getattr(self.body, "layers", None), self.distillation.taps
        if layers is None or not taps:
            return []
        top = max(int(name.partition(".")[0]) for name in taps)
        used = {
            id(p) for part in (self.embedding, self.position, *layers[: top + 1]) if part for p in part.parameters()
        }
        return [p for p in self.parameters() if id(p) not in used]

    def __deepcopy__(self, memo: dict[int, Any]) -> LM:
        plain = object.__new__(self.model_class)
        vars(plain).update(vars(self))
        return copy.deepcopy(plain, memo)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Apply a function to the teacher too, so that it moves along to another device."""
        self.distillation.teacher._apply(fn, recurse)
        return super()._apply(fn, recurse)


@hint_keywords
def with_teacher(
    student: LM,
    teacher: LM,
    *,
    logits: float = 1.0,
    hidden: float = 0.0,
    nll: float = 1.0,
    temperature: float = 1.0,
    layers: Sequence[str] | None = None,
) -> LM:
    """Return a view of a language model whose loss also compares it with a frozen teacher.

        nll * cross-entropy + logits * tau^2 KL(teacher || student) + hidden * mean_n |h_n - t_n|^2 / |t_n|^2

    Choose it to adapt a converted or smaller model to its source: the teacher's predictions say more about a token than
    the token itself. `kf.fit(kf.with_teacher(student, teacher), data, lora=8, ...)` trains the student in place. The
    saved model is the student's, and loads without the teacher. Each step also runs the teacher forward, and the
    teacher's weights take memory. h_n and t_n are hidden states of student and teacher.

    Both losses are means over all tokens with a next token. "logits" trains every parameter of the student that
    requires gradients, which under LoRA are the adapters. "hidden" trains only parameters that a compared state depends
    on: the embedding, and the layers up to the highest compared one.

    student: the model to train. The view shares its modules and attributes.
    teacher: the model to learn from, with the same tokens. It is put into eval mode and gets no gradients. It moves
        along when the view moves to another device. Its mode and its device stay so after the training.
    logits: weight of the predictions' loss.
    hidden: weight of the hidden states' loss; both models then need the same width.
    nll: weight of the cross-entropy.
    temperature: the temperature tau of the predictions.
    layers: names of the compared hidden states, as in `Context.taps`: "3" is the output of layer 3, counted from 0.
        None stands for the outputs of all layers.

    Errors: ValueError if the models do not fit each other, share weights, or read lanes (rows that continue earlier
    ones). ValueError if both further losses have weight 0, or if a model has no such hidden state.

    Source: Hinton et al., 2015, arXiv:1503.02531; hidden states: Romero et al., 2014, arXiv:1412.6550.
    """
    check_part("student", student, LM, "a language model, such as load(folder)")
    check_part("teacher", teacher, LM, "a language model, such as load(folder)")
    weights = {
        LOGITS: check_in_range("logits", logits, 0, math.inf),
        HIDDEN: check_in_range("hidden", hidden, 0, math.inf),
    }
    weights = {name: weight for name, weight in weights.items() if weight}
    check_in_range("nll", nll, 0, math.inf)
    check_strictly_between("temperature", temperature, 0, math.inf)
    if not weights:
        raise ValueError("nothing to learn from the teacher: got logits=0 and hidden=0, expected one above 0")
    if isinstance(student, TaughtModel):
        raise ValueError("the student has a teacher already: got a view of with_teacher. Give the model itself")
    _refuse_pair(student, teacher)
    if layers is not None and HIDDEN not in weights:
        raise ValueError("layers= has no effect without the loss of hidden states: give hidden= above 0")
    taps = _taps(student, teacher, layers) if HIDDEN in weights else ()
    distillation = Distillation(teacher.eval(), MappingProxyType(weights), nll, temperature, taps)
    kind = type(student)
    attributes = {"distillation": distillation, "model_class": kind, "__module__": kind.__module__}
    view: Any = object.__new__(type(f"Taught{kind.__name__}", (TaughtModel, kind), attributes))
    object.__setattr__(view, "__dict__", vars(student))  # the same dict: facts that a training notes reach both
    return cast(LM, view)


def _refuse_pair(student: LM, teacher: LM) -> None:
    """Raise ValueError if the teacher cannot teach the student."""
    if teacher.vocab != student.vocab:
        raise ValueError(
            f"the teacher has {teacher.vocab:,} tokens, but the student has {student.vocab:,}. Give a teacher with the "
            "student's tokenizer"
        )
    places = {p.data_ptr() for p in student.parameters()}
    if any(p.data_ptr() in places for p in teacher.parameters()):
        raise ValueError(
            "the teacher shares weights with the student, which training changes. Give a deepcopy as teacher"
        )
    for name, model in (("student", student), ("teacher", teacher)):
        if model.lanes:
            raise ValueError(
                f"the {name} {display_name(model)} continues earlier rows (lanes), but a teacher reads whole rows. "
                "Train without a teacher"
            )


def _taps(student: LM, teacher: LM, layers: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the compared hidden states, after a check that both models have them in one width."""
    depths = [len(getattr(model.body, "layers", ())) for model in (student, teacher)]
    if layers is None and depths[0] != depths[1]:
        raise ValueError(
            f"the teacher has {depths[1]} layers, but the student has {depths[0]}. Give layers= with "
            "names that both have"
        )
    taps = tuple(map(str, range(depths[0]))) if layers is None else tuple(layers)
    if not taps:
        raise ValueError("hidden= has no states to compare: got no layers. Give layers=")
    shapes = []
    for model in (student, teacher):
        tokens = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
        with evaluating(model):
            found = model.logits(tokens, None, context_of_tokens(tokens).replace(taps=taps)).taps
        for name in taps:
            if name not in found:
                raise ValueError(f"this {display_name(model)} has no hidden state {quote(name)}; give a name such as 0")
        shapes.append({name: found[name].shape[-1] for name in taps})
    if shapes[0] != shapes[1]:
        widths = [sorted(set(widths.values())) for widths in shapes]
        raise ValueError(f"cannot compare hidden states: got widths {widths[0]} and {widths[1]}. Give hidden=0")
    return taps

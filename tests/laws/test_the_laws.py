"""The laws themselves: each one catches parts that are broken on purpose, and says what is wrong."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core import layer, memo
from kinformer.core.example import Example
from kinformer.core.layer import Context, Out, State, Want
from kinformer.core.loss import Penalty
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.laws import (
    any_length,
    autocast,
    batch_mates,
    chunk,
    compiles,
    derivative,
    dropout,
    dtype,
    empty_rows,
    gradients,
    groups,
    heads,
    learns,
    limits,
    merge,
    mutation,
    neighbours,
    own_weights,
    padding,
    pattern,
    peek,
    received_attention,
    rows,
    runs,
    save_load,
    shard,
    sharp,
    targets,
)
from kinformer.laws.support.findings import Unjudged
from kinformer.laws.support.layer_forms import forms
from kinformer.laws.support.subject import Subject, TrainingSubject
from kinformer.laws.support.verdicts import JudgedPart, laws, verdict
from kinformer.members.calm import calm
from kinformer.members.gpt import gpt
from kinformer.models.classifier import Classifier
from kinformer.models.lm import LM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.split import SplitHeads
from kinformer.nn.mechanisms.talking_heads import MixHeads
from kinformer.nn.patterns.band import Band
from kinformer.nn.poolers.mean import MeanPooler
from kinformer.nn.projections.qkv import QKV
from tests.laws import spoiled


def toy(make: Callable[[], Any], **keywords: Any) -> Subject:
    return Subject(None, make, **keywords)


def mechanism(make: Callable[[], Mechanism], **keywords: Any) -> Subject:
    across = {"cross": True} if keywords.get("source") else {}
    return toy(lambda: Attention(QKV(16, 2), make(), **across), **keywords)


def trained(kind: type[LM]) -> TrainingSubject:
    def make() -> LM:
        return kind(8, 16, PreNorm(Attention(QKV(16, 2), Softmax(Causal()))))

    return TrainingSubject(make(), make)


def unmasked() -> LM:
    """A language model that has no state, because it reads what it should predict."""
    return LM(8, 16, PreNorm(Attention(QKV(16, 2), Softmax(Full()))))


def unnamed_reader() -> Stack:
    return Stack([spoiled.Hints(), spoiled.ReadsUnsaid()])


CAUGHT = [
    (runs, toy(unnamed_reader), "reads a name of ctx.below that its `wants` lacks (ReadsUnsaid: hint)"),
    (runs, toy(spoiled.SendsUnsaid), "SendsUnsaid passes 'hint' to the layers above, but its `sends` lacks this name"),
    (chunk, toy(spoiled.Forgets), "tokens in chunks of"),
    (chunk, toy(spoiled.NoCount), "state calls"),
    (chunk, toy(spoiled.Pays), "build a cache that it does not need"),
    (chunk, toy(spoiled.Unhelpful), "does not say what to use instead"),
    (chunk, toy(spoiled.Grows), "start() must make it large enough"),
    (chunk, toy(spoiled.ChunkAux), "aux 'size'"),
    (chunk, mechanism(lambda: spoiled.Overwrites(Causal())), "tokens in chunks of"),
    (chunk, mechanism(lambda: spoiled.OwnMass(Causal())), "(the lse of mechanism)"),
    (chunk, mechanism(lambda: spoiled.MassAtOnce(Causal())), "only one of the two calls has it"),
    (peek, toy(spoiled.Peeks), "it has a state for decoding"),
    (peek, toy(spoiled.ChoosesByFuture), "changes the output"),
    (peek, toy(spoiled.PeeksInAux), "aux 'next'"),
    (peek, toy(unmasked, vocab=8), "it learns to predict the next token"),
    (peek, mechanism(spoiled.PicksByAll), "its pattern reaches 0 ahead, but "),
    (peek, toy(spoiled.Constant), "depends on none"),
    (peek, toy(spoiled.Blind), "depends on an earlier one"),
    (peek, mechanism(lambda: Softmax(Causal() & Band(2)), pattern=Causal()), "does not read"),
    (peek, mechanism(lambda: Softmax(Full()), pattern=Band(2)), "does not allow"),
    (gradients, toy(spoiled.CutsTheGraph), "give different gradients than one call"),
    (gradients, mechanism(lambda: spoiled.FlowsOn(Causal())), "but gradient_stops=~Segment"),
    (padding, toy(spoiled.Leaks), "padding"),
    (padding, toy(spoiled.LeaksGradient), "padding"),
    (padding, toy(spoiled.ByColumn), "padding left"),
    (padding, mechanism(spoiled.ByTheQueries, source="equal"), "padding of the source change the result"),
    (batch_mates, toy(spoiled.BatchMean), "batch of three than alone"),
    (batch_mates, toy(spoiled.BatchMeanInTraining), "batch of three than alone"),
    (dtype, toy(spoiled.Coarse), "relative error"),
    (dtype, toy(spoiled.Overflows), "in float16 are NaN or infinite"),
    (dtype, toy(spoiled.Widens), "gives an output in"),
    (dtype, toy(spoiled.Single), "an output in torch.float32 (two chunks)"),
    (autocast, toy(spoiled.Lowered), "the results: the relative error under autocast is"),
    (autocast, toy(spoiled.StopsLowered), "the gradient of x: the relative error under autocast is"),
    (autocast, toy(spoiled.ForgetsLowered), "(two chunks)"),
    (autocast, toy(spoiled.KeepsLittle), "the results: the relative error under autocast is"),
    (autocast, toy(spoiled.ReportsLowered), "aux 'size': the relative error under autocast is"),
    (autocast, trained(spoiled.LearnsLowered), "under autocast is"),
    (save_load, toy(spoiled.Unsaved), "saving and loading"),
    (any_length, toy(spoiled.Even), "a call with 1 tokens fails"),
    (any_length, toy(spoiled.LastToken), "a row without tokens"),
    (mutation, toy(spoiled.Counts), "train mode changes calls"),
    (mutation, toy(spoiled.Hoards), "changes .last"),
    (mutation, toy(spoiled.InPlace), "inputs"),
    (mutation, toy(spoiled.WritesBelow), "ctx.below"),
    (mutation, toy(spoiled.WritesAux), "mapping aux"),
    (mutation, toy(spoiled.StatsInEval), "needs only in train mode"),
    (mutation, toy(spoiled.AttachedStats), "detach them"),
    (rows, toy(spoiled.Sticky), "a reset row"),
    (rows, toy(spoiled.Sideways), "the first dimension must be the batch"),
    (rows, toy(spoiled.Shares), "continue differently from the original rows"),
    (rows, toy(spoiled.WritesWhatABranchShares), "a state continues differently after a call with its branch"),
    (empty_rows, mechanism(spoiled.Naive), "Naive"),
    (empty_rows, mechanism(spoiled.Uniform), "instead of 0"),
    (empty_rows, mechanism(spoiled.NaNGradient), "the gradient of"),
    (
        groups,
        spoiled.IgnoresGroups(Causal()),
        "4 query heads that share 2 key heads give a different result than copied",
    ),
    (heads, spoiled.Temperatures(), "a part made for 2 heads accepts 1 query head with 1 key head"),
    (heads, spoiled.Broadcasts(), "6 query heads with 6 key heads give RuntimeError: "),
    (merge, spoiled.Naive(), "Naive returns no lse, so its outputs cannot merge; return AttentionOutput(y, lse)"),
    (derivative, toy(spoiled.Detached), "in eval mode, the gradient along a direction of inside.weight is"),
    (derivative, toy(spoiled.DropsOthers), "in train mode, with dropout, the gradient along"),
    (dropout, toy(spoiled.DropsAlways), "with dropout 0.5, eval mode gives a different result"),
    (dropout, toy(spoiled.DropsNever), "with dropout 0.5 in DropsNever, train mode gives the same result"),
    (dtype, toy(spoiled.Blurred), "(far apart)"),
    (dtype, toy(spoiled.Mean), "an output in torch.float32 (two chunks, a state in float32)"),
    (save_load, toy(spoiled.CountsSteps), "is different after saving, loading and one more after_step"),
    (
        batch_mates,
        toy(spoiled.MeanStats),
        "the stats 'seen' of three rows of 2 tokens differ from the sum over the single rows",
    ),
    (
        batch_mates,
        trained(spoiled.CountsRows),
        "the count of three rows of 2 tokens differs from the sum over the single rows",
    ),
    (shard, trained(spoiled.SumsRows), "2 tokens at once train differently from one row and two rows (the loss)"),
    (shard, trained(spoiled.CountsRows), "two rows (the count)"),
    (padding, toy(spoiled.PaddedStats), "with more padding right, the stats 'seen' are different"),
    (padding, trained(spoiled.CountsPadding), "tokens give a different loss with more padding right"),
    (
        chunk,
        mechanism(lambda: spoiled.Oblivious(Causal())),
        "with ctx.remember up to columns (1, 1) leave a different state",
    ),
    (chunk, toy(spoiled.ForgetsAtWork), "2 tokens in chunks of [1, 1]"),
    (chunk, trained(spoiled.Judges), "a measure of 3 tokens differs from the sum over two pieces that share token 1"),
    (limits, mechanism(lambda: spoiled.Unlimited(Causal())), "which ctx.only=Document(...) excludes"),
    (
        limits,
        spoiled.CountsFromZero(Softmax(Full()), Softmax(Full())),
        "head 1 (of heads numbered from 1) gives a different result",
    ),
    (
        runs,
        toy(lambda: spoiled.FirstForLast(8, 16, spoiled.Mean()), vocab=8),
        "differ from the last column of all logits",
    ),
    (runs, toy(lambda: spoiled.TapsInputs([spoiled.Toy()])), "the tap '0' differs from the output of sublayer 0"),
    (
        neighbours,
        toy(spoiled.TakesAnothers),
        "in the same call after attention under (Causal() & Band(left=1, right=None))",
    ),
    (own_weights, toy(spoiled.OneProjection), "layers.0.projection.qkv.bias and layers.1.projection.qkv.bias are the"),
    (own_weights, toy(spoiled.OneMemory), "layers.0.inside.weight and layers.1.inside.weight are the same weight"),
    (own_weights, toy(spoiled.Again), "the layer inner is applied several times to a token in one call"),
    (own_weights, toy(spoiled.Again, shares={"outer": "a reason"}), "the layer inner is applied several times"),
    (own_weights, toy(spoiled.Toy, shares={"*.weight": "a reason"}), "shares= names '*.weight', but no layers"),
    (
        limits,
        toy(spoiled.ChoosesAcross),
        "a row of 2 tokens with two documents, changed tokens of one document change the other one",
    ),
    (peek, toy(spoiled.PeeksInTraining), "the columns after column 0 of 2 changes the output in train mode"),
    (dtype, toy(spoiled.SumsLowered), "expected at most 0.02 (a long row)"),
    (chunk, mechanism(lambda: spoiled.RoundsApart(Causal())), "tokens in chunks of "),
    (pattern, spoiled.Ending(torch.zeros(2, 64).long()), "live() fails at position 5000: IndexError"),
    (sharp, spoiled.Loose(3, -1, of="reach"), "queries read at most -1 ahead, but reach() says 0"),
    (sharp, spoiled.Loose(3, of="period"), "the allowed pairs repeat every 1 positions, but period() is 2"),
    (sharp, spoiled.Loose(3, of="live"), "no query at position 4 or later reads position 0, but live() keeps it"),
    (sharp, spoiled.Loose(3, of="capacity"), "3 slots are enough, but capacity(4) is 4"),
    (sharp, spoiled.Loose(3, of="some"), "no pair is read, but cover() says the opposite"),
    (sharp, spoiled.Loose(3, of="every"), "every pair is read, but cover() says the opposite"),
]


@pytest.mark.parametrize(
    ("law", "subject", "says"),
    CAUGHT,
    ids=[f"{law.__name__.rpartition('.')[2]}-{n}" for n, (law, _, _) in enumerate(CAUGHT)],
)
def test_a_law_catches(law: ModuleType, subject: Any, says: str) -> None:
    assert says in next(law.judge(subject))


def test_the_smallest_example_is_told() -> None:
    assert "2 tokens in chunks of [1, 1]" in next(chunk.judge(toy(spoiled.Forgets)))


def test_a_row_longer_than_told_may_not_fail() -> None:
    with pytest.raises(IndexError, match="longer than start was told"):
        list(chunk.judge(toy(spoiled.Ends)))
    assert verdict("chunk", chunk, JudgedPart("toy", spoiled.Ends)).end == "broken"


LAYER_LAWS = [runs, chunk, peek, gradients, padding, batch_mates, save_load, any_length, mutation, rows]
LAYER_LAWS += [autocast, derivative, neighbours, own_weights]


@pytest.mark.parametrize("law", LAYER_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("make", [spoiled.Toy, spoiled.Mean])
def test_a_right_layer_keeps_the_law(law: ModuleType, make: Any) -> None:
    assert list(law.judge(toy(make))) == []


# Where there is nothing to judge, a law says so -----------------------------------------------------------------------


@pytest.mark.parametrize("law", [chunk, gradients, rows], ids=lambda law: law.__name__)
def test_without_a_state_laws_of_states_say_so(law: ModuleType) -> None:
    with pytest.raises(Unjudged, match="no decoding state to test: Full.* reads up to inf positions ahead"):
        list(law.judge(mechanism(lambda: Softmax(Full()))))


def test_what_promises_nothing_is_not_said_to_keep_it() -> None:
    with pytest.raises(Unjudged, match="the part may read ahead: it has no decoding state"):
        list(peek.judge(mechanism(lambda: Softmax(Full()))))


def test_attention_that_no_weights_of_a_head_tell_is_not_said_to_be_summed() -> None:
    with pytest.raises(Unjudged, match="the output is not a weighted sum of the values of the same head"):
        list(received_attention.judge(spoiled.MixesHeads(Causal())))


def test_a_pattern_that_says_nothing_of_itself_is_not_said_to_be_sharp() -> None:
    with pytest.raises(Unjudged, match="the pattern declares no bounds .* of its own"):
        list(sharp.judge(spoiled.Silent(2)))


def test_gradients_that_a_memory_stops_are_not_judged_where_no_memory_is_read() -> None:
    """A layer without a state that names pairs without a gradient, and is in no attention that reads them."""
    with pytest.raises(Unjudged, match="no decoding state to test"):
        list(gradients.judge(toy(lambda: PreNorm(Attention(QKV(16, 2), spoiled.StopsAhead())))))


def test_a_nan_at_padding_that_reaches_a_weight_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = mechanism(lambda: Softmax(Causal()))
    assert list(padding.judge(subject)) == []
    monkeypatch.setattr(layer, "_zero_padding", lambda x, ctx: (x, ctx))
    message = next(padding.judge(subject))
    assert "NaN or infinite numbers at padding change the result (the gradient of projection.qkv.weight)" in message


def test_a_weight_called_place_is_no_place() -> None:
    assert verdict("groups", groups, JudgedPart("toy", lambda: spoiled.HasAPlace(Full()))).end == "holds"


@pytest.mark.parametrize("law", [peek, padding], ids=lambda law: law.__name__)
def test_what_rounding_leaves_of_two_terms_that_cancel_is_no_reading(law: ModuleType) -> None:
    assert list(law.judge(toy(spoiled.RoundsAhead))) == []


def test_where_annotations_are_checked_nothing_is_compiled() -> None:
    with pytest.raises(Unjudged, match="this process checks annotations at run time"):
        list(compiles.judge(toy(spoiled.Toy)))


# Ways of use that a part may refuse --------------------------------------------------------------------------------


def test_a_mechanism_is_judged_with_one_key_head_and_across_at_equal_and_other_lengths() -> None:
    uses = forms(Softmax(Full()), lambda: Softmax(Full()))
    tried = [(use.source, use.build().sizes.key_heads, use.tried) for use in uses]
    assert tried == [("", 2, False), ("", 1, True), ("other", 2, True), ("equal", 1, True)]


def test_the_two_planted_bugs_are_found_whatever_else_they_refuse() -> None:
    """Groups that are ignored, and keys told apart by the queries' positions: no example of theirs names these uses."""
    assert "share" in verdict("groups", groups, JudgedPart("toy", lambda: spoiled.IgnoresGroups(Full()))).text
    verdict_of = verdict("padding", padding, JudgedPart("toy", spoiled.ByTheQueries))
    assert verdict_of.end == "broken" and "padding of the source change the result" in verdict_of.text


def test_a_refusal_is_an_answer_and_is_told() -> None:
    verdict_of = verdict("runs", runs, JudgedPart("toy", spoiled.PicksByAll))
    assert verdict_of.end == "holds"
    assert [place for place, _ in verdict_of.unjudged] == [
        "cross-attention",
        "cross-attention, one key head, equal lengths",
    ]
    assert all("refused: reads its own row" in why for _, why in verdict_of.unjudged)


class Refuses(spoiled.Naive):
    """It cannot be used as its example uses it."""

    def forward(self, *arguments: Any) -> Out:
        raise ValueError("not today; use Softmax")


def test_the_plain_use_may_not_be_refused() -> None:
    verdict_of = verdict("runs", runs, JudgedPart("toy", Refuses))
    assert verdict_of.end == "broken" and "the law fails with an error: ValueError: not today" in verdict_of.text


# Breaks ---------------------------------------------------------------------------------------------------------------


def judged(example: Example) -> JudgedPart:
    return JudgedPart.from_example("toy", example)


def test_a_break_is_declared_for_one_example_and_one_law() -> None:
    peeks = Example(spoiled.Peeks, breaks={"peek": "it is what it is for"})
    assert verdict("peek", peek, judged(peeks)).end == "declared"
    assert verdict("padding", padding, judged(Example(spoiled.Toy))).end == "holds"
    assert verdict("peek", peek, judged(Example(spoiled.Peeks))).end == "broken"


def test_a_break_that_is_none_is_out_of_date() -> None:
    verdict_of = verdict("peek", peek, judged(Example(spoiled.Toy, breaks={"peek": "it did once"})))
    assert (
        verdict_of.end == "broken"
        and verdict_of.text == "breaks is out of date: the part keeps this law; remove 'peek' from breaks"
    )


def test_an_error_is_no_break() -> None:
    """Only what the law finds counts, not a ValueError on the way."""
    verdict_of = verdict("runs", runs, judged(Example(Refuses, breaks={"runs": "it refuses"})))
    assert verdict_of.end == "broken" and "the law fails with an error" in verdict_of.text


def test_a_break_where_the_law_does_not_speak_is_out_of_date() -> None:
    verdict_of = verdict("merge", merge, judged(Example(spoiled.Toy, breaks={"merge": "layers do not merge"})))
    assert verdict_of is not None and verdict_of.end == "broken"


def test_sharing_is_declared_by_name() -> None:
    shares = {"inner": "the same layer twice, by the paper"}
    assert verdict("own_weights", own_weights, judged(Example(spoiled.Again, shares=shares))).end == "holds"
    assert verdict("own_weights", own_weights, judged(Example(spoiled.Again))).end == "broken"
    assert verdict("own_weights", own_weights, judged(Example(spoiled.Toy, shares=shares))).end == "broken"


# States ---------------------------------------------------------------------------------------------------------------


def test_a_state_that_is_used_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laws fork a state before they hand it over a second time. Without the forks they break on a right layer."""
    subject = mechanism(lambda: Softmax(Causal()))
    assert list(rows.judge(subject)) == []
    monkeypatch.setattr(rows, "fork", lambda state: state)
    monkeypatch.setattr(rows, "leaves", lambda state: [])  # the law looks at shared memory first
    with pytest.raises(ValueError, match=r"this decoding state is spent: .* call kf\.fork\(state\)"):
        list(rows.judge(subject))


def test_a_state_that_is_not_widened_whole_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "widen_caches", lambda state, like: like)
    verdict_of = next(rows.judge(mechanism(lambda: Softmax(Causal()))))
    assert "a state with more slots continues differently from the original" in verdict_of


def test_what_layers_share_is_named_by_their_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks, and slots of caches, that are found again without the pattern that they are of."""
    nameless = lambda key: tuple(part for part in key if not isinstance(part, Pattern))  # noqa: E731
    honest = memo._name
    monkeypatch.setattr(memo, "_name", lambda key: honest(nameless(key)))
    messages = list(neighbours.judge(mechanism(lambda: Softmax(Causal()))))
    assert any("in the same call after attention under" in message for message in messages)
    assert any("in the same state with attention under" in message for message in messages)


def test_limits_that_are_kept_and_limits_that_are_refused() -> None:
    assert list(limits.judge(mechanism(lambda: Softmax(Causal())))) == []
    assert list(limits.judge(SplitHeads(Softmax(Full()), Softmax(Causal())))) == []
    with pytest.raises(Unjudged, match="refused: reads its own row, without ctx.only"):
        list(limits.judge(mechanism(spoiled.PicksByAll)))


def test_dropout_of_a_right_layer_and_of_none() -> None:
    for law in (dropout, derivative):
        assert list(law.judge(toy(spoiled.Drops))) == []
    with pytest.raises(Unjudged, match="no module inside has dropout"):
        list(dropout.judge(toy(spoiled.Toy)))


# Penalties ------------------------------------------------------------------------------------------------------------


def reaching(name: str, params: Callable[[Any], Any], reaches_x: bool = False, **keywords: bool) -> Callable[[], Any]:
    def make() -> spoiled.Reaching:
        layer = spoiled.Reaching(16)
        layer.declared = {name: Penalty(tuple(params(layer)), reaches_x, **keywords)}
        return layer

    return make


PENALTIES = [
    (reaching("weight", lambda m: m.up.parameters()), "none for ['up.bias'], which it declares"),
    (reaching("weight", lambda m: [m.down.weight]), "gradients for ['up.weight'], which it does not declare"),
    (reaching("weight", lambda m: []), "gradients for ['up.weight'], which it does not declare"),
    (
        reaching("weight", lambda m: [m.up.weight], True),
        "has no gradient through x, but is declared with reaches_x=True",
    ),
    (reaching("hidden", lambda m: m.up.parameters()), "has a gradient through x, but is declared with reaches_x=False"),
    (reaching("still", lambda m: []), "has no gradient for any parameter"),
    (
        reaching("weight", lambda m: [m.up.weight], alone=True),
        "the output has gradients for parameters that a penalty with alone=True",
    ),
    (reaching("spn", lambda m: []), "declares the penalty 'spn', but reports 'hidden', 'still', 'weight'"),
]


@pytest.mark.parametrize(("make", "says"), PENALTIES)
def test_targets_are_exact(make: Callable[[], Any], says: str) -> None:
    assert says in next(targets.judge(toy(make)))


def test_targets_that_are_right() -> None:
    assert list(targets.judge(toy(reaching("weight", lambda m: [m.up.weight])))) == []
    assert list(targets.judge(toy(reaching("hidden", lambda m: m.up.parameters(), True)))) == []
    with pytest.raises(Unjudged, match="no module inside declares a penalty"):
        list(targets.judge(toy(spoiled.Toy)))


def test_penalties_of_an_encoder_are_judged_in_the_loss() -> None:
    def messages_of(kind: type[Seq2Seq]) -> list[str]:
        def make() -> Seq2Seq:
            return kind(8, 16, spoiled.Sized(16), MLP(16))

        return list(targets.judge(TrainingSubject(make(), make)))

    assert messages_of(Seq2Seq) == []
    assert messages_of(spoiled.ForgetsItsEncoder) == ["it declares the penalty 'size', but reports 'nll'"]


# Frozen weights and wider reads -----------------------------------------------------------------------------------


def frozen_layer() -> spoiled.Toy:
    layer = spoiled.Toy()
    layer.inside.weight.requires_grad_(False)
    return layer


def frozen_model() -> LM:
    model = LM(8, 16, PreNorm(Attention(QKV(16, 2), Softmax(Causal()))))
    model.embedding.requires_grad_(False)
    return model


def test_frozen_weights_break_no_law() -> None:
    for law in (padding, autocast, gradients, derivative):
        assert list(law.judge(toy(frozen_layer))) == []
    for law in (padding, autocast, shard):
        assert list(law.judge(TrainingSubject(frozen_model(), frozen_model))) == []
    assert list(empty_rows.judge(toy(frozen_model, vocab=8))) == []


def test_an_lse_is_of_the_heads_that_read() -> None:
    """Talking heads may end in other heads than those of the queries."""

    def layer(wrong: bool) -> Attention:
        read = (spoiled.FewLse if wrong else Explicit)(Causal(), before=MixHeads(2, 4))
        return Attention(QKV(16, 2, value_heads=4), read, aggregation=OutProjection(4, 8, 16))

    assert list(runs.judge(toy(lambda: layer(False)))) == []
    assert "it must give [3, 4, 2] for lse" in next(runs.judge(toy(lambda: layer(True))))


class Widens(spoiled.Toy):
    """Its attention reads the own token by its pattern, and all others by ctx.also."""

    def __init__(self, pattern: Pattern) -> None:
        super().__init__()
        self.attention, self.also = Attention(QKV(16, 2), Softmax(Band(0))), pattern

    def start(self, batch: int, length: int, *, dtype: Any = None, device: Any = None) -> State:
        raise NoState("it reads ahead; use Attention alone")

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return self.attention(x, None, ctx.replace(also=self.also))


def test_a_pattern_that_is_widened_promises_nothing() -> None:
    with pytest.raises(Unjudged, match="the part may read ahead: it has no decoding state"):
        list(peek.judge(toy(lambda: Widens(Full()))))


def test_a_member_with_a_value_for_each_layer_is_not_built_with_one_layer() -> None:
    model = gpt(d=16, depth=2, heads=2, length=32, vocab=8, pattern=("Causal() & Band(2)", "Causal()"))
    with pytest.raises(Unjudged, match="a tiny model of one layer is refused: pattern="):
        list(learns.judge(model))


def test_a_member_whose_layers_are_frozen_learns_nothing() -> None:
    model = calm(d=16, depth=2, heads=2, length=32, vocab=8, confidence="probe", frozen=True)
    with pytest.raises(Unjudged, match="its weights are frozen, so it cannot learn"):
        list(learns.judge(model))


class AllColumns(MeanPooler):
    """The mean over all columns, padding among them."""

    def forward(self, y: Tensor, real: Tensor) -> Tensor:
        return y.mean(1)


def test_padding_of_rows_that_have_a_label_is_judged() -> None:
    def classifier(pooling: MeanPooler) -> Classifier:
        return Classifier(11, 16, PreNorm(Attention(QKV(16, 2), Softmax(Full()))), pooling=pooling)

    right, wrong = (
        TrainingSubject(classifier(kind()), lambda kind=kind: classifier(kind())) for kind in (MeanPooler, AllColumns)
    )
    assert list(padding.judge(right)) == []
    assert "tokens give a different loss with more padding right" in next(padding.judge(wrong))


# From below -----------------------------------------------------------------------------------------------------------


class WantsHint(spoiled.ReadsUnsaid):
    """It says what it reads."""

    wants = (Want("hint"),)


def test_a_reader_above_its_sender_runs_and_one_without_is_refused_or_not_judged() -> None:
    assert list(runs.judge(toy(lambda: Stack([spoiled.Hints(), WantsHint()])))) == []
    assert verdict("runs", runs, JudgedPart("toy", WantsHint)).end == "nothing"
    LM(8, 16, Stack([spoiled.Hints(), WantsHint()]))
    for wired_wrong in ([WantsHint()], [WantsHint(), spoiled.Hints()], [spoiled.Toy(), WantsHint()]):
        with pytest.raises(ValueError, match="needs 'hint' from an earlier block, but no earlier block sends it"):
            LM(8, 16, Stack(wired_wrong))


# Learning -------------------------------------------------------------------------------------------------------------


def tiny() -> Any:
    return gpt(d=16, depth=1, heads=2, length=32, vocab=8)


def test_a_member_that_cannot_learn_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learns, "STEPS", 20)
    message = next(learns.judge(tiny()))
    assert message.startswith(
        "the model does not learn to copy from 6 tokens back, which every token may read: accuracy 0."
    )
    assert "after 20 steps, expected at least 0.95" in message


def test_a_member_that_copies_without_reading_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = learns.copy_at_distance
    monkeypatch.setattr(learns, "copy_at_distance", lambda *a: (tokens := honest(*a)[0], tokens))
    message = next(learns.judge(tiny()))
    assert "although each token may read only itself" in message and "expected at most 0.60" in message


# The rest -------------------------------------------------------------------------------------------------------------


def test_save_load_sees_a_tie_that_came_apart() -> None:
    class Tied(spoiled.Toy):
        def __init__(self) -> None:
            super().__init__()
            self.outside = torch.nn.Linear(16, 16)
            if not seeds:
                self.outside.weight = self.inside.weight
            seeds.append(1)

        def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
            return Out(self.outside(self.inside(x)), state)

    seeds: list[int] = []
    assert "shared by" in next(save_load.judge(toy(Tied)))


def test_every_law_says_what_is_true_and_over_what() -> None:
    for name, law in laws().items():
        assert law.SAYS and law.SAYS[0].islower() and not law.SAYS.endswith("."), name
        assert law.OVER and callable(law.judge), name


def test_a_law_file_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from kinformer.laws.support import verdicts as judging

    monkeypatch.setattr(judging, "modules", lambda kind: {"half": ModuleType("half")})
    with pytest.raises(ImportError, match="the law 'half' has no SAYS and no OVER and no judge"):
        laws()

"""Conversions of BERT to Longformer, BigBird, ETC, Poolingformer and Predictive Attention."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from tests.parity.peers import agree, shaken

LENGTH, VOCAB = 32, 13
TINY: dict[str, Any] = {"d": 16, "depth": 3, "heads": 2, "length": LENGTH, "vocab": VOCAB, "hidden": 24, "eps": 1e-5}
RECIPES = ("longformer", "bigbird", "etc", "poolingformer", "predictive_attention")
LONG = ("longformer", "bigbird", "etc", "poolingformer")  # with a longer table of positions


def random_weights(model: Any, seed: int = 0) -> Any:
    """Give every weight, also of biases and norms, a random number, in float64."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=rng))
    return model.double().eval()


def tiny_bert(**keywords: Any) -> Any:
    return random_weights(kf.bert(**{**TINY, "mask": 3, **keywords}))


def tokens_of(length: int, padded: bool = True, rows: int = 4, vocab: int = VOCAB) -> Tensor:
    """Rows of tokens; with padding behind one row, before another, and all over a third one except one token."""
    tokens = torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(length))
    if padded and length > 2:
        tokens[1, length - length // 3 :] = -1
        tokens[2, : length // 4] = -1
        tokens[3, 1:] = -1
    return tokens


def difference(a: Any, b: Any, length: int, **read: Any) -> float:
    """The largest difference of logits at real tokens, relative to the largest logit."""
    tokens = tokens_of(length)
    real = tokens >= 0
    with torch.no_grad():
        y, z = a.logits(tokens, **read).y[real], b.logits(tokens, **read).y[real]
    return float((y - z).abs().max() / y.abs().max())


def check_promise(source: Any, converted: Any, beyond: int = LENGTH) -> None:
    """Rows up to the promised length have equal outputs, and rows of one more token have others."""
    promise = converted.report.plan.promise
    last = int(min(promise.length, beyond))
    for length in sorted(length for length in {1, 2, 3, last // 2, last - 1, last} if 1 <= length <= last):
        assert difference(source, converted, length) < 1e-13, length
    if last < beyond:
        assert difference(source, converted, last + 1) > 1e-8, promise


@pytest.mark.parametrize(
    ("options", "promised"),
    [
        ({}, LENGTH),
        ({"marked": 2}, LENGTH),
        ({"window": 6}, 7),
        ({"window": 6, "marked": 3}, 10),
        ({"window": 0}, 1),
        ({"window": (31, 5, 9)}, 6),
    ],
)
def test_longformer_equals_bert_in_rows_that_fit_its_window(options: dict[str, Any], promised: int) -> None:
    source = tiny_bert()
    converted = kf.convert(source, "longformer", **options)
    assert converted.report.plan.promise.length == promised
    check_promise(source, converted)


def test_global_tokens_of_a_converted_longformer_read_as_bert_does() -> None:
    source = tiny_bert()
    whole = kf.convert(source, "longformer")
    for length in (5, LENGTH):
        tokens = tokens_of(length)
        mask = torch.randint(2, tokens.shape, generator=torch.Generator().manual_seed(1)).bool()
        ctx = kf.Context.of_sequence(torch.zeros(*tokens.shape, 1), tokens >= 0)
        real = tokens >= 0
        got = whole.logits(tokens, ctx=ctx.replace(also=kf.Marked(mask))).y[real]
        agree(got, source.logits(tokens).y[real])


@pytest.mark.parametrize(
    ("options", "promised"),
    [
        ({}, LENGTH),
        ({"full_up_to": 0}, 28),
        ({"full_up_to": 0, "draw": "row"}, 28),
        ({"full_up_to": 0, "draw": "published", "keys": 1}, 16),
        ({"full_up_to": 0, "keys": 0, "window": 2, "block": 3}, 15),
        ({"full_up_to": 9, "keys": 1, "block": 1, "window": 0}, 9),
        ({"draw": "first", "keys": 1, "block": 3}, 21),
        ({"draw": "first", "full_up_to": 0}, 8),
    ],
)
def test_bigbird_equals_bert_in_rows_that_its_blocks_cover(options: dict[str, Any], promised: int) -> None:
    source = tiny_bert()
    converted = kf.convert(source, "bigbird", **options)
    assert converted.report.plan.promise.length == promised
    check_promise(source, converted)


@pytest.mark.parametrize("pool", ["mean", "max", "dynamic"])
def test_poolingformer_equals_bert_in_rows_that_fit_its_window(pool: str) -> None:
    source = tiny_bert()
    whole = kf.convert(source, "poolingformer", pool=pool)
    assert whole.report.plan.promise.length == LENGTH
    check_promise(source, whole)
    near = kf.convert(source, "poolingformer", near=5, far=9, kernel=3, stride=2, pool=pool)
    assert near.report.plan.promise.length == 6
    check_promise(source, near)


@pytest.mark.parametrize("options", [{}, {"scores": "evolving"}, {"alpha": 0.3, "size": 5}, {"alpha": 1.0}])
def test_predictive_attention_starts_equal_at_every_length(options: dict[str, Any]) -> None:
    source = tiny_bert()
    converted = kf.convert(source, "predictive_attention", **options)
    assert converted.report.plan.promise.length == math.inf
    check_promise(source, converted)


def test_scores_of_the_block_below_change_evolving_attention_at_once() -> None:
    source = tiny_bert()
    converted = kf.convert(source, "predictive_attention", scores="evolving", alpha=0.25)
    assert converted.report.plan.promise.length == 1
    check_promise(source, converted)


def naive_bert(model: Any, tokens: Tensor, add: Any = None) -> Tensor:
    """BERT's hidden states of one row without padding, by its equations; `add` returns scores to add in a block."""
    w = model.state_dict()
    x = w["embedding.weight"][tokens] + w["position.table.weight"][: len(tokens)] + w["kind.weight"][0]
    x = F.layer_norm(x, x.shape[-1:], w["norm.weight"], w["norm.bias"], model.norm.eps)
    heads, below = model.member.keywords["heads"], None
    for n in range(model.member.keywords["depth"]):
        block = f"body.layers.{n}."

        def linear(x: Tensor, name: str, block: str = block) -> Tensor:
            return x @ w[f"{block}{name}.weight"].T + w[f"{block}{name}.bias"]

        def norm(x: Tensor, name: str, block: str = block) -> Tensor:
            return F.layer_norm(x, x.shape[-1:], w[f"{block}{name}.weight"], w[f"{block}{name}.bias"], model.norm.eps)

        q, k, v = (
            part.unflatten(-1, (heads, -1)).movedim(1, 0)
            for part in linear(x, "layers.0.projection.qkv").chunk(3, dim=-1)
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores if below is None or add is None else scores + add(n, below)
        below = scores
        y = (scores.softmax(-1) @ v).movedim(0, 1).flatten(1)
        x = norm(x + linear(y, "layers.0.aggregation.linear"), "norms.0")
        x = norm(x + linear(F.gelu(linear(x, "layers.1.up")), "layers.1.down"), "norms.1")
    return x


def test_trained_kernels_add_the_convolved_scores_of_the_block_below() -> None:
    source = tiny_bert()
    agree(source.hidden(tokens_of(9)[:1]).y[0], naive_bert(source, tokens_of(9)[0]))
    converted = kf.convert(source, "predictive_attention", alpha=0.3, slope=0.2)
    kernels = [block.layers[0].mechanism.convolution.conv for block in converted.body.layers[1:]]
    for seed, kernel in enumerate(kernels):
        random_weights(kernel, seed)

    def add(n: int, below: Tensor) -> Tensor:
        kernel = kernels[n - 1]
        return 0.7 * F.leaky_relu(F.conv2d(below[None], kernel.weight, kernel.bias, padding=1)[0], 0.2)

    tokens = tokens_of(9)[0]
    agree(converted.hidden(tokens[None]).y[0], naive_bert(source, tokens, add))
    assert difference(source, converted, 9) > 1e-3


@pytest.mark.parametrize("recipe", ["predictive_attention", "poolingformer", "etc"])
def test_parts_that_start_as_nothing_are_trained(recipe: str) -> None:
    converted = kf.convert(tiny_bert(), recipe).train()
    converted(tokens_of(16), progress=0.0).total.backward()
    for name, parameter in converted.named_parameters():
        if "convolution" in name or name.endswith(("far.projection.qkv.bias", "gate")):
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("options", "promised"), [({}, LENGTH), ({"radius": 5, "tokens": 3}, 6), ({"start": 4}, LENGTH)]
)
def test_etc_equals_bert_in_rows_that_fit_its_window_while_gates_are_closed(
    options: dict[str, Any], promised: int
) -> None:
    source = tiny_bert()
    converted = kf.convert(source, "etc", **options)
    assert converted.report.plan.promise.length == promised
    check_promise(source, converted)


def test_etc_with_open_gates_is_bert_with_a_start_token_for_each_part_of_the_text() -> None:
    """With open gates and relations at 0, a global token is one more token at position 0 in the row of BERT."""
    stop, space, start, vocab = 46, 32, 5, 64
    source = tiny_bert(vocab=vocab, kinds=2)
    converted = kf.convert(source, "etc", radius=12, tokens=4, start=start)
    for name, gate in converted.named_parameters():
        if name.endswith("gate"):
            nn.init.constant_(gate, 30.0)  # tanh of it is 1
    for parts in (1, 2, 3):
        tokens = torch.randint(7, 30, (2, 13))
        for n in range(parts - 1):
            tokens[:, 3 * n + 2], tokens[:, 3 * n + 3] = stop, space
        longer = torch.cat([torch.full((2, parts), start), tokens], 1)
        ctx = kf.Context.of_sequence(torch.zeros(*longer.shape, 1))
        positions = torch.cat([torch.zeros(parts, dtype=torch.long), torch.arange(13)])
        x = source.embedding(longer) + source.position.table(positions) + source.kind.weight[0]
        want = source.head(source.transform(source.body(source.norm(x), None, ctx).y))[:, parts:, :vocab]
        agree(converted.logits(tokens).y, want)
    tokens = torch.randint(7, 30, (2, 14))  # one token more than the window holds
    longer = torch.cat([torch.full((2, 1), start), tokens], 1)
    x = source.embedding(longer) + source.kind.weight[0]
    x = x + source.position.table(torch.cat([torch.zeros(1, dtype=torch.long), torch.arange(14)]))
    ctx = kf.Context.of_sequence(torch.zeros(2, 15, 1))
    want = source.head(source.transform(source.body(source.norm(x), None, ctx).y))[:, 1:, :vocab]
    assert (converted.logits(tokens).y - want).abs().max() > 1e-8


def test_padding_changes_nothing_in_a_converted_etc() -> None:
    converted = kf.convert(tiny_bert(), "etc", radius=3, tokens=2)
    tokens = tokens_of(11)
    for row, padded in zip(tokens, converted.logits(tokens).y, strict=True):
        agree(padded[row >= 0], converted.logits(row[row >= 0][None]).y[0])


def test_the_start_of_global_tokens_comes_from_the_option_or_the_mean_of_all_tokens() -> None:
    source = tiny_bert(mask=None)  # the library's own mask token is no token of the text
    w = source.state_dict()
    for start, vector in ((7, w["embedding.weight"][7]), (None, w["embedding.weight"][:VOCAB].mean(0))):
        x = vector + w["position.table.weight"][0] + w["kind.weight"][0]
        want = F.layer_norm(x, (16,), w["norm.weight"], w["norm.bias"], 1e-5)
        agree(kf.convert(source, "etc", start=start).body.node, want)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("keywords", [{}, {"kinds": 0, "hidden": 40, "mask": None}, {"head_dim": 8, "dropout": 0.1}])
def test_every_recipe_keeps_the_form_of_its_source(recipe: str, keywords: dict[str, Any], tmp_path: Path) -> None:
    source = tiny_bert(**keywords)
    converted = kf.convert(source, recipe)
    check_promise(source, converted)
    assert converted.mask == source.mask and converted.head.weight is converted.embedding.weight
    kf.save(converted, tmp_path / "model")
    loaded = kf.load(tmp_path / "model")
    assert loaded.member == converted.member
    for name, tensor in converted.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    tokens = tokens_of(LENGTH)
    assert torch.equal(loaded.logits(tokens).y, converted.logits(tokens).y)


@pytest.mark.parametrize("recipe", LONG)
def test_longer_rows_read_copies_of_the_whole_table_of_positions(recipe: str) -> None:
    source = tiny_bert()
    source.trained_length, source.trained_on = LENGTH, None
    converted = kf.convert(source, recipe, length=3 * LENGTH + 5)
    table, old = converted.position.table.weight, source.position.table.weight
    for at in range(3 * LENGTH + 5):
        assert torch.equal(table[at], old[at % LENGTH])
    assert converted.longest == converted.window == 3 * LENGTH + 5 and source.window == LENGTH
    tokens = tokens_of(3 * LENGTH + 5)
    y = converted.logits(tokens).y
    assert y[tokens >= 0].isfinite().all()
    assert kf.convert(source, recipe).longest == 8 * LENGTH


def test_predictive_attention_takes_a_longer_table_on_demand() -> None:
    source = tiny_bert()
    converted = kf.convert(source, "predictive_attention", length=40)
    assert converted.report.plan.promise.length == LENGTH and converted.longest == 40
    check_promise(source, converted)
    tokens = torch.randint(VOCAB, (1, 40))
    source.position.table = nn.Embedding.from_pretrained(torch.cat([source.position.table.weight] * 2))
    agree(converted.logits(tokens).y, source.logits(tokens).y)


def test_only_positions_that_were_trained_are_copied() -> None:
    source = tiny_bert()
    source.trained_length, source.trained_on = 10, "text"
    converted = kf.convert(source, "longformer")
    assert converted.longest == converted.window == 80 and converted.report.plan.options["window"] == 10
    assert torch.equal(converted.position.table.weight[30:40], source.position.table.weight[:10])
    assert converted.report.plan.promise.length == 10
    for length in range(1, 11):
        assert difference(source, converted, length) < 1e-13


def published(kind: str, tmp_path: Path, **keys: Any) -> Any:
    """A random model of transformers of type `kind`, saved in a folder."""
    sizes = {"vocab_size": 19, "max_position_embeddings": 34, "initializer_range": 0.3, **keys}
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    own = ("dim", "n_layers", "n_heads", "hidden_dim") if kind == "distilbert" else names
    sizes |= dict(zip(own, (24, 2, 4, 40), strict=True))
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model: Any = shaken(transformers.AutoModelForMaskedLM.from_config(config).double().eval())
    model.save_pretrained(tmp_path)
    return model


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_converted_models_of_transformers_equal_their_source(kind: str, recipe: str, tmp_path: Path) -> None:
    theirs = published(kind, tmp_path)
    converted = kf.convert(kf.load(tmp_path), recipe)
    known = 32 if kind == "roberta" else 34
    for length in (1, 17, known):
        tokens = tokens_of(length, vocab=19).where(tokens_of(length, vocab=19) != 1, 2)  # 1 is RoBERTa's padding
        real = tokens >= 0
        for row in tokens:  # row by row: the ids of positions of RoBERTa follow from padding
            row = row[row >= 0][None]
            agree(converted.logits(row).y, theirs(input_ids=row).logits)
        got = converted.logits(tokens).y
        for row, mask, y in zip(tokens, real, got, strict=True):
            agree(y[mask], theirs(input_ids=row[mask][None]).logits[0])


def test_a_converted_roberta_equals_the_longformer_of_transformers_with_copied_weights(tmp_path: Path) -> None:
    """Their weights are copied here as in the notebook of the Longformer's authors, without this library."""
    roberta = published("roberta", tmp_path / "roberta", type_vocab_size=1)
    keys = roberta.config.to_dict()
    sizes = {name: keys[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    sizes |= {name: keys[name] for name in ("intermediate_size", "layer_norm_eps", "type_vocab_size")}
    config = transformers.LongformerConfig(**sizes, max_position_embeddings=2 + 96, attention_window=[8, 16])
    longformer: Any = transformers.LongformerForMaskedLM(config).double().eval()
    weights = {name.replace("roberta.", "longformer."): x for name, x in roberta.state_dict().items()}
    for name in list(weights):
        if ".attention.self." in name:
            weights[
                name.replace("query", "query_global").replace("key", "key_global").replace("value", "value_global")
            ] = weights[name]
    table = weights.pop(positions := "longformer.embeddings.position_embeddings.weight")
    weights[positions] = torch.cat([table[:2], table[2:], table[2:], table[2:]])
    weights = {name: x for name, x in weights.items() if not name.endswith(("position_ids", "token_type_ids"))}
    loading_info = longformer.load_state_dict(weights, strict=False)
    assert not loading_info.unexpected_keys and not [n for n in loading_info.missing_keys if not n.endswith("_ids")]
    converted = kf.convert(kf.load(tmp_path / "roberta"), "longformer", window=(4, 8), length=96)
    tokens = torch.randint(2, 19, (2, 96))
    agree(converted.logits(tokens).y, longformer(input_ids=tokens).logits, 1e-6)  # their softmax is in float32
    marks = torch.zeros(2, 96, dtype=torch.long)
    marks[0, :3] = marks[1, 50:53] = 1
    ctx = kf.Context.of_sequence(torch.zeros(2, 96, 1)).replace(also=kf.Marked(marks.bool()))
    want = longformer(input_ids=tokens, global_attention_mask=marks).logits
    agree(converted.logits(tokens, ctx=ctx).y, want, 1e-6)


@pytest.mark.parametrize(
    ("recipe", "options", "architecture"),
    [
        ("longformer", {"window": 8}, transformers.LongformerForMaskedLM),
        ("bigbird", {"draw": "first", "block": 3, "keys": 1}, transformers.BigBirdForMaskedLM),
    ],
)
def test_converted_models_are_written_for_transformers(
    recipe: str, options: dict[str, Any], architecture: Any, tmp_path: Path
) -> None:
    kind = "roberta" if recipe == "longformer" else "bert"
    published(kind, tmp_path / "source", type_vocab_size=1)
    converted = kf.convert(kf.load(tmp_path / "source"), recipe, **options)
    kf.save(converted, tmp_path / "converted", format="hf")
    theirs = architecture.from_pretrained(tmp_path / "converted", dtype=torch.float64).eval()
    tokens = torch.randint(2, 19, (2, 96))
    agree(converted.logits(tokens).y, theirs(input_ids=tokens).logits, 1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_report_measures_source_and_conversion_on_rows_of_the_same_length(recipe: str, tmp_path: Path) -> None:
    source = random_weights(kf.bert(**{**TINY, "vocab": 256}))
    source.trained_length, source.trained_on = LENGTH, "text"
    (tmp_path / "text.txt").write_text("A short text of many lines.\n" * 400)
    report = kf.convert(source, recipe, data=f"text={tmp_path / 'text.txt'}").report
    assert report.before == pytest.approx(report.after, rel=1e-12) and report.before > 1


def test_no_decoding_is_measured_for_encoders() -> None:
    assert kf.convert(tiny_bert(), "longformer", seconds=1.0).report.costs == {}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda: kf.gpt(d=16, depth=2, heads=2, length=32), "starts from a bert: got a gpt. Load a BERT"),
        (
            lambda: kf.bert(d=16, depth=2, heads=2, position="sinusoidal"),
            "got position='sinusoidal', expected 'learned'",
        ),
        (lambda: kf.bert(**TINY, norm="pre"), "got norm='pre', expected 'post'"),
        (lambda: kf.bert(**TINY, pattern="Band(3)"), r"got pattern='Band\(3\)', expected 'Full\(\)'"),
        (lambda: kf.bert(**TINY, drawn=2), "got drawn=2, expected 0"),
        (lambda: kf.bert(**TINY, segments="line"), "got segments='line', expected None"),
        (lambda: kf.convert(kf.bert(**TINY), "poolingformer"), "got a bert that another conversion has changed"),
    ],
)
def test_other_sources_are_refused_in_one_line(recipe: str, source: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        kf.convert(source(), recipe)
    assert "\n" not in str(error.value) and recipe in str(error.value)


@pytest.mark.parametrize(
    ("recipe", "options", "words"),
    [
        ("longformer", {"window": 300}, "window=300 is larger than length=256. Give a window of at most 256"),
        ("longformer", {"window": (3, 300, 3)}, "window=300 is larger than length=256"),
        ("longformer", {"window": -1}, "window=-1"),
        ("longformer", {"window": (3, 4)}, "window"),
        ("longformer", {"marked": -1}, "marked=-1"),
        ("longformer", {"length": 20}, "length=20 is shorter than the rows of 32 tokens that the source reads"),
        ("bigbird", {"length": 20}, "length=20 is shorter than the rows of 32 tokens"),
        ("bigbird", {"block": 257}, "block=257 is larger than length=256"),
        ("bigbird", {"block": 0}, "block=0"),
        ("etc", {"radius": 257}, "radius=257 is larger than length=256"),
        ("etc", {"start": 13}, "start=13"),
        ("etc", {"tokens": 0}, "tokens=0"),
        ("poolingformer", {"near": 257}, "near=257 is larger than length=256"),
        ("poolingformer", {"far": 257}, "far=257 is larger than length=256"),
        ("poolingformer", {"far": 1, "kernel": 5}, "a kernel of 5 keys does not fit into window=1"),
        ("predictive_attention", {"size": 2}, "size=2 is even"),
        ("predictive_attention", {"alpha": 0.0}, "alpha=0.0 does not fit scores='predictive'. Give a number above 0"),
        ("predictive_attention", {"scores": "evolving", "alpha": 1.0}, "alpha=1.0 does not fit scores='evolving'"),
        ("predictive_attention", {"scores": "evolving", "beta": 1.0}, "beta=1.0 does not fit scores='evolving'"),
        ("predictive_attention", {"length": 31}, "length=31 is shorter than the rows of 32 tokens"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(recipe: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        kf.convert(tiny_bert(), recipe, **options)
    assert "\n" not in str(error.value)


def test_sources_of_another_size_are_refused_where_they_do_not_fit() -> None:
    with pytest.raises(ValueError, match="needs a block below another: got a bert of depth 1"):
        kf.convert(tiny_bert(depth=1), "predictive_attention")
    with pytest.raises(ValueError, match="head_dim=6 does not fit: the second level reads the heads of the first"):
        kf.convert(tiny_bert(head_dim=6), "poolingformer")
    assert kf.convert(tiny_bert(head_dim=6), "longformer").report.plan.promise.length == LENGTH

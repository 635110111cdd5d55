"""The call of models with `input_ids`, and `generate`, against the classes of transformers with equal weights."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from transformers import modeling_outputs

import kinformer as kf
from kinformer.decoding.fill_blanks import fill_blanks
from tests.parity.peers import shaken

VOCAB, LENGTH = 19, 9
SIZES = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("AutoModelForCausalLM", {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32}),
    "llama": (
        "AutoModelForCausalLM",
        {**SIZES, "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 32},
    ),
    "bloom": ("AutoModelForCausalLM", {"vocab_size": VOCAB, "hidden_size": 24, "n_layer": 3, "n_head": 4}),
    "bert": ("AutoModelForMaskedLM", {**SIZES, "intermediate_size": 40, "max_position_embeddings": 32}),
}
CLOSE = {"rtol": 0, "atol": 2e-5}


@pytest.fixture(params=CONFIGS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """The peer and our model of the same folder."""
    auto, keywords = CONFIGS[request.param]
    config = transformers.AutoConfig.for_model(request.param, attn_implementation="eager", **keywords)
    peer = shaken(getattr(transformers, auto).from_config(config)).eval()
    peer.save_pretrained(tmp_path)
    return peer, kf.load(tmp_path)


def rows() -> tuple[Tensor, Tensor]:
    """Token ids, and a mask with padding on the right."""
    ids = torch.randint(VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    return ids, mask


def test_output_hidden_states_attentions_and_loss_are_those_of_transformers(pair: tuple[Any, Any]) -> None:
    peer, model = pair
    ids, mask = rows()
    labels = ids.masked_fill(mask == 0, -100)
    labels[1, 2] = -100
    keywords = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    if model.reads == "masked":
        keywords["token_type_ids"] = (torch.arange(LENGTH) > 3).long().expand_as(ids)
    theirs = peer(**keywords, output_hidden_states=True, output_attentions=True)
    ours = model(**keywords, output_hidden_states=True, output_attentions=True)
    kind = modeling_outputs.MaskedLMOutput if model.reads == "masked" else modeling_outputs.CausalLMOutputWithPast
    assert isinstance(ours, kind)
    real = mask.bool()
    torch.testing.assert_close(ours.loss, theirs.loss, **CLOSE)
    torch.testing.assert_close(ours.logits[real], theirs.logits[real], **CLOSE)
    assert len(ours.hidden_states) == len(theirs.hidden_states) == 4
    for own, other in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(own[real], other[real], **CLOSE)
    torch.testing.assert_close(ours.last_hidden_state, ours.hidden_states[-1], rtol=0, atol=0)
    assert len(ours.attentions) == len(theirs.attentions) == 3
    for own, other in zip(ours.attentions, theirs.attentions, strict=True):
        torch.testing.assert_close(_at(own, real), _at(other, real), **CLOSE)


def _at(attention: Tensor, real: Tensor) -> Tensor:
    """The weights of the queries that are real tokens."""
    return attention.transpose(1, 2)[real]


def test_loss_trains(pair: tuple[Any, Any]) -> None:
    peer, model = pair
    ids, _ = rows()
    peer(input_ids=ids, labels=ids).loss.backward()
    model.train()(input_ids=ids, labels=ids).loss.backward()
    ours, theirs = model.embedding.weight.grad, peer.get_input_embeddings().weight.grad
    torch.testing.assert_close(ours[1:], theirs[1:], **CLOSE)  # BERT's lookup gives token 0, its padding, no gradient


def test_a_cache_continues_a_row(pair: tuple[Any, Any]) -> None:
    _, model = pair
    if model.reads == "masked":
        return
    ids, _ = rows()
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    whole = model(ids, attention_mask=mask).logits
    first = model(ids[:, :5], attention_mask=mask[:, :5], use_cache=True)
    rest = model(ids[:, 5:], attention_mask=mask, past_key_values=first.past_key_values, use_cache=True)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1)[1:], whole[1:], **CLOSE)
    torch.testing.assert_close(rest.logits[0], whole[0, 5:], **CLOSE)
    assert model(input_ids=ids).past_key_values is None


def test_greedy_text_is_that_of_transformers(pair: tuple[Any, Any]) -> None:
    peer, model = pair
    if model.reads == "masked":
        with pytest.raises(AttributeError, match="only a model that predicts the next token writes text"):
            model.generate()
        return
    ids, mask = rows()
    mask = mask.flip(1)  # padding on the left
    theirs = peer.generate(input_ids=ids, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=12).tolist() == theirs.tolist()
    end = theirs[1, LENGTH + 3].item()  # a token that ends some rows
    options = {"max_length": LENGTH + 12, "eos_token_id": end, "pad_token_id": 2}
    theirs = peer.generate(input_ids=ids, attention_mask=mask, do_sample=False, **options)
    ours = model.generate(input_ids=ids, attention_mask=mask, **options)
    assert ours.tolist() == theirs.tolist()
    every = theirs[:, LENGTH].tolist()  # all rows end at once
    options = {"max_new_tokens": 12, "eos_token_id": every, "pad_token_id": 2}
    theirs = peer.generate(input_ids=ids, attention_mask=mask, do_sample=False, **options)
    assert model.generate(input_ids=ids, attention_mask=mask, **options).tolist() == theirs.tolist()


def test_an_encoder_decoder_and_a_classifier() -> None:
    torch.manual_seed(0)
    ids, mask = rows()
    model = kf.transformer(vocab=VOCAB, d=16, depth=2, heads=2).eval()
    labels = torch.randint(VOCAB, (3, 5))
    labels[1, 3:] = -100
    out = model(input_ids=ids, attention_mask=mask, labels=labels, output_hidden_states=True, output_attentions=True)
    assert isinstance(out, modeling_outputs.Seq2SeqLMOutput)
    read = torch.cat([torch.full((3, 1), model.begin), labels[:, :-1].masked_fill(labels[:, :-1] < 0, -1)], 1)
    y = model.logits(read, source=ids.masked_fill(mask == 0, -1)).y
    nll = -y.log_softmax(-1).gather(-1, labels.clamp_min(0)[..., None])[..., 0][labels >= 0].mean()
    torch.testing.assert_close(out.loss, nll)
    assert [len(part) for part in (out.encoder_hidden_states, out.decoder_hidden_states)] == [3, 3]
    assert out.encoder_attentions[1].shape == (3, 2, 9, 9) and out.decoder_attentions[1].shape == (3, 2, 5, 5)
    sums = torch.stack(out.encoder_attentions).sum(-1)
    torch.testing.assert_close(sums, mask[None, :, None].expand_as(sums).float())
    texts = model.generate(ids, mask, max_new_tokens=4)
    assert texts[:, 0].tolist() == [model.begin] * 3 and texts.shape[1] <= 5

    classifier = kf.bert_classifier(vocab=VOCAB, d=16, depth=1, heads=2, length=32).eval()
    out = classifier(input_ids=ids, attention_mask=mask, labels=torch.tensor([0, 1, 1]), output_attentions=True)
    assert isinstance(out, modeling_outputs.SequenceClassifierOutput)
    scores = classifier.scores(ids.masked_fill(mask == 0, -1))
    torch.testing.assert_close(out.logits, scores)
    torch.testing.assert_close(out.loss, -scores.log_softmax(-1)[torch.arange(3), [0, 1, 1]].mean())


def test_padding_changes_no_loss_and_labels_may_have_gaps() -> None:
    torch.manual_seed(0)
    ids, _ = rows()
    model = kf.gpt(vocab=VOCAB, d=16, depth=1, heads=2).eval()
    alone = model(input_ids=ids[:1, 3:], labels=ids[:1, 3:]).loss
    mask = (torch.arange(LENGTH) >= 3).long()[None]
    torch.testing.assert_close(model(ids[:1], attention_mask=mask, labels=ids[:1]).loss, alone)
    low = model.to(torch.bfloat16)(input_ids=ids, labels=ids)
    assert low.logits.dtype == torch.bfloat16 and low.loss.dtype == torch.float32
    pairs = kf.transformer(vocab=VOCAB, d=16, depth=1, heads=2).eval()
    labels = ids[:, :5].clone()
    labels[0, 1] = -100
    read = torch.cat([torch.full((3, 1), pairs.begin), labels[:, :-1].masked_fill(labels[:, :-1] < 0, pairs.begin)], 1)
    y = pairs.logits(read, source=ids).y
    nll = -y.log_softmax(-1).gather(-1, labels.clamp_min(0)[..., None])[..., 0][labels >= 0].mean()
    torch.testing.assert_close(pairs(input_ids=ids, labels=labels).loss, nll)


def test_threads_and_empty_rows_get_their_own_states() -> None:
    torch.manual_seed(0)
    model = kf.gpt(vocab=VOCAB, d=16, depth=2, heads=2).eval()
    texts = torch.randint(VOCAB, (8, 1, 6))
    expected = [model(input_ids=text).last_hidden_state for text in texts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            outs = list(pool.map(lambda text: model(input_ids=text, output_hidden_states=True), texts))
            assert all(len(out.hidden_states) == 3 for out in outs)
            assert all(torch.equal(out.last_hidden_state, own) for out, own in zip(outs, expected, strict=True))
    ids, mask = rows()
    mask[2] = 0
    for other in (model, kf.bert(vocab=VOCAB, d=16, depth=1, heads=2, length=32).eval()):
        weights = other(input_ids=ids, attention_mask=mask, output_attentions=True).attentions[0]
        assert not weights[2].any() and bool(weights[1].any())


def test_rows_end_at_the_given_ids_or_at_those_of_the_tokenizer() -> None:
    torch.manual_seed(0)
    ids = rows()[0][:1]
    model = kf.gpt(vocab=VOCAB, d=16, depth=1, heads=2).eval()
    free = model.generate(ids, max_new_tokens=9)[0, LENGTH:].tolist()
    default, given, *_ = dict.fromkeys(free)  # the row has the default end before the given one
    model.foreign_ends = (default,)
    assert model.generate(ids, max_new_tokens=9)[0, LENGTH:].tolist() == [default]
    ended = model.generate(ids, max_new_tokens=9, eos_token_id=[given, -1], pad_token_id=1)[0, LENGTH:].tolist()
    assert ended == free[: free.index(given) + 1]


def test_lists_and_mappings_are_padded_and_no_result_has_minus_one() -> None:
    torch.manual_seed(0)
    model = kf.gpt(vocab=VOCAB, d=16, depth=1, heads=2).eval()
    lists = [[3, 4, 5], [6]]
    padded, mask = torch.tensor([[3, 4, 5], [7, 7, 6]]), torch.tensor([[1, 1, 1], [0, 0, 1]])
    expected = model.generate(padded, mask, max_new_tokens=4).tolist()
    assert model.generate(lists, max_new_tokens=4, pad_token_id=7).tolist() == expected
    assert model.generate({"input_ids": padded, "attention_mask": mask}, max_new_tokens=4).tolist() == expected
    end = expected[0][4]
    ended = model.generate(padded, mask, max_new_tokens=4, eos_token_id=[-1, end]).tolist()
    assert ended[0] == expected[0][:5] + [end] * (len(ended[1]) - 5) and len(ended[1]) > 5


def test_samples_come_from_the_50_likeliest_tokens_by_default() -> None:
    torch.manual_seed(0)
    model, ids = kf.gpt(vocab=90, d=16, depth=1, heads=2).eval(), torch.tensor([[1, 2, 3]])
    options = {"do_sample": True, "max_new_tokens": 40, "seed": 1}
    drawn = {top_k: model.generate(ids, top_k=top_k, **options).tolist() for top_k in (None, 0, 50)}
    assert drawn[None] == drawn[50] == kf.generate(model, ids, 40, temperature=1.0, top_k=50, seed=1).tolist()
    assert drawn[0] == kf.generate(model, ids, 40, temperature=1.0, seed=1).tolist() != drawn[50]


def test_a_model_without_a_head_returns_states(tmp_path: Path) -> None:
    config = transformers.BertConfig(**CONFIGS["bert"][1])
    peer = shaken(transformers.BertModel(config)).eval()
    peer.save_pretrained(tmp_path / "theirs")
    with pytest.warns(UserWarning, match="the weights have no head"):
        model = kf.load(tmp_path / "theirs")
    kf.save(model, tmp_path / "ours")
    ids, mask = rows()
    for own in (model, kf.load(tmp_path / "ours")):
        out = own(input_ids=ids, attention_mask=mask)
        assert isinstance(out, modeling_outputs.BaseModelOutput)
        torch.testing.assert_close(out[0][mask == 1], peer(ids, attention_mask=mask)[0][mask == 1], **CLOSE)
        with pytest.raises(ValueError, match="there is no loss: the weights of this model have no head"):
            own(input_ids=ids, labels=ids)
        with pytest.raises(ValueError, match="this model cannot fill gaps: its weights have no head"):
            fill_blanks(own, torch.tensor([1, own.mask, 2]))


@pytest.mark.parametrize("left", [0, 4])
def test_global_tokens_of_a_longformer(left: int, tmp_path: Path) -> None:
    sizes = {**SIZES, "intermediate_size": 40, "max_position_embeddings": 34, "attention_window": 4, "pad_token_id": 1}
    peer = shaken(transformers.LongformerForMaskedLM(transformers.LongformerConfig(**sizes))).eval()
    peer.save_pretrained(tmp_path)
    model = kf.load(tmp_path)
    ids = torch.randint(2, VOCAB, (2, 12), generator=torch.Generator().manual_seed(2))
    marks = torch.zeros_like(ids)
    marks[0, [0, 7]] = marks[1, 3] = 1
    theirs = peer(ids, global_attention_mask=marks).logits
    padded = {name: F.pad(x, (left, 0)) for name, x in (("input_ids", ids), ("global_attention_mask", marks))}
    ours = model(**padded, attention_mask=F.pad(torch.ones_like(ids), (left, 0))).logits[:, left:]
    torch.testing.assert_close(ours, theirs, **CLOSE)
    assert not torch.allclose(ours, model(input_ids=ids).logits, rtol=0, atol=1e-3)
    with pytest.raises(ValueError, match="global_attention_mask needs a masked model such as longformer, got gpt"):
        kf.gpt(vocab=VOCAB, d=8, depth=1, heads=2)(ids, global_attention_mask=marks)


def test_samples_beams_and_what_has_no_weights() -> None:
    torch.manual_seed(0)
    ids, _ = rows()
    model = kf.gpt(vocab=VOCAB, d=16, depth=1, heads=2).eval()
    drawn = model.generate(ids[:2], do_sample=True, num_return_sequences=2, max_new_tokens=3, top_k=5, seed=4)
    expected = kf.generate(model, ids[:2].repeat_interleave(2, 0), 3, temperature=1.0, top_k=5, seed=4)
    assert drawn.tolist() == expected.tolist()
    assert model.generate(ids, num_beams=3, max_new_tokens=3).tolist() == kf.generate(model, ids, 3, beam=3).tolist()
    with pytest.warns(UserWarning, match="1 of 1 attention layers have no weights; body.layers.0.layers.0: Linear"):
        out = kf.linear_transformer(vocab=VOCAB, d=16, depth=1, heads=2)(input_ids=ids, output_attentions=True)
    assert out.attentions == (None,)
    assert [type(part) for part in model(ids, labels=ids, return_dict=False)] == [Tensor] * 3
    for message, call in {
        "LM has no keyword 'position_ids'; positions follow from attention_mask": lambda: model(ids, position_ids=ids),
        "labels have shape .3, 4., but the tokens have .3, 9.": lambda: model(ids, labels=ids[:, :4]),
        "got input_ids, but it reads series": lambda: kf.informer()(input_ids=ids),
        "got 3 arguments without a name, expected input_ids and attention_mask": lambda: model(ids, ids, ids, labels=1),
        "num_return_sequences=2 needs as many rows: got num_beams=1 without": lambda: model.generate(
            ids, num_return_sequences=2
        ),
        "generate got no input_ids. Give token ids": lambda: model.generate(max_new_tokens=3),
        "max_length=2 leaves no room: the prompt has 9 tokens": lambda: model.generate(ids, max_length=2),
        "do_sample=True has no effect with num_beams=2": lambda: model.generate(ids, do_sample=True, num_beams=2),
        "got input_ids twice: without a name and as a keyword": lambda: model(ids, input_ids=ids),
        "attention_mask has shape .3, 11., but": lambda: model(ids, attention_mask=torch.ones(3, 11)),
        "labels have torch.float32 and shape .3.": lambda: kf.bert_classifier(d=8, depth=1, heads=2)(
            ids, labels=torch.rand(3)
        ),
        "temperature=0.5 has no effect with do_sample=False. Pass do_sample=True, or leave": lambda: model.generate(
            ids, temperature=0.5
        ),
        "generate has no keyword 'no_repeat_ngram_size'": lambda: model.generate(ids, no_repeat_ngram_size=2),
    }.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()

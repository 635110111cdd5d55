"""Compiled decoding: the tokens and log-probabilities of uncompiled decoding, by one graph for a row of any length."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

import kinformer as kf
from kinformer.core.discover import part_files
from kinformer.core.mechanism import NoState
from kinformer.core.model import Writer
from kinformer.decoding import compiled_steps
from kinformer.decoding.compiled_steps import EAGER, CompiledSteps, StepTimes, round_length
from kinformer.decoding.generate import generate
from tests.decoding.writers import FORMS, writer
from tests.discovered import discovered_in
from tests.laws.cases import PROVE
from tests.unhooked import unhooked

STEPS = EAGER + 6
SAMPLED = ("gpt", "compressive_transformer", "linear_transformer", "topk_transformer")
EXACT = 1e-9  # of log-probabilities in float64
# their operations need the number of used slots as a constant, so a second graph reads all slots
TWO_GRAPHS = {"predictive_attention", "routing_transformer", "sac", "topk_transformer"}


def written(model: Any, prompt: Any, steps: int, **keywords: Any) -> list[Any]:
    """The rows, and the log-probabilities of the new tokens."""
    likely: list[list[float]] = []
    rows = generate(
        model, prompt, steps, temperature=0, on_tokens=lambda _, lines: likely.append(lines.tolist()), **keywords
    )
    return [rows.tolist(), likely]


def compiled_and_not(model: Any, prompt: Any, steps: int, **keywords: Any) -> list[Any]:
    """What a model writes uncompiled and compiled, and the number of graphs; or the line in which it refuses."""
    compiled_steps.BACKEND = "eager"  # the graph is captured, and run without generating code
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    free = written(model, prompt, steps, **keywords)
    try:
        graph = written(model, prompt, steps, compile=True, **keywords)
    except ValueError as error:
        return [free, str(error), 0]
    return [free, graph, torch._dynamo.utils.counters["stats"]["unique_graphs"]]


def members() -> list[list[Any]]:
    """What `each_member` yields, as JSON needs it."""
    return list(each_member())


def each_member() -> Iterator[list[Any]]:
    """For each member that writes text and has a state: its name, and what `compiled_and_not` returns."""
    torch.set_default_dtype(torch.float64)
    for file in part_files("members"):
        if not PROVE and file not in SAMPLED:
            continue
        case = next(iter(discovered_in("members", file)))
        model = case.make()
        if not isinstance(model, Writer):
            continue
        try:
            model.start(1, 1)
        except NoState:
            continue
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:  # larger weights, so that no likeliest token is near another
                    weight.normal_(std=0.4)
        half = torch.randint(2, 5, (2, 4))
        inputs: dict[str, Any] = {"source": half} if model.reads == "pairs" else {}
        yield [file, *compiled_and_not(model, None if inputs else half, STEPS, stop=-1, **inputs)]


def test_members_decode_compiled_as_they_do_uncompiled_with_one_graph() -> None:
    results = unhooked(f"{__name__}:{members.__name__}")
    assert len(results) >= (40 if PROVE else len(SAMPLED))
    for file, free, graph, graphs in results:
        if isinstance(graph, str):
            assert "cannot decode compiled: got " in graph and "\n" not in graph, file
            continue
        assert graph[0] == free[0] and graphs == 1 + (file in TWO_GRAPHS), file
        torch.testing.assert_close(torch.tensor(graph[1]), torch.tensor(free[1]), rtol=0, atol=EXACT)
    refused = [file for file, _, graph, _ in results if isinstance(graph, str)]
    assert len(refused) <= len(results) / 10, refused


def rows_of_all_kinds() -> list[list[Any]]:
    """Padded prompts that stop, a full table of positions, memories and a beam."""
    torch.set_default_dtype(torch.float64)
    warnings.filterwarnings("ignore", message=".*positions that this model has learned")
    padded = [[-1, -1, 4, 1], [3, 1, 2, 5]]
    cases: list[tuple[str, dict[str, Any]]] = [
        ("rotary", {"stop": 2}),
        ("learned", {"stop": -1}),
        ("memory", {"stop": -1}),
        ("rotary", {"stop": -1, "beam": 3}),
    ]
    return [
        [form, *compiled_and_not(writer(form), padded, 14, **keywords)]
        for form, keywords in (cases if PROVE else cases[:2])
    ]


def test_padding_stops_full_tables_and_beams_are_those_of_uncompiled_decoding() -> None:
    for form, free, graph, _ in unhooked(f"{__name__}:{rows_of_all_kinds.__name__}"):
        assert graph[0] == free[0], form
        torch.testing.assert_close(torch.tensor(graph[1]), torch.tensor(free[1]), rtol=0, atol=EXACT)


def later_calls() -> list[int]:
    """Numbers of graphs after each of several calls, with the same steps and with new ones."""
    compiled_steps.BACKEND = "eager"
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, graphs = writer("rotary"), []
    steps = CompiledSteps(model)
    for prompt, count, compiled in (([1, 2], 9, steps), ([3, 1, 4], 30, steps), ([2], 9, True)):
        generate(model, prompt, count, temperature=0, stop=-1, compile=compiled)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert steps.times is not None and min(steps.times) > 0
    return graphs


def test_later_calls_use_the_graph_again_if_their_rows_are_of_similar_length() -> None:
    assert unhooked(f"{__name__}:{later_calls.__name__}") == [1, 1, 1]


def in_one_process() -> list[bool]:
    """Whether compiled decoding is that of uncompiled decoding: other heads, streams in turn, and a later hook."""
    compiled_steps.BACKEND = "eager"
    torch.set_default_dtype(torch.float64)
    torch._dynamo.reset()
    sizes: dict[str, Any] = {"d": 16, "depth": 2, "vocab": 11, "length": 300}
    equal = []
    for heads in (2, 4):
        model = kf.gpt(heads=heads, **sizes)
        steps = CompiledSteps(model)
        for prompt in ([3, 1, 4], [2]):  # layers share positions in the cache of a longer prompt
            free = generate(model, prompt, 12, temperature=0, stop=-1)
            equal.append(torch.equal(generate(model, prompt, 12, temperature=0, stop=-1, compile=steps), free))
    streams = [kf.stream(model, [1, 2], count, temperature=0, stop=-1, compile=steps) for count in (140, 60)]
    texts: list[list[int]] = [[], []]
    for _ in range(140):
        for text, stream in zip(texts, streams, strict=True):
            text.extend(int(token) for token in [next(stream, None)] if token is not None)
    for text, count in zip(texts, (140, 60), strict=True):
        equal.append(text == generate(model, [1, 2], count, temperature=0, stop=-1)[0, 2:].tolist())
    model.head.register_forward_hook(lambda layer, inputs, y: -y)
    free = generate(model, [2], 12, temperature=0, stop=-1)
    equal.append(torch.equal(generate(model, [2], 12, temperature=0, stop=-1, compile=steps), free))
    return equal


def test_other_models_streams_in_turn_and_later_hooks_keep_the_tokens() -> None:
    assert unhooked(f"{__name__}:{in_one_process.__name__}") == [True] * 7


def test_lengths_are_rounded_up_to_the_next_power_of_two_above() -> None:
    assert [round_length(length) for length in (1, 127, 128, 255, 256, 1000)] == [128, 128, 256, 256, 512, 1024]


def test_the_break_even_point_is_the_compilation_over_the_time_saved_per_token() -> None:
    assert StepTimes(compilation=10.0, eager=0.003, compiled=0.001).break_even == pytest.approx(5000)
    assert StepTimes(compilation=10.0, eager=0.001, compiled=0.001).break_even == float("inf")


def test_compile_refuses_what_it_cannot_change() -> None:
    model = writer(next(iter(FORMS)))
    with pytest.raises(ValueError, match="recompute=True has no effect with compile=True"):
        kf.generate(model, [1], 3, temperature=0, recompute=True, compile=True)
    with pytest.raises(ValueError, match="prompt_lookup=3 has no effect with compile=True"):
        kf.generate(model, [1], 3, temperature=0, prompt_lookup=3, compile=True)
    with pytest.raises(ValueError, match="^compile= has the steps of another model"):
        kf.generate(model, [1], 3, compile=CompiledSteps(writer("rotary")))

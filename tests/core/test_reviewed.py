"""What a strict reading of the core found, each as a test."""

import dataclasses
import threading

import pytest
import torch

from kinformer.attention import Attention
from kinformer.core.choice import Choices, choice
from kinformer.core.pattern import Heads
from kinformer.execute import attend
from kinformer.mechanisms.explicit import Explicit
from kinformer.mechanisms.softmax import Softmax
from kinformer.memories.hidden import Hidden
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.segment import Segment
from kinformer.projections.qkv import QKV

READS = Causal() & Segment(4, 4)


def test_heads_are_rebuilt_as_any_dataclass() -> None:
    heads = Heads(Causal(), Causal() & Band(1))
    assert dataclasses.replace(heads) == heads


def test_a_memory_under_scores_of_whole_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="a memory cuts rows"):
        Attention(QKV(8, 2), Explicit(READS, up=True), memory=Hidden(4, 4))


def test_a_layer_with_a_memory_is_built_without_memory() -> None:
    with torch.device("meta"):
        layer = Attention(QKV(8, 2), Softmax(READS), memory=Hidden(4, 4))
    assert next(layer.parameters()).is_meta


def test_each_thread_reads_its_own_choices() -> None:
    found, turn = {}, threading.Barrier(2)

    def read(name: str, value: int) -> None:
        made = Choices()
        with made.writing():
            choice(lambda: torch.tensor(value))
        with made.reading():
            turn.wait()  # both tapes are open now
            found[name] = int(choice(lambda: torch.tensor(-1)))
            turn.wait()

    threads = [threading.Thread(target=read, args=one) for one in (("a", 1), ("b", 2))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == {"a": 1, "b": 2}


def test_a_product_beyond_float16_is_scaled_before_it_is_made() -> None:
    q = torch.full((1, 1, 2, 64), 40.0, dtype=torch.float16)
    assert attend(q, q, q).y.isfinite().all()

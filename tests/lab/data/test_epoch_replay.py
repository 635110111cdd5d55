"""EpochReplay: the batches of a step depend on the step, the seed and the loader, and on nothing else."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from kinformer.lab.data.support.epoch_replay import EpochReplay


def loader(rows: int = 10, **options: object) -> DataLoader:
    return DataLoader(TensorDataset(torch.arange(rows)), batch_size=3, **{"shuffle": True, **options})


def taken(replay: EpochReplay, *steps: int) -> list[list[int]]:
    return [replay(step)[0].tolist() for step in steps]


def test_each_epoch_has_every_row_once_in_an_order_of_its_own() -> None:
    batches = taken(EpochReplay(loader(), 0), *range(12))
    epochs = [sum(batches[first : first + 4], []) for first in (0, 4, 8)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs) and len({tuple(epoch) for epoch in epochs}) == 3


def test_a_step_gives_the_same_batch_whenever_it_is_asked() -> None:
    whole = taken(EpochReplay(loader(), 5), *range(14))
    replay = EpochReplay(loader(), 5)
    assert taken(replay, 0, 0, 1) == [whole[0], whole[0], whole[1]]
    torch.rand(7)
    assert taken(replay, 2, 13, 3) == [whole[2], whole[13], whole[3]]  # on, far on, and back
    assert taken(EpochReplay(loader(), 5), 9) == [whole[9]] != taken(EpochReplay(loader(), 6), 9)


def test_random_numbers_outside_are_left_alone() -> None:
    before, replay = torch.get_rng_state(), EpochReplay(loader(), 0)
    taken(replay, *range(6))
    assert torch.equal(before, torch.get_rng_state())


def test_only_the_epoch_of_a_step_is_read() -> None:
    class Counted(TensorDataset):
        count = 0

        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            Counted.count += 1
            return super().__getitem__(index)

    replay = EpochReplay(DataLoader(Counted(torch.arange(10)), batch_size=5), 0)
    assert taken(replay, 1_000_001) == [[5, 6, 7, 8, 9]] and Counted.count == 10


def test_an_object_without_a_length_is_iterated_again() -> None:
    class Endless:
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter([[torch.tensor([1])], [torch.tensor([2])]])

    assert taken(EpochReplay(Endless(), 0), *range(5), 2) == [[1], [2], [1], [2], [1], [1]]


@pytest.mark.parametrize("count", [3, 5, 7])
def test_a_loader_whose_length_is_wrong_gives_the_same_batches_after_a_resume(count: int) -> None:
    class Loader:
        def __len__(self) -> int:
            return 5

        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter([torch.tensor([n])] for n in range(count))

    whole = taken(EpochReplay(Loader(), 0), *range(16))
    assert whole == [taken(EpochReplay(Loader(), 0), step)[0] for step in range(16)]
    assert whole[:5] == [[n % count] for n in range(5)]


def test_a_loader_without_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="the loader of the training data has no batch"):
        EpochReplay(loader(2, drop_last=True), 0)(0)

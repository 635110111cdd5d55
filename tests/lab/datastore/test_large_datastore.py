"""A datastore that is larger than the memory in which it is searched."""

from pathlib import Path

import pytest

from tests.lab.data.test_array_cache import python

LARGE = """
import ctypes, resource, sys
from pathlib import Path
import numpy
import torch
from kinformer.lab.datastore.datastore import Datastore
from kinformer.lab.datastore.shards import digest
from kinformer.lab.datastore.manifest import DatastorePart, Manifest, keys_file, text_file
from kinformer.checkpoint.weights_file import format_weights
folder, keys, spare = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
generator, shards = torch.Generator().manual_seed(0), []
folder.mkdir()
asked, planted = torch.randn(32, 128, generator=generator), {}
for first in range(0, keys, 1 << 18):
    some = torch.randn(min(1 << 18, keys - first), 128, generator=generator).half()
    at = int(torch.randint(len(some), (), generator=generator))
    some[at] = (asked[len(shards) % 32] + 0.01 * len(shards)).half()  # further than all that was planted before
    planted.setdefault(len(shards) % 32, []).append(first + at)
    (folder / keys_file(0, len(shards))).write_bytes(format_weights({"keys": some}, {}))
    shards.append(len(some))
tokens = torch.arange(keys + 1, dtype=torch.int32) % 1000
(folder / text_file(0)).write_bytes(format_weights({"tokens": tokens, "begins": torch.zeros(1, dtype=torch.long)}, {}))
text = digest(tokens.numpy(), numpy.zeros(1))
part = DatastorePart("numbers", keys + 1, 1, 128, 64, text, tuple(shards))
Manifest("", "", "", "float16", 128, parts=(part,)).save(folder / "store.json")
del some, tokens
torch.randn(600, 600) @ torch.randn(600, 600)  # what a product takes once
ctypes.CDLL(None).malloc_trim(0)  # or what was freed before would count as used
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
limit = used + spare if spare > 0 else 1 << 30
assert used < limit, used
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
store = Datastore.open(folder)
found = store.search(asked, 16)
for row, places in planted.items():
    assert found.places[row, : len(places)].tolist() == places[:16], row
assert torch.equal(found.tokens, (found.places + 1) % 1000)
try:
    torch.empty(len(store), 128, dtype=torch.float16).fill_(0)
except (MemoryError, RuntimeError):
    print("the limit holds")
"""


def test_a_datastore_is_searched_within_less_memory_than_it_has(tmp_path: Path) -> None:
    """100,000 keys of 128 numbers are 25.6 megabytes; anonymous memory grows by less."""
    assert python(LARGE, str(tmp_path / "ds"), "100000", str(20 << 20)) == "the limit holds\n"


@pytest.mark.prove
def test_ten_million_keys_are_searched_within_one_gigabyte(tmp_path: Path) -> None:
    assert python(LARGE, str(tmp_path / "ds"), "10000000", "0") == "the limit holds\n"

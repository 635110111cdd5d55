import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kinformer.checkpoint.checkpoint import load, save
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from kinformer.checkpoint.weights_file import format_weights, read_tensors
from kinformer.core.discover import MemberRecord
from kinformer.members.gpt import gpt
from tests.lab.train import tiny


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(tiny.bigram(d=4), tmp_path)
    return tmp_path


def test_a_model_comes_back_with_its_ties(tmp_path: Path) -> None:
    model = tiny.bigram(d=4)
    model.seen += 7
    save(model, tmp_path / "new" / "folder")
    back = load(tmp_path / "new" / "folder", member=tiny.bigram)
    assert back.head.weight is back.embedding.weight and not back.training
    assert back.member.keywords == {"d": 4}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name])


def test_a_compiled_model_is_saved_under_the_names_of_the_model(tmp_path: Path) -> None:
    model = tiny.bigram(d=4)
    save(torch.compile(model, backend="eager"), tmp_path)
    assert torch.equal(load(tmp_path, member=tiny.bigram).head.weight, model.head.weight)
    with pytest.raises(TypeError, match=r"inside a DataParallel; save the model itself: model.module"):
        save(torch.nn.DataParallel(model), tmp_path)


def test_a_file_of_torch_says_how_to_load_it(tmp_path: Path) -> None:
    torch.save(tiny.bigram(d=4).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(NotADirectoryError, match=r"a model is a folder; a state_dict .* model.load_state_dict"):
        load(tmp_path / "weights.pt")


def test_a_tied_tensor_is_written_once_under_its_first_name(saved: Path) -> None:
    assert sorted(load_file(saved / "model.safetensors")) == ["embedding.weight", "mix.bias", "mix.weight", "seen"]


def test_the_config_says_how_to_build_it(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    assert config["member"] == "bigram" and config["keywords"] == {"d": 4} and config["tokenizer"] == "bytes"
    assert config["file"] == "tiny.py" and len(config["sha256"]) == 64


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    model = tiny.bigram(d=4).to(dtype)
    save(model, tmp_path)
    back = load(tmp_path, member=tiny.bigram)
    assert back.mix.weight.dtype == dtype and torch.equal(back.mix.weight, model.mix.weight)
    assert back.seen.dtype == torch.long


def test_loading_draws_no_number(saved: Path) -> None:
    state = torch.get_rng_state()
    load(saved, member=tiny.bigram)
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_without_a_record_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="only a model that a member function built"):
        save(tiny.Bigram(4), tmp_path)


def edit(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return change


def tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return rewrite


def cut(name: str, at: int | None) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:at])


def write_file(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data) and None


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (drop("config.json"), "it has no config.json"),
        (drop("model.safetensors"), "it has no model.safetensors"),
        (cut("config.json", 20), "config.json is truncated or not JSON"),
        (cut("config.json", 0), "config.json is truncated or not JSON"),
        (write_file("config.json", b"\xff\xfe"), "config.json is truncated or not JSON"),
        (write_file("config.json", b"[]"), "was not written by kinformer: it has no 'member'"),
        (write_file("config.json", b'{"model_type": "gpt2"}'), "holds a Hugging Face model (model_type 'gpt2'), which"),
        (cut("model.safetensors", -1), "model.safetensors is truncated or not a safetensors file"),
        (cut("model.safetensors", 5), "model.safetensors is truncated or not a safetensors file"),
        (cut("model.safetensors", 0), "model.safetensors is truncated or not a safetensors file"),
        (write_file("model.safetensors", b"\x80\x04\x95" + b"pickle" * 50), "is truncated or not a safetensors file"),
        (
            write_file("model.safetensors", (2).to_bytes(8, "little") + b"{}"),
            "lacks embedding.weight, mix.bias, mix.weight",
        ),
        (edit(keywords={"d": 8}), "belong to different models: their members or keywords differ"),
        (edit(member="lane"), "got 'bigram', expected 'lane'"),
        (edit(tokenizer="bpe"), "has an unknown tokenizer: got 'bpe', expected 'bytes'"),
        (edit(keywords=None), "was not written by kinformer: it has no 'keywords'"),
        (tensors(lambda t: t.pop("mix.bias")), "lacks mix.bias; it belongs to another model"),
        (tensors(lambda t: t.update(more=torch.zeros(1))), "has the unexpected more;"),
        (
            tensors(lambda t: t.update({"mix.bias": torch.zeros(3)})),
            "has wrong shapes: mix.bias is (3,), expected (4,);",
        ),
        (
            tensors(lambda t: [t.update({f"x{n}": torch.zeros(1)}) for n in range(9)]),
            "has the unexpected x0, x1, x2 and 6 more;",
        ),
    ],
)
def test_a_spoiled_folder_is_named_in_one_line(saved: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(saved)
    with pytest.raises((CheckpointError, FileNotFoundError)) as caught:
        load(saved, member=tiny.bigram)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_config_that_was_edited_names_the_keyword_and_the_copy_to_restore(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "best"):
        save(tiny.bigram(d=4), folder)
    edit(keywords={"d": 9})(tmp_path)
    with pytest.raises(CheckpointError, match="to different models: .* differ: got d=9, expected d=4. Copy ") as error:
        load(tmp_path, member=tiny.bigram)
    words = str(error.value).partition("Copy ")[2].split()
    (tmp_path / "config.json").write_bytes(Path(words[0]).read_bytes())
    assert words[2] == f"{tmp_path}/config.json," and load(tmp_path, member=tiny.bigram).member.keywords == {"d": 4}
    edit(keywords={"d": 9})(tmp_path)
    edit(keywords={"d": 9})(tmp_path / "best")
    with pytest.raises(CheckpointError, match="Restore the config.json that the training wrote, or train the model"):
        load(tmp_path, member=tiny.bigram)


def test_wrong_keywords_name_the_nearest(saved: Path) -> None:
    edit(keywords={"dd": 4})(saved)
    tensors(lambda weights: None)(saved)
    with pytest.raises(CheckpointError, match="has no keyword 'dd'; the nearest is 'd'"):
        load(saved, member=tiny.bigram)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        load(tmp_path / "none")


def test_a_bit_that_is_another_anywhere_changes_no_weight_unseen(saved: Path) -> None:
    path = saved / "model.safetensors"
    whole, size = path.read_bytes(), int.from_bytes(path.read_bytes()[:8], "little")
    rng, before = Random(0), load(saved, member=tiny.bigram).state_dict()
    for place in [8 + size, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(60))]:
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << rng.randrange(8)
        path.write_bytes(spoilt)
        try:
            weights = load(saved, member=tiny.bigram).state_dict()
        except CheckpointError as error:
            assert "\n" not in str(error) and (place < 8 + size or "is damaged" in str(error)), place
        else:  # of what is said of the numbers something may be gone, such as that there is a digest
            assert place < 8 + size and all(torch.equal(weights[name], before[name]) for name in before)
    path.write_bytes(whole)
    load(saved, member=tiny.bigram)


def test_weights_without_a_digest_are_taken_as_they_are_and_changed_ones_say_what_to_do(saved: Path) -> None:
    path = saved / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata_saved = file.metadata()
    changed = {name: tensor + 1 for name, tensor in load_file(path).items()}
    save_file(changed, path, metadata_saved)
    with pytest.raises(CheckpointError, match="is damaged.*changed on purpose, write it without 'sha256'"):
        load(saved, member=tiny.bigram)
    del metadata_saved["sha256"]
    for metadata in (metadata_saved, None):
        save_file(changed, path, metadata)
        loaded = load(saved, member=tiny.bigram).state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in changed.items())


def test_a_member_of_ones_own_must_be_given(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"built by 'bigram' of tiny.py: give load\(folder, member=bigram\)"):
        load(saved)
    with pytest.raises(CheckpointError, match="wrong member for the model in .*: got 'lane', expected 'bigram'"):
        load(saved, member=tiny.lane)


def test_a_changed_file_is_warned_of(saved: Path) -> None:
    edit(sha256="0" * 64)(saved)
    with pytest.warns(UserWarning, match=r"tiny.py has changed since the model in .* was saved"):
        load(saved, member=tiny.bigram)


def test_a_name_in_a_folder_never_runs_a_file(saved: Path) -> None:
    evil = saved / "evil.py"
    evil.write_text("raise SystemExit('code from a folder was run')")
    edit(member=f"{evil}:bigram", file=None)(saved)
    tensors(lambda weights: None)(saved)
    with pytest.raises(CheckpointError, match="but there is no member of this name"):
        load(saved)


def test_an_unknown_member_names_the_nearest(saved: Path) -> None:
    edit(member="gpd", file=None)(saved)
    with pytest.raises(CheckpointError, match="but there is no member of this name; the nearest is 'gpt'"):
        load(saved)


def test_tuples_come_back_as_tuples(tmp_path: Path) -> None:
    model = tiny.bigram(d=4)
    model.member = MemberRecord("bigram", {"d": (4, 5)})
    save(model, tmp_path)
    with pytest.raises(CheckpointError, match=r"must be int, got \(4, 5\)"):
        load(tmp_path, member=tiny.bigram)


SAVER = """
import sys
import torch
from tests.lab.train import tiny
from kinformer.checkpoint.checkpoint import save
model = tiny.bigram(d=512)
while True:
    with torch.no_grad():
        model.seen += 1
        model.mix.weight.fill_(int(model.seen))
    save(model, sys.argv[1])
    print("saved", flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", SAVER, str(tmp_path)],
        cwd=root,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    for round_ in range(3):
        process.stdout.readline()
        time.sleep(0.003 * round_)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    back = load(tmp_path, member=tiny.bigram)
    assert int(back.seen) >= 3 and (back.mix.weight == int(back.seen)).all()
    save(tiny.bigram(d=4), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_real_write_error_of_the_system_leaves_the_old_file(saved: Path) -> None:
    """The kernel refuses to let the file grow, as it does when a disk or a quota is full."""
    code = (
        "import resource, signal, sys\n"
        "from tests.lab.train import tiny\n"
        "from kinformer.checkpoint.checkpoint import save\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "try:\n    save(tiny.bigram(d=4), sys.argv[1])\nexcept OSError as error:\n    print(error)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved)], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("\n") == 1 and "File too large; the old content is unchanged" in done.stdout
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]
    load(saved, member=tiny.bigram)


def test_a_checkpoint_of_the_first_edition_is_refused_in_one_line(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    assert config.pop("format") == 2
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match="has another checkpoint format: got edition 1, expected edition 2. Train"
    ) as e:
        load(saved, member=tiny.bigram)
    assert "\n" not in str(e.value)
    (saved / "config.json").write_text(json.dumps(config | {"format": 3}))
    with pytest.raises(CheckpointError, match="has another checkpoint format: got edition 3"):
        load(saved, member=tiny.bigram)


@pytest.mark.parametrize(
    ("name", "value"),
    [("trained_length", "8"), ("trained_length", True), ("trained_length", 0), ("metric", []), ("metric", {"name": 1})],
)
def test_what_a_config_says_of_training_is_looked_at(tmp_path: Path, name: str, value: object) -> None:
    save(tiny.bigram(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {name: value}))
    with pytest.raises(CheckpointError, match=f"config.json is damaged: got {name}="):
        load(tmp_path, tiny.bigram)


SAVE_AND_TELL = """
import sys, hashlib, pathlib
from kinformer.members.gpt import gpt
from kinformer.checkpoint.checkpoint import save
import torch
torch.manual_seed(0)
save(gpt(d=16, depth=1, heads=2), sys.argv[1], step=3)
print(hashlib.sha256(pathlib.Path(sys.argv[1], "model.safetensors").read_bytes()).hexdigest())
"""


def test_equal_weights_are_equal_bytes_in_every_process(tmp_path: Path) -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SAVE_AND_TELL, tmp_path / seed],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] != ""
    metadata, tensors = {"step": "3", "format": "pt", "built": "é"}, {"b": torch.ones(3), "a": torch.zeros(2).int()}
    every = {
        format_weights(tensors, dict(order)) for order in (sorted(metadata.items()), sorted(metadata.items())[::-1])
    }
    assert len(every) == 1
    path = tmp_path / "one.safetensors"
    path.write_bytes(every.pop())
    back, told_back = read_tensors(path)
    assert told_back == metadata and all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_a_folder_of_models_names_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tiny.bigram(), tmp_path / name)
    with pytest.raises(FileNotFoundError, match=f"holds 2 runs: a, b; give {tmp_path}/a$"):
        load(tmp_path)


def test_a_run_without_a_finite_metric_is_not_called_the_best(tmp_path: Path) -> None:
    """a measured nothing but NaN, or damaged values; b is fine."""
    for name in ("a", "b"):
        save(tiny.bigram(), tmp_path / name)
    head = '{"metric": {"name": "bits", "better": "less"}}\n'
    (tmp_path / "b/metrics.jsonl").write_text(head + '{"valid": 2.0}\n')
    for damaged in ("NaN", "null", '"x"'):
        (tmp_path / "a/metrics.jsonl").write_text(f'{head}{{"valid": {damaged}}}\n')
        with pytest.raises(FileNotFoundError, match=f"holds 2 runs: a, b; give {tmp_path}/a$"):
            load(tmp_path)
    (tmp_path / "a/metrics.jsonl").write_text(f'{head}{{"valid": NaN}}\n{{"valid": 3.0}}\n')
    with pytest.raises(FileNotFoundError, match=f"give {tmp_path}/b, which has the best validation metric$"):
        load(tmp_path)


def test_a_subfolder_that_cannot_be_read_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    names = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder.name == "closed":
            raise PermissionError(13, "Permission denied", str(folder))
        return names(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path} is not a model: it has no config.json$"):
        load(tmp_path)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    model = gpt(d=8, depth=1, heads=2, vocab=257)
    model.tokenizer = train_tokenizer(["abab" * 9], 258)
    with pytest.raises(
        ValueError, match="its tokenizer has 258 tokens, expected at most vocab=257. Build it with vocab="
    ):
        save(model, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    model.member = replace(
        model.member, keywords={**model.member.keywords, "vocab": None}
    )  # as a user's own member may
    save(model, tmp_path / "run")

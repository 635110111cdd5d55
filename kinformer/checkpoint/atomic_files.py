"""Writing that a kill at any moment, or a full disk, cannot spoil: beside the old, to the disk, then in its place."""

import hashlib
import os
import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kinformer.core.missing_path import missing_path


def write(path: Path, data: bytes) -> None:
    """Replace a file in one step, or leave it as it is and raise OSError in one clear line."""
    write_together({path: data})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Replace files of a folder, the last one last, once all that is in them is on the disk; or none of them.

    Errors: OSError, in one clear line, where one cannot be written.
    """
    partial = {path: path.with_name(f".{path.name}.partial") for path in files}
    path = next(iter(files))
    try:
        for path, data in files.items():
            _write_synced(partial[path], data)
        for path, written in partial.items():
            os.replace(written, path)
        sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            for written in partial.values():
                written.unlink(missing_ok=True)
        raise _write_error(path, len(files[path]), error) from error


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder of these files, whole or not at all; one of that name is replaced. OSError in one clear line."""
    partial, new = path.with_name(f".{path.name}.partial"), not path.parent.exists()
    try:
        remove(partial)
        partial.mkdir(parents=True)
        for name, data in files.items():
            _write_synced(partial / name, data)
        sync(partial)
        remove(path)
        os.replace(partial, path)
        sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            remove(partial)
            if new:
                path.parent.rmdir()
        raise _write_error(path, sum(map(len, files.values())), error) from error


def crc32(path: Path, size: int = -1) -> int:
    """The CRC-32 of a file, or of its first bytes; OSError, in one line, if it cannot be read."""
    return zlib.crc32(contents(path, size=size))


def remove(path: Path) -> None:
    """Take away a file, or a folder with all that it holds, where there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """See the names of a folder to the disk, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_error(path: Path, size: int, error: OSError) -> OSError:
    outcome = "what was there before is unchanged" if path.exists() else "nothing was written"
    return OSError(f"cannot write {path} ({size:,} bytes): {error.strerror}; {outcome}")


def existing_path(place: str, advice: str) -> Path:
    """The path of what is there. FileNotFoundError, with advice, for what is not, and for a device without an end."""
    path = Path(place).expanduser()
    if not path.exists() or path.is_char_device() or path.is_block_device():
        raise FileNotFoundError(missing_path(place, advice))
    return path


def contents(path: Path, advice: str = "", *, size: int = -1) -> bytes:
    """All bytes of a file, or its first `size`; OSError, in one line that ends with the advice, if it is unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror}{advice}") from error


def digest(data: bytes) -> bytes:
    """By what is split and ordered: the same on every machine, whatever stands beside it."""
    return hashlib.sha256(data).digest()

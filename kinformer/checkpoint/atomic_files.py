"""Atomic writes: new data is synced to disk beside the old file and then replaces it.

If the process is killed at any moment, or the disk is full, the old file is still whole.
"""

import hashlib
import os
import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kinformer.core.missing_path import missing_path


def write(path: Path, data: bytes) -> None:
    """Replace a file atomically.

    path: file to write.
    data: new content.

    Errors: OSError, in one line, if the file cannot be written; the old file then stays.
    """
    write_together({path: data})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Replace several files of a folder, in the given order, once all new data is on disk.

    If any new data cannot be written, no file is replaced.

    files: content of each file.

    Errors: OSError, in one line, if a file cannot be written.
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
    """Create or replace a folder that holds these files, completely or not at all.

    path: folder to write.
    files: content of each file, by name.

    Errors: OSError, in one line, if the folder cannot be written.
    """
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
    """Return the CRC-32 of a file or of its first bytes.

    path: file to read.
    size: number of bytes to read; -1 for all.

    Errors: OSError, in one line, if the file cannot be read.
    """
    return zlib.crc32(contents(path, size=size))


def remove(path: Path) -> None:
    """Remove a file, or a folder with all its content, if it exists.

    path: file or folder to remove.
    """
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Sync the file names of a folder to disk, if the system supports it.

    folder: folder to sync.
    """
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until its data is on disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_error(path: Path, size: int, error: OSError) -> OSError:
    outcome = "the old content is unchanged" if path.exists() else "nothing was written"
    return OSError(f"cannot write {path} ({size:,} bytes): {error.strerror}; {outcome}")


def existing_path(place: str, advice: str) -> Path:
    """Return the path of an existing file or folder.

    place: path as the user wrote it; `~` is expanded.
    advice: hint for the message.

    Errors: FileNotFoundError, with the advice, for a missing path and for a device file, which may never end.
    """
    path = Path(place).expanduser()
    if not path.exists() or path.is_char_device() or path.is_block_device():
        raise FileNotFoundError(missing_path(place, advice))
    return path


def contents(path: Path, advice: str = "", *, size: int = -1) -> bytes:
    """Return the bytes of a file, or its first `size` bytes.

    path: file to read.
    advice: hint at the end of the message.
    size: number of bytes to read; -1 for all.

    Errors: OSError, in one line, if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror}{advice}") from error


def digest(data: bytes) -> bytes:
    """Return the SHA-256 of data, to choose data splits and orders that are the same on every machine.

    data: bytes to hash.
    """
    return hashlib.sha256(data).digest()

"""UserError: something that the user can mend, in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

WRONG, FAILED, INTERRUPTED = 2, 1, 130  # exit codes; that of a signal is 128 and its number


class UserError(Exception):
    """Something that the user can mend; the message is the one line to print, and `code` the exit code."""

    def __init__(self, message: str, code: int = WRONG) -> None:
        super().__init__(" ".join(message.split()))
        self.code = code


@contextmanager
def from_user(*kinds: type[Exception], code: int = WRONG) -> Iterator[None]:
    """Turn the given exceptions, raised by what the user wrote, into a UserError."""
    try:
        yield
    except kinds as error:
        raise UserError(str(error), code) from error

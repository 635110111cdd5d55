"""UserError: an error that the user can correct, in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

WRONG, FAILED, INTERRUPTED = 2, 1, 130  # exit codes; a signal has 128 plus its number


class UserError(Exception):
    """Error that the user can correct; the message is the one line to print.

    message: the line.
    code: the exit code.
    """

    def __init__(self, message: str, code: int = WRONG) -> None:
        super().__init__(" ".join(message.split()))
        self.code = code


@contextmanager
def from_user(*kinds: type[Exception], code: int = WRONG) -> Iterator[None]:
    """Raise a UserError in place of the given exceptions while the context is entered.

    Choose it around code in which these exceptions are caused by the user's input.

    kinds: the classes of exceptions.
    code: the exit code.
    """
    try:
        yield
    except kinds as error:
        raise UserError(str(error), code) from error

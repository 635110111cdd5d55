"""resolve: turn a specification such as "text=stdlib" into a source of data that is read later."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.core.missing_path import refuse_long_paths
from kinformer.core.quote import quote
from kinformer.lab.data.data import Data
from kinformer.lab.data.support.data_readers import data_readers
from kinformer.lab.data.support.spec_options import refuse_unknown, words_of


@dataclass(frozen=True)
class DataSource:
    """Data that a specification, such as "text=stdlib", names; nothing of it has been read yet.

    `resolve` makes it, once in each command of `kinformer`. Every later check and the reading itself use it.

    spec: the specification as it was written.
    name: the first word of the specification, the kind of data.
    where: the file, folder or name of the data.
    options: the options of the specification. A model's tokenizer is added if the reader takes one and the
        specification names none.
    reader: the function that reads the data.
    kind: the class of the data; None if the reader does not declare it.
    """

    spec: str
    name: str
    where: str
    options: Mapping[str, Any]
    reader: Callable[..., Data]
    kind: type[Data] | None

    @refuse_long_paths()
    def read(self, **options_given: Any) -> Data:
        """Read the data, with `options_given` in addition to the options of the specification.

        Errors: ValueError for an option that is given twice or is unknown, and every error of the reader.
        """
        for name in options_given:
            if name in self.options:
                raise ValueError(f"{name} is given twice, as an option and in {quote(self.spec)}; give it once")
        _check_options(self.name, self.reader, [*self.options, *options_given])
        return self.reader(self.where, **self.options, **options_given)

    def read_whole(self) -> Data:
        """Read the data without splitting it: all of it is in the split "valid", and in "train".

        Errors: ValueError for a kind of data whose splits are fixed, and for data with `valid=`.
        """
        if "valid" not in inspect.signature(self.reader).parameters or "valid" in self.options:
            raise ValueError(
                f"{quote(self.spec)} has splits of its own, and is not measured as a whole; give --split all"
            )
        with warnings.catch_warnings():  # all of the data is in both splits on purpose
            warnings.filterwarnings("ignore", message=".*Scores on copies are too good")
            return self.read(valid=self.where)


def resolve(spec: str, tokenizer: str | Tokenizer | None = None) -> DataSource:
    """Parse "KIND=PLACE,NAME=VALUE,..."; KIND is a file of kinformer/lab/data with a function `read`.

    spec: the specification.
    tokenizer: a tokenizer, or the folder of a model that has one. It makes the tokens, unless the specification names
        a tokenizer. It has no effect on data without tokens.

    Errors: ValueError, in one line, for a specification of another form and for an unknown kind.
    """
    readers = data_readers()
    name, where, options = words_of(spec, {name: module.FORM for name, module in readers.items()})
    reader = readers[name].read
    takes_tokenizer = "tokenizer" in inspect.signature(reader).parameters
    defaults = {"tokenizer": tokenizer} if tokenizer is not None and takes_tokenizer else {}
    return DataSource(spec, name, where, defaults | options, reader, _kind_of(reader))


def _kind_of(reader: Callable[..., Data]) -> type[Data] | None:
    """Return the class that a reader declares to return; None if it is no class of data or is unknown at run time."""
    try:
        returned = get_type_hints(reader).get("return")
    except NameError:  # names that are imported only under TYPE_CHECKING
        return None
    return returned if isinstance(returned, type) and issubclass(returned, Data) else None


def _check_options(name: str, reader: Callable[..., Data], options: Iterable[str]) -> None:
    """Raise ValueError, with the nearest name, for an option that the reader does not have."""
    parameters = list(inspect.signature(reader).parameters.values())[1:]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        refuse_unknown(name, options, (parameter.name for parameter in parameters))

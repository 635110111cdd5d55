"""read_spec: the data that a spec such as "text=stdlib" names, read at once."""

from kinformer.lab.data.data import Data
from kinformer.lab.data.resolve import resolve


def read_spec(spec: str, **options: str) -> Data:
    """The data that "KIND=WHERE,NAME=VALUE,..." names; `options` are further options.

    Choose it where nothing is checked between the spec and the data; `resolve` reads nothing yet.

    Errors: ValueError for a spec of another form or kind, an option that the kind has not or that is given twice, and
    whatever the kind's own `read` raises, one line each.
    """
    return resolve(spec).read(**options)

"""read_spec: read the data that a specification such as "text=stdlib" names."""

from kinformer.lab.data.data import Data
from kinformer.lab.data.resolve import resolve


def read_spec(spec: str, **options: str) -> Data:
    """Read the data that "KIND=PLACE,NAME=VALUE,..." names.

    Choose it to read the data at once. Choose `resolve` to check the specification before anything is read.

    spec: the specification.
    options: further options, in addition to NAME=VALUE.

    Errors: ValueError for a specification of another form, an unknown kind, an unknown option, or an option that is
    given twice. Errors of the kind's own `read` are raised too. Each message is one line.
    """
    return resolve(spec).read(**options)

"""From "text=stdlib", as it stands on a command line, to data."""

from kinformer.data.pairs import Pairs
from kinformer.data.text import Text
from kinformer.discover import modules
from kinformer.keywords import nearest

FORMS = "write text=stdlib, text=PATH or pairs=FILE.tsv"


def read_spec(spec: str) -> Text | Pairs:
    """The data that "KIND=WHERE" names, KIND being a file of kinformer/data that has `read`.

    Raises ValueError for a spec of another form or kind, and whatever the kind's own `read` raises, one line each.
    """
    readers = {name: module.read for name, module in modules("data").items() if hasattr(module, "read")}
    kind, equals, where = spec.partition("=")
    if not equals or not where:
        raise ValueError(f"the data {spec!r} has no form KIND=WHERE; {FORMS}")
    if kind not in readers:
        raise ValueError(f"there is no kind of data {kind!r}{nearest(kind, readers)}; {FORMS}")
    return readers[kind](where)

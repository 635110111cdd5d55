"""Warning about a table or a marked-up file that is given as plain text."""

import sys
from pathlib import Path

from kinformer.lab.data.resolve import DataSource
from kinformer.lab.data.support.dataset_rows import PACKINGS

ADVICE = {
    ".csv": "its commas and numbers; write series={file} for columns of numbers over time",
    ".tsv": "its tabs; write pairs={file} for a source and a target, or labelled={file} for a label and a text",
    ".html": "its tags; save the text without tags to train on the text only",
}
ADVICE[".htm"] = ADVICE[".html"]


def warn_of_table(source: DataSource) -> None:
    """Print a warning on stderr if text= names a file of another form, with the spelling for that form.

    source: the data source; any other kind of data is accepted.
    """
    if source.name != "text":
        return
    path = Path(source.where)
    suffix = (path.with_suffix("") if path.suffix in PACKINGS else path).suffix.lower()
    if suffix in ADVICE and path.expanduser().is_file():
        advice = ADVICE[suffix].format(file=source.where)
        print(f"warning: text={source.where} is read as plain text, with {advice}", file=sys.stderr)

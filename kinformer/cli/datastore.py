"""The commands `kinformer datastore ...`: keep a model's hidden states on disk, and search them."""

import json
import sys
from pathlib import Path
from time import monotonic
from typing import Annotated, Literal

import typer

from kinformer.cli.errors import ended_by, print_warnings, suggest_command
from kinformer.cli.options import Data, Device, Json, Own, RunPrecision, Split, Trained, count, flag
from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, UserError, from_user

Store = Annotated[
    Path,
    typer.Argument(
        callback=option_checks.datastore,
        metavar="STORE",
        help="Folder of a datastore that `kinformer datastore build` wrote.",
    ),
]
datastore = typer.Typer(help="Build and search a datastore of a model's hidden states.")


@datastore.command("build")
def build(
    folder: Trained,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder of the datastore; it is created if it does not exist.")],
    split: Split = "train",
    tap: Annotated[
        str,
        typer.Option(
            help="Hidden state of the model that is stored as the key of each token: last_ffn_input (the input of the "
            "last feed-forward layer), or the name of another state, such as 3.1.input (the input of sublayer 1 "
            "within sublayer 3)."
        ),
    ] = "last_ffn_input",
    dtype: Annotated[
        Literal["float16", "float32"], typer.Option(help="Number format in which the keys are stored.")
    ] = "float16",
    length: Annotated[
        int | None, count("Number of tokens in each window of text that the model reads; default: as in training.")
    ] = None,
    stride: Annotated[
        int | None,
        count("Number of tokens from the start of a window of text to the start of the next; default: half a window."),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            help="Also build an index for faster search: flat, hnsw, ivf or ivf_pq, such as ivf:lists=64,probes=4; "
            "default: none."
        ),
    ] = None,
    append: Annotated[
        bool, flag("append", "Add the text to the datastore that the folder --out already holds.")
    ] = False,
    resume: Annotated[bool, flag("resume", "Continue a build of the datastore in --out that was stopped.")] = False,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Build a datastore from a text.

    \b
    Examples:
        kinformer datastore build runs/llama --data text=PATH --out runs/store
        # With an index, which makes searches faster
        kinformer datastore build runs/llama --data text=PATH --out runs/store2 \\
            --index hnsw

    A datastore holds a pair for every token of the text: the model's hidden state at the token, which is the key, and
    the token that follows. `kinformer knn-lm` lets the model search this datastore. The datastore works only with the
    weights and the tokenizer that built it.

    If the build is killed or the disk is full, at most one shard is lost, which is 64 MiB of keys. With --resume the
    build continues after the last complete shard, and the files are the same as without the interruption.
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support import datastore_tables
    from kinformer.cli.support.load_model import load_model
    from kinformer.cli.support.model_data import read_text, source_for
    from kinformer.cli.support.progress_bar import progress
    from kinformer.core.eval_mode import evaluating
    from kinformer.lab.datastore.datastore import Datastore
    from kinformer.lab.datastore.index_file import read_index_record
    from kinformer.lab.datastore.manifest import BUILDING
    from kinformer.models.support.hidden_taps import Tap

    search = None if index is None else datastore_tables.index_named(index)
    model = load_model(folder, member, device, precision=precision)
    if search is not None:
        with from_user(ValueError, LookupError), evaluating(model):
            search.make_index(0, Tap(model, tap).width)  # refuses an impossible index before the text is read
    source = source_for(model, data)
    text = read_text(model, source, split)
    part, began = text.part(split), monotonic()
    settings = {"tap": tap, "dtype": dtype, "length": length, "stride": stride, "append": append, "resume": resume}
    about = {"data": f"{source.spec} ({split})", "home": str(folder.resolve())}
    dropped_index = append and read_index_record(out)
    try:
        with (
            from_user(ValueError),
            print_warnings(),
            progress("building", len(part.tokens) - len(part.document_starts), "keys") as on_progress,
        ):
            store = Datastore.build(out, model, part, on_progress=on_progress, **about, **settings)  # type: ignore[arg-type]
    except OSError as error:
        go_on = "; continue with --resume" if (out / BUILDING).is_file() else ""
        raise UserError(f"{error}{go_on}", FAILED) from error
    except KeyboardInterrupt as stop:
        go_on = "stopped; continue with --resume" if (out / BUILDING).is_file() else "stopped; nothing was saved"
        raise UserError(go_on, ended_by(stop)) from stop
    if dropped_index and index is None:
        print(
            f"removed the search index ({dropped_index.search}), which lacks the new keys; --index builds a new one",
            file=sys.stderr,
        )
    if index is not None:
        try:
            datastore_tables.make_index(store, out, index)
        except UserError as error:
            raise UserError(f"the datastore in {out} is built, but not its index: {error}", FAILED) from error
    seconds = monotonic() - began
    if as_json:
        print(json.dumps({**datastore_tables.describe_datastore(store, out), "seconds": round(seconds, 3)}, indent=2))
        return
    datastore_tables.print_datastore(store, out)
    search_it = suggest_command("datastore search", out, "--prompt", "TEXT", member=member)
    look_up = suggest_command("knn-lm", folder, "--datastore", out, "--data", data, member=member)
    print(f"to search it: {search_it}\nto let the model use it: {look_up}", file=sys.stderr)


@datastore.command("index")
def index_keys(
    store: Store,
    name: Annotated[
        str,
        typer.Argument(
            help="Kind of index to build: flat, hnsw, ivf or ivf_pq; options follow a colon, as in "
            "ivf:lists=64,probes=4."
        ),
    ],
) -> None:
    """Build an index that makes searches of a datastore faster.

    \b
    Examples:
        kinformer datastore index runs/store hnsw
        kinformer datastore index runs/store ivf:lists=64,probes=4

    From then on, searches use the index, which may miss some of the nearest keys. The command prints which share of the
    16 nearest keys the index finds. The distances of the keys that it finds are exact. The index is stored beside the
    keys, and `datastore build --append` removes it.
    """
    from kinformer.cli.support import datastore_tables

    opened = datastore_tables.open_datastore(store, exact=True)
    datastore_tables.make_index(opened, store, name)
    datastore_tables.print_datastore(opened, store)


@datastore.command("info")
def info(store: Store, as_json: Json = False) -> None:
    """Describe a datastore: its keys, its index, its model and its texts.

    \b
    Examples:
        kinformer datastore info runs/store
    """
    from kinformer.cli.support import datastore_tables

    opened = datastore_tables.open_datastore(store)
    if as_json:
        print(json.dumps(datastore_tables.describe_datastore(opened, store), indent=2))
    else:
        datastore_tables.print_datastore(opened, store)


@datastore.command("search")
def search(
    store: Store,
    prompt: Annotated[
        str,
        typer.Option(
            help="Text to look up; the model's hidden state at its last token is compared with the keys of the "
            "datastore."
        ),
    ],
    k: Annotated[int, typer.Option(help="Number of nearest keys to show.", min=1, max=10_000)] = 8,
    exact: Annotated[
        bool, flag("exact", "Compare the prompt with every key, even if the datastore has an index for faster search.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(help="Folder of the model that built the datastore, if it has moved since.")
    ] = None,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Show the keys of a datastore that are nearest to a prompt.

    \b
    Examples:
        kinformer datastore search runs/store --prompt "import "

    A key is the model's hidden state at a token of the stored text. The prompt is compared by the state at its last
    token. Each line shows the distance of a key, the text around its token, and in brackets the token that followed.
    """
    from kinformer.cli.support import datastore_tables

    rows = datastore_tables.find_neighbours(store, prompt, k, exact, (model, member, device, precision))
    if as_json:
        print(json.dumps({"prompt": prompt, "neighbours": rows}, indent=2))
    else:
        datastore_tables.print_neighbours(rows)

"""`kinformer datastore build DIR --data SPEC --out DS`, `info DS`, `search DS --prompt TEXT`."""

import json
import sys
from pathlib import Path
from time import monotonic
from typing import Annotated, Literal

import typer

from kinformer.cli.errors import ended_by, print_warnings
from kinformer.cli.options import Data, Device, Json, Own, Split, Trained, count, flag
from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, UserError, from_user

Store = Annotated[
    Path, typer.Argument(callback=option_checks.datastore, metavar="DS", help="A folder that `datastore build` wrote.")
]
datastore = typer.Typer(help="What a trained model made of a text, kept on a disk and searched.")


@datastore.command("build")
def build(
    folder: Trained,
    data: Data,
    out: Annotated[Path, typer.Option(help="The folder of the datastore; made where it is missing.")],
    split: Split = "train",
    tap: Annotated[
        str, typer.Option(help="The inner state: last_ffn_input, or a place, such as 3.1.input.")
    ] = "last_ffn_input",
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="The numbers of a key.")] = "float16",
    length: Annotated[int | None, count("Tokens of a window; as in training unless given.")] = None,
    stride: Annotated[int | None, count("Tokens from one window to the next; half of one unless given.")] = None,
    index: Annotated[
        str | None, typer.Option(help="Search by an index: flat, hnsw, ivf or ivf_pq, as ivf:lists=64,probes=4.")
    ] = None,
    append: Annotated[bool, flag("append", "Put it behind what the datastore has.")] = False,
    resume: Annotated[bool, flag("resume", "Go on with what was begun and not finished.")] = False,
    device: Device = None,
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Keep what a trained language model makes of every token of a text, and which token came next.

    A kill or a full disk loses the shard it was at, 64 MiB of keys: --resume goes on behind the last whole one, and the
    files are those of a build that was never stopped. The datastore belongs to the weights and the tokenizer that made
    it.
    """
    # imported here, so that --help and early refusals need not wait for torch or rich
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
    model = load_model(folder, member, device)
    if search is not None:
        with from_user(ValueError, LookupError), evaluating(model):
            search.make_index(0, Tap(model, tap).width)  # refused before a text is read
    source = source_for(model, folder, data)
    text = read_text(model, source, split)
    part, began = text.part(split), monotonic()
    settings = {"tap": tap, "dtype": dtype, "length": length, "stride": stride, "append": append, "resume": resume}
    about = {"data": f"{source.spec} ({split})", "home": str(folder.resolve())}
    dropped_index = append and read_index_record(out)
    try:
        with (
            from_user(ValueError),
            print_warnings(),
            progress("reading", len(part.tokens) - len(part.document_starts), "keys") as on_progress,
        ):
            store = Datastore.build(out, model, part, on_progress=on_progress, **about, **settings)  # type: ignore[arg-type]
    except OSError as error:
        go_on = "; go on with --resume" if (out / BUILDING).is_file() else ""
        raise UserError(f"{error}{go_on}", FAILED) from error
    except KeyboardInterrupt as stop:
        go_on = "stopped; go on with --resume" if (out / BUILDING).is_file() else "stopped; nothing is kept"
        raise UserError(go_on, ended_by(stop)) from stop
    if dropped_index and index is None:
        print(f"its index ({dropped_index.search}) has no new keys and is gone; --index makes one", file=sys.stderr)
    if index is not None:
        try:
            datastore_tables.make_index(store, out, index)
        except UserError as error:
            raise UserError(f"{out} is built, and has no index: {error}", FAILED) from error
    seconds = monotonic() - began
    if as_json:
        print(json.dumps({**datastore_tables.describe_datastore(store, out), "seconds": round(seconds, 3)}, indent=2))
        return
    datastore_tables.print_datastore(store, out)
    print(f"look into it: kinformer datastore search {out} --prompt TEXT", file=sys.stderr)
    print(f"let the model look it up: kinformer knn-lm {folder} --datastore {out} --data {data}", file=sys.stderr)


@datastore.command("index")
def index_keys(
    store: Store, name: Annotated[str, typer.Argument(help="flat, hnsw, ivf or ivf_pq, as ivf:lists=64,probes=4.")]
) -> None:
    """Make an index of a datastore, by which it is then searched, and tell what share of the nearest it finds.

    Distances of what it finds are exact. It lies beside the keys; an append takes it away.
    """
    from kinformer.cli.support import datastore_tables

    opened = datastore_tables.open_datastore(store, exact=True)
    datastore_tables.make_index(opened, store, name)
    datastore_tables.print_datastore(opened, store)


@datastore.command("info")
def info(store: Store, as_json: Json = False) -> None:
    """What a datastore holds: its keys, of which model and state, and of which texts."""
    from kinformer.cli.support import datastore_tables

    opened = datastore_tables.open_datastore(store)
    if as_json:
        print(json.dumps(datastore_tables.describe_datastore(opened, store), indent=2))
    else:
        datastore_tables.print_datastore(opened, store)


@datastore.command("search")
def search(
    store: Store,
    prompt: Annotated[str, typer.Option(help="The text whose last token's neighbours are wanted.")],
    k: Annotated[int, typer.Option(help="How many.", min=1, max=10_000)] = 8,
    exact: Annotated[bool, flag("exact", "Look at every key, whatever index there is.")] = False,
    model: Annotated[Path | None, typer.Option(help="The model's folder, where it is no longer where it was.")] = None,
    device: Device = None,
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Show the keys that are nearest to what the model makes of a prompt, the texts around them, and what came next."""
    from kinformer.cli.support import datastore_tables

    rows = datastore_tables.find_neighbours(store, prompt, k, exact, model, device, member)
    if as_json:
        print(json.dumps({"prompt": prompt, "neighbours": rows}, indent=2))
    else:
        datastore_tables.print_neighbours(rows)

"""The command `kinformer forecast`: forecast the next rows of a time series."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kinformer.cli.errors import print_warnings, refuse_existing, refuse_no_folder, refuse_useless
from kinformer.cli.options import Device, Own, RunPrecision, Series, count, trained_folder
from kinformer.lab.errors import UserError, from_user

MOST = 12


def forecast(
    ctx: typer.Context,
    folder: Annotated[Path, trained_folder("of a member that forecasts, such as informer.")],
    out: Annotated[
        Path,
        typer.Option(
            help="File to write: FILE.csv for the rows after the last row of the data, or FILE.png for a picture of "
            "forecasts and true rows."
        ),
    ],
    *,
    data: Series,
    split: Annotated[
        Literal["train", "valid", "test"],
        typer.Option(help="With --out FILE.png: part of the data whose windows are drawn."),
    ] = "test",
    windows: Annotated[
        int, count("With --out FILE.png: number of windows to draw, spread over the part of the data.", MOST)
    ] = 3,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
) -> None:
    """Forecast the next rows of a time series.

    \b
    Examples:
        kinformer forecast runs/series --data series=ETTh1.csv --out next.csv
        kinformer forecast runs/series --data series=ETTh1.csv --out windows.png

    --out FILE.csv writes the rows that follow the last row of the file, in the units of the file. If the file has
    dates, the new rows have them too. The file needs only as many rows as the model reads before a forecast.

    --out FILE.png draws windows of a split, for up to four of the forecast columns. Each window shows the known rows,
    the true next rows and the forecast of the model. It also shows three simple forecasts: a linear map, the last row
    repeated, and the last season repeated.
    """
    if out.suffix not in (".csv", ".png"):
        raise UserError(f"wrong --out: got {out}, expected FILE.csv for the next rows or FILE.png for a picture")
    refuse_no_folder(out)
    if out.suffix == ".csv":
        refuse_useless(ctx, "with --out FILE.csv, which holds the rows after the end of the data", "split", "windows")
        refuse_existing(out)
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support import forecast_files as forecasts
    from kinformer.cli.support.load_model import load_model
    from kinformer.core.model import Forecaster, display_name
    from kinformer.lab.data.data_fits_model import refuse_unfit
    from kinformer.lab.data.resolve import resolve
    from kinformer.lab.data.series import SeriesData, rows_of

    model = load_model(folder, member, device, precision=precision)
    if not isinstance(model, Forecaster):
        raise UserError(
            f"this model reads {model.reads} data and cannot forecast; use a model of a member such as informer"
        )
    with from_user(ValueError, OSError, ImportError), print_warnings():
        try:
            series = resolve(data).read()
        except ValueError as wrong:
            dates = " with dates" if model.calendar else ""
            raise ValueError(
                f"{wrong}; this {display_name(model)} was trained on rows of {model.channels} numbers{dates}"
            ) from wrong
        refuse_unfit(model, series, 1)
        assert isinstance(series, SeriesData)
        series = series.check_for_model(model)
        if out.suffix == ".csv":
            forecasts.write(model, series, out)
            print(f"the next {model.horizon} rows of {series.name} are in {out}")
        else:
            for name in dict.fromkeys(("train", split)):  # the linear map is fitted to train
                getattr(series, name).check_holds(f"{name} of {series.name}", model.context, rows_of(model))
            error = forecasts.draw(model, series, split, windows, out)
            print(
                f"mean squared error {error:.4f} in {windows} windows of {split} of {series.name}; the picture is {out}"
            )

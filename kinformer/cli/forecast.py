"""`kinformer forecast DIR --data series=FILE.csv --out FILE`: what a trained model says comes next."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kinformer.cli.errors import print_warnings, refuse_existing, refuse_no_folder, refuse_useless
from kinformer.cli.options import Data, Device, Own, count, trained_folder
from kinformer.lab.errors import UserError, from_user

MOST = 12


def forecast(
    ctx: typer.Context,
    folder: Annotated[Path, trained_folder("of a member that forecasts, like informer.")],
    out: Annotated[Path, typer.Option(help="A .csv: the rows that come. A .png: forecasts beside what came.")],
    *,
    data: Data,
    split: Annotated[
        Literal["train", "valid", "test"], typer.Option(help="Of a .png: where windows are from.")
    ] = "test",
    windows: Annotated[int, count("Of a .png: how many, from all over it.", MOST)] = 3,
    device: Device = None,
    member: Own = None,
) -> None:
    """Forecast a series.

    Into --out FILE.csv the rows that come after the last one of the file, in its own units, with their dates where it
    has any; the file needs no more rows than the context of the model. Into --out FILE.png windows of a split: the rows
    that were known, those that came, and the forecasts of the model, of a linear map, of the last row and of the last
    season, for up to four columns of those that are forecast.
    """
    if out.suffix not in (".csv", ".png"):
        raise UserError(f"--out {out} is neither; give FILE.csv for the rows that come, FILE.png for a picture")
    refuse_no_folder(out)
    if out.suffix == ".csv":
        refuse_useless(ctx, "with --out FILE.csv, which holds the rows after the last one", "split", "windows")
        refuse_existing(out)
    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.cli.support import forecast_files as forecasts
    from kinformer.cli.support.load_model import load_model
    from kinformer.core.model import Forecaster, display_name
    from kinformer.lab.data.data_fits_model import refuse_unfit
    from kinformer.lab.data.resolve import resolve
    from kinformer.lab.data.series import SeriesData, rows_of

    model = load_model(folder, member, device)
    if not isinstance(model, Forecaster):
        raise UserError(f"this model reads {model.reads} and forecasts nothing; use one of a member like informer")
    with from_user(ValueError, OSError, ImportError), print_warnings():
        try:
            series = resolve(data).read()
        except ValueError as wrong:
            dates = " and their dates" if model.calendar else ""
            raise ValueError(
                f"{wrong}; this {display_name(model)} learned from {model.channels} numbers a row{dates}"
            ) from wrong
        refuse_unfit(model, series, 1)
        assert isinstance(series, SeriesData)
        series = series.check_for_model(model)
        if out.suffix == ".csv":
            forecasts.write(model, series, out)
            print(f"{model.horizon} rows that come after {series.name}, in {out}")
        else:
            for name in dict.fromkeys(("train", split)):  # a linear map learns from train
                getattr(series, name).check_holds(f"{name} of {series.name}", model.context, rows_of(model))
            error = forecasts.draw(model, series, split, windows, out)
            print(f"mean squared error {error:.4f} in {windows} windows of {split} of {series.name}, in {out}")

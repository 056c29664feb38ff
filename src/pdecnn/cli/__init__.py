"""The command line: each command, in the order of the help, by the name of its function."""

from collections.abc import Callable

from pdecnn.cli.application import app as app
from pdecnn.cli.application import data_app, with_debug
from pdecnn.cli.application import main as main
from pdecnn.cli.inspection import attack, certify, diagnose, explore, report
from pdecnn.cli.reproduction import bench, reproduce
from pdecnn.cli.sharing import (
    download_data,
    export,
    list_data,
    models,
    pack_data,
    recipes,
    settings,
    verify_data,
)
from pdecnn.cli.training import coarsen, evaluate, predict, refine, train

COMMANDS: tuple[Callable[..., None], ...] = (
    train,
    evaluate,
    predict,
    coarsen,
    refine,
    reproduce,
    diagnose,
    report,
    attack,
    certify,
    explore,
    export,
    recipes,
    settings,
    models,
    bench,
)
for command in COMMANDS:
    app.command()(with_debug(command))
app.add_typer(data_app, name="data")
for command in (list_data, download_data, verify_data, pack_data):
    data_app.command(command.__name__.removesuffix("_data"))(with_debug(command))

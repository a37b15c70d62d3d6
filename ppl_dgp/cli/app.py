"""The commands and options of ``ppl-dgp``. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ppl_dgp.cli import classes, machines
from ppl_dgp.cli import names as choices
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.options import (
    RUNS,
    SETTINGS,
    SEVERAL,
    Json,
    Out,
    Quiet,
    Resume,
    RunDir,
    SourceArgument,
    option,
    setting_option,
    with_settings,
)
from ppl_dgp.cli.printing import print_json, print_record
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.values import number_of_steps, real_numbers, whole_numbers, words

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


def _version(wanted: bool | None) -> None:
    if wanted:
        from ppl_dgp import __version__

        typer.echo(f"ppl-dgp {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = None,
) -> None:
    """Deep Gaussian processes: fit them to a table, predict, and see which approximation is to be trusted."""


@app.command()
def models(as_json: Json = False) -> None:
    """List the models, the guides' rules, the objectives, the kernels, the likelihoods and the built-in data."""
    from ppl_dgp.data import BUILT_INS

    groups: dict[str, dict[str, str]] = {
        "models": choices.MODELS,
        "hidden": choices.HIDDEN,
        "hidden_of_gplvm": choices.LATENTS,
        "hidden_of_gpssm": choices.STATES,
        "inducing_rules": choices.INDUCING,
        "objectives": choices.OBJECTIVE_HELP,
        "kernels": choices.KERNEL_HELP,
        "likelihoods": choices.LIKELIHOOD_HELP,
        "likelihoods_of_their_own_scale": choices.OWN_SCALE,
        "likelihoods_of_classes": classes.CLASS_LIKELIHOODS,
        "sources": dict.fromkeys(BUILT_INS, ""),
    }
    if as_json:
        return print_json(groups)
    for title, entries in groups.items():
        typer.echo(title.replace("_", " "))
        for name, meaning in entries.items():
            typer.echo(f"  {name:21} {meaning}".rstrip())


@app.command()
@with_settings()
def fit(
    source: SourceArgument,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    quiet: Quiet = False,
    stream: Annotated[
        bool,
        option(
            "Read rows block by block, none held out (a directory or .npy: always).", "--stream", group=RUNS
        ),
    ] = False,
    distributed: Annotated[
        bool,
        option("Join the processes that Slurm, Open MPI or a hand started.", "--distributed", group=SEVERAL),
    ] = False,
    coordinator: Annotated[
        str | None, setting_option("coordinator", "HOST:PORT where processes meet", "the launcher's", SEVERAL)
    ] = None,
    processes: Annotated[
        int | None, setting_option("processes", "How many processes", "the launcher's", SEVERAL)
    ] = None,
    process: Annotated[
        int | None, setting_option("process", "Which of them this is, from 0", "the launcher's", SEVERAL)
    ] = None,
    **given: Any,
) -> None:
    """Fit a model to SOURCE and write a run directory."""
    given = {name: value for name, value in given.items() if value is not None}
    settings = _settings(given)
    bar = not quiet and not as_json and sys.stderr.isatty()
    launch = machines.Launch(coordinator, processes, process)
    if distributed:
        classes.check_numbers(settings)
        with machines.joined(launch):
            import jax

            from ppl_dgp.cli import streamed

            first = jax.process_index() == 0
            say = _sayer(quiet or not first)
            folder, record = streamed.fit_streamed(source, settings, sorted(given), out, resume, bar, say)
        if not first:
            return
    else:
        if launch != machines.Launch():
            raise BadInput(
                "--coordinator, --processes or --process is given", "add --distributed, or leave it out"
            )
        from ppl_dgp.cli import commands, streamed

        run = streamed.fit_streamed if stream or streamed.on_disk(source) else commands.fit
        folder, record = run(source, settings, sorted(given), out, resume, bar, _sayer(quiet))
    if as_json:
        config = {name: value for name, value in record.to_json().items() if name != "result"}
        print_json({**record.result, "run_directory": str(folder), "config": config})
    else:
        print_record(str(folder), record)


@app.command()
@with_settings(
    model="sparse-gp,deep-gp",
    hidden="mean-field,markov,conditional,doubly-stochastic",
    inducing_rule="full-rank",
    objective="power-ep",
    alpha="0",
)
def compare(
    source: SourceArgument,
    out: Out = None,
    resume: Resume = False,
    as_page: Annotated[
        str | None, option("HTML file to write the comparison to.", "--html", group=RUNS)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Fit SOURCE under several models, guides and objectives (comma lists), and tabulate them."""
    given = {name: value for name, value in given.items() if value is not None}
    lists: dict[str, Any] = {name: words(given.pop(name)) for name in _LISTS}
    lists["alpha"] = real_numbers("--alpha", given.pop("alpha"))
    settings = _settings(given)
    from ppl_dgp.cli.comparison import combinations
    from ppl_dgp.cli.comparison import compare as run

    combinations(settings, lists)  # refuses before anything is loaded
    page = None if as_page is None else _new_file("--html", as_page)
    bar = not quiet and not as_json and sys.stderr.isatty()
    folder, comparison, table = run(source, settings, lists, sorted(given), out, resume, bar, _sayer(quiet))
    if page is not None:
        from ppl_dgp.cli.comparison_page import write_comparison

        write_comparison(page, source, folder, comparison, table)
    if as_json:
        fits = json.loads(table.reset_index().to_json(orient="records"))
        print_json({"fits": fits, "directory": str(folder), "config": settings.to_json() | lists})
    else:
        from rich.console import Console

        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(comparison.to_rich(f"{source} ({folder})"))


@app.command()
def predict(
    run_dir: RunDir,
    source: SourceArgument,
    target: Annotated[str | None, setting_option("target", *SETTINGS["target"][1:])] = None,
    drop_missing: Annotated[bool, setting_option("drop_missing", *SETTINGS["drop_missing"][1:])] = False,
    seed: Annotated[int | None, setting_option("seed", "Seed of synthetic data", "the run's")] = None,
    out: Annotated[str | None, setting_option("out", "CSV file to write", "standard output")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict at the rows of SOURCE with the model of RUN_DIR; of a gpssm, the steps after those it was trained on,
    a row of SOURCE for each, whose columns do not matter where it has no controls."""
    if out is not None:
        _new_file("--out", out)
    from ppl_dgp.cli.predicting import predict as run
    from ppl_dgp.cli.run_directory import place

    frame, figures = run(Path(run_dir), source, target, drop_missing, seed, _sayer(quiet))
    if out is not None:
        place(Path(out), lambda path: frame.to_csv(path, index=False))
    if as_json:
        rows = {} if out is not None else {"predictions": json.loads(frame.to_json(orient="records"))}
        print_json({**figures, "out": out, **rows})
    elif out is None:
        sys.stdout.write(frame.to_csv(index=False))
    else:
        typer.echo(f"{len(frame)} predictions in {out}")
        for name, value in figures.items():
            if value is not None and name != "rows":
                typer.echo(f"{name} {value:.6g}")


@app.command()
def show(run_dir: RunDir, as_json: Json = False) -> None:
    """Show what the run in RUN_DIR was asked and what it found."""
    from ppl_dgp.cli import run_directory

    record = run_directory.read(Path(run_dir))
    if record.status == "done":
        run_directory.load_parameters(Path(run_dir))
    if as_json:
        values = record.to_json()
        result = values.pop("result")
        return print_json({**result, "status": record.status, "run_directory": run_dir, "config": values})
    print_record(run_dir, record)


@app.command()
def report(
    run_dir: RunDir,
    out: Annotated[str | None, setting_option("out", "HTML file to write", "report.html in RUN_DIR")] = None,
    as_json: Json = False,
) -> None:
    """Write what the run in RUN_DIR was asked and what it found as one page of HTML, figures and all."""
    path = Path(run_dir) / "report.html" if out is None else _new_file("--out", out)
    from ppl_dgp.cli.report_figures import write_report

    write_report(Path(run_dir), path)
    if as_json:
        return print_json({"out": str(path), "run_directory": run_dir})
    typer.echo(f"report of {run_dir} in {path}")


@app.command()
def export(
    run_dir: RunDir,
    out: Annotated[str, option("File to write.", "--out")] = "predictor.jaxexport",
    as_json: Json = False,
) -> None:
    """Write the predictor of RUN_DIR to a file that predicts with JAX alone, without this package."""
    from ppl_dgp.cli.exporting import export_predictor as run

    about = run(Path(run_dir), Path(out))
    if as_json:
        return print_json({"out": out, **about})
    typer.echo(
        f"predictor of {', '.join(about['targets'])} in {out}, its columns in {Path(out).with_suffix('.json')}"
    )


def _new_file(option: str, name: str) -> Path:
    """The path of a file to write, refused where there is one."""
    if Path(name).exists():
        raise BadInput(f"{option} {name!r} exists", "name a file that does not")
    return Path(name)


_LISTS = ("model", "hidden", "inducing_rule", "objective")


def _settings(given: dict[str, Any]) -> Settings:
    """The settings given on the command line, checked, the others at their defaults; ``given`` is completed."""
    if "steps" in given:
        given["steps"] = number_of_steps(given["steps"])
    for name in ("widths", "image", "patch"):
        if name in given:
            given[name] = whole_numbers(f"--{name}", given[name])
    precisions = [name for name in ("float32", "float64") if given.pop(name, False)]
    if len(precisions) == 2:
        raise BadInput("--float32 and --float64 are both given", "leave one of them out")
    if precisions:
        (given["precision"],) = precisions
    usual: dict[str, Any] = {}
    model = given.get("model", "")
    rules = {"gplvm": choices.LATENTS, "gpssm": choices.STATES}.get(model)
    if rules is not None:
        usual["hidden"] = next(iter(rules))
    if model == "deep-convolutional-gp":
        usual["widths"] = classes.CHANNELS
    if model in classes.IMAGE_MODELS and given.get("likelihood") == "gaussian":
        raise BadInput(
            f"--likelihood is gaussian, but a {model} takes one of classes",
            f"leave it out, or choose from {', '.join(classes.CLASS_LIKELIHOODS)}",
        )
    settings = Settings(**usual | given)
    settings.check()
    return settings


def _sayer(quiet: bool) -> Callable[[str], None]:
    """Notes go to standard error."""
    return (lambda text: None) if quiet else (lambda text: print(f"ppl-dgp: {text}", file=sys.stderr))

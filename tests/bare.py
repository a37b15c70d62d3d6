"""An installation without extras, tried: what it can do it does, of the rest it says what is missing.

Run as a program where none of them is installed, or with the packages to be hidden as its arguments. It prints one
JSON object: of each extra the package that is missing and what was said, or null where all that was asked for worked.
"""

import contextlib
import io
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path


def hide(packages: Iterable[str]) -> None:
    """Let nobody import them from now on."""
    packages = set(packages)
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]
    sys.modules.update(dict.fromkeys(packages))  # type: ignore[arg-type]


#: by ArviZ 0.23, for itself
BROUGHT = {"matplotlib", "h5netcdf", "h5py"}
hide({*sys.argv[1:]} - BROUGHT)
if BROUGHT & {*sys.argv[1:]}:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz  # noqa: F401
hide(BROUGHT & {*sys.argv[1:]})

import jax  # noqa: E402
import numpy as np  # noqa: E402

import ppl_dgp  # noqa: E402
from ppl_dgp.extras import EXTRA_OF, MissingExtra  # noqa: E402

KEY = jax.random.key(0)
X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = np.sin(4.0 * X)


def small_fit() -> ppl_dgp.Fit:
    """What needs no extra: training, saving, predicting, judging."""
    model = ppl_dgp.sparse_gp_regression(4)
    fit = ppl_dgp.fit_svi(
        KEY, model, ppl_dgp.Guide(model), ppl_dgp.PowerEP(0.0), X, Y, steps=4, progress=None
    )
    with tempfile.TemporaryDirectory() as folder:
        fit.save(Path(folder) / "a.fit")
        again = ppl_dgp.Fit.load(Path(folder) / "a.fit")
    prediction = again.predict(KEY, X, Y, num_samples=3)
    assert prediction.mean.shape == Y.shape and np.isfinite(prediction.log_density).all()
    assert len(fit.summary()) > 0
    assert np.isfinite(ppl_dgp.elbo(KEY, fit, X, Y, num_draws=2)).all()
    table = ppl_dgp.tabulate({("small", 0.0): lambda: {"elbo": 1.0, "elbo_se": 0.0}}).table
    assert list(table["fit"]) == ["small"]
    assert ppl_dgp.open_rows((X, Y)) is not None
    return fit


def said(packages: tuple[str, ...], ask: Callable[[], object]) -> tuple[str, str] | None:
    """The missing package of these, and the error that names it; None where none is missing and ``ask`` works."""
    missing = [package for package in packages if find_spec(package) is None]
    if not missing:
        ask()
        return None
    try:
        ask()
    except MissingExtra as error:
        assert error.name in missing and "\n" not in str(error), error
        return error.name, str(error)
    raise AssertionError(f"did without {missing}")


def commands() -> tuple[str, str] | None:
    """What the command line says, and with which exit code."""
    from ppl_dgp.cli import main

    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(io.StringIO()):
        code = main(["models"])
    if all(find_spec(package) for package in ("typer", "rich")):
        assert code == 0
        return None
    assert code == 2, code
    return "typer", heard.getvalue().removesuffix("\n")


def tried(folder: Path) -> dict[str, tuple[str, str] | None]:
    """Something of each extra, asked for."""
    fit = small_fit()
    x, y = X[:, 0], Y[:, 0]
    (folder / "a.csv").write_text(
        "a,b\n" + "".join(f"{one},{other}\n" for one, other in zip(x, y, strict=True))
    )
    for name in ("a.parquet", "a.xlsx"):
        (folder / name).write_bytes(b"none")
    data = ppl_dgp.to_arviz(KEY, fit, X, Y, num_draws=2)
    assert ppl_dgp.load_table(str(folder / "a.csv")).X.shape == X.shape  # by pandas, which xarray brings

    def refused(read: Callable[[str], object], name: str) -> Callable[[], object]:
        """That a file that is none is refused, by the package that reads it."""

        def ask() -> None:
            try:
                read(str(folder / name))
            except ppl_dgp.DataError:
                return

        return ask

    return {
        "cli": commands(),
        "cli: tables": said(("rich",), ppl_dgp.Comparison(ppl_dgp.tabulate(
            {("small", 0.0): lambda: {"elbo": 1.0, "elbo_se": 0.0}}).table).to_rich),
        "cli: bars": said(("rich",), lambda: ppl_dgp.fit_svi(
            KEY, fit.model, fit.guide, ppl_dgp.PowerEP(0.0), X, Y, steps=4, progress=True)),
        "plots": said(("matplotlib",), lambda: ppl_dgp.plot_losses(fit)),
        "data": said(("pyarrow",), refused(ppl_dgp.load_table, "a.parquet")),
        "data: blocks": said(("pyarrow",), refused(ppl_dgp.open_rows, "a.parquet")),
        "data: sheets": said(("openpyxl",), refused(ppl_dgp.load_table, "a.xlsx")),
        "data: built in": said(("sklearn",), lambda: ppl_dgp.load_table("diabetes")),
        "data: netCDF": said(("h5netcdf", "h5py"), lambda: ppl_dgp.save_arviz(data, folder / "a.nc")),
        "samplers": said(("blackjax",), lambda: ppl_dgp.fit_sghmc(
            KEY, fit.model, X, Y, dynamics="sgld", num_warmup=1, num_samples=4, thinning=1, learn=False)),
        "estimators": said(("sklearn",), lambda: ppl_dgp.SparseGPRegressor),
    }  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = tried(Path(place))
    absent = [package for package in EXTRA_OF if find_spec(package) is None]
    print(json.dumps({"absent": absent, "said": found}))

"""Tests run in 64 bits with jaxtyping's shapes checked at every call.

`make test` leaves out what is marked slow and keeps a test of every claim: each hidden rule, inducing rule,
likelihood, kernel and objective, α = 0, between and 1, NUTS on the smallest model, the README's first example,
scikit-learn's checks of one estimator. Further cases are slow (:func:`fast.few`); campaigns, notebooks and the wheel
have targets of their own.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import jax
import numpyro
import pytest

numpyro.enable_x64()
# tests compile anew, and leave nothing behind
jax.config.update("jax_enable_compilation_cache", False)
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
# most of a test's time is compilation, of programs that run once; processes that a test starts inherit the settings
jax.config.update("jax_disable_most_optimizations", True)
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# the plainer emitter, its code in one piece, takes half the time; XLA ends a process at a flag it does not know
if jax.__version_info__ < (0, 11):
    PLAINER = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {PLAINER}"

# tracing makes millions of small objects, hardly any of them in cycles
gc.set_threshold(20_000, 20, 20)

#: about three for each program, each program about a megabyte
MOST_MAPPINGS = 10_000
#: the files that take longest come first, those of the slow tests last among them: no process is left alone with one
LONGEST = [
    "test_expectations", "test_likelihoods", "test_inducing", "test_features_in_fits", "test_separate",
    "test_sums", "test_stack", "test_forecast", "test_fit_nuts", "test_fit", "test_convolved", "test_kernels",
    "test_classification", "test_discrete_layers", "test_estimators", "test_cli", "test_gp", "test_cli_classes",
    "test_testing", "test_enumeration", "test_closed_form", "test_objectives", "test_weight_space", "test_guides",
    "test_readme", "test_mixing", "test_fit_object", "test_model_values", "test_gplvm", "test_decoupled",
    "test_switching", "test_row_weights", "test_streaming", "test_runs", "test_references",
    "test_cross_validation", "test_gpssm", "test_propagation", "test_nested", "test_windows", "test_cli_series",
    "test_diagnostics", "test_latents", "test_amortised", "test_devices", "test_sites", "test_gplvm_quadrature",
    "test_pathwise", "test_many", "test_fourier", "test_watching", "test_patch_layers", "test_nuts_marginal",
    "test_fit_sghmc", "test_simulation_choice",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files; within a file the order is kept. Processes must agree on a test's name: no addresses in it."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(
                f"{item.nodeid}: a name that changes from run to run; give the parameter an id"
            )
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))


@pytest.fixture(autouse=True)
def few_mappings() -> Iterator[None]:
    """Drop compiled programs before they use up memory, or the mappings of it that Linux allows a process, 65530."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
        gc.unfreeze()
        gc.collect()


@pytest.fixture(autouse=True, scope="module")
def old_objects_rest() -> Iterator[None]:
    """Let the collector pass over what earlier files have left, some gigabytes in the end, but at the next clearing."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def optimised(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests that spend their time in steps and not in compiling, the optimisations of every user's programs."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def refuses(capsys: pytest.CaptureFixture[str]):
    """A command that must be refused with one line holding the given words."""
    from ppl_dgp.cli import main

    def check(argv: list[str], *words: str) -> None:
        assert main(argv) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("ppl-dgp: error: ") and err.count("\n") == 1, err
        for word in words:
            assert word in err, err

    return check


@pytest.fixture
def tables_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """``benchmarks.tables`` must refuse words that follow --data, where one data file lies, by a message."""
    from benchmarks import tables

    def check(message: str, place: str, *words: str) -> None:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).touch()
        monkeypatch.setattr("sys.argv", ["tables", "--data", str(tmp_path), *words])
        with pytest.raises(SystemExit, match="2"):
            tables.main()
        assert message in capsys.readouterr().err

    return check


@pytest.fixture
def ctrl_c():
    """Ctrl-C as in a program of its own: processes that share a test run ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

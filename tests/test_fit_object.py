"""A fit as an object: its verbs, its file, what it prints, its energy; an exact GP's prediction; the public names."""

import ast
import dataclasses
import inspect
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load as arrays_of
from safetensors.numpy import save as with_arrays
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as peer

import ppl_dgp
from ppl_dgp import checkpoint
from ppl_dgp.cli.settings import Settings
from ppl_dgp.diagnostics import compare_fits, elbo, summary
from ppl_dgp.estimators import DeepGPClassifier, DeepGPRegressor, SparseGPClassifier, SparseGPRegressor
from ppl_dgp.fit import Fit, Posterior, energy, files, fit_lbfgs, fit_svi, optimal_inducing
from ppl_dgp.fit.encoding import Decoder, Encoder, EncodingError
from ppl_dgp.fit.full_batch import no_latents
from ppl_dgp.fit.verbs import FitVerbs, Verb
from ppl_dgp.guides import (
    HIDDEN_RULES,
    INDUCING_RULES,
    AcrossOutputs,
    Amortised,
    Conditional,
    Diagonal,
    FullRank,
    Guide,
    LowRank,
    MeanField,
)
from ppl_dgp.kernels import RBF, Sum
from ppl_dgp.likelihoods import Bernoulli, StudentT
from ppl_dgp.models import deep_gp, exact_gp_regression, sparse_gp_regression
from ppl_dgp.objectives import OBJECTIVES, BlackBoxAlpha, Collapsed, ImportanceWeighted, PowerEP
from ppl_dgp.prediction.predict import predict

KEY = jax.random.key(3)
X = np.linspace(-1.5, 1.5, 16)[:, None]
Y = np.sin(2.0 * X) + 0.1 * np.cos(17.0 * X)
NEW = np.linspace(-2.0, 2.0, 5)[:, None]
PACKAGE = Path(ppl_dgp.__file__).parent

#: a user's own model, in a module of its own
OWN_MODEL = """
import jax.numpy as jnp
import numpyro
from ppl_dgp.kernels.stationary import RBF
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.gp.sparse_gp import sparse_gp


def model(x, y=None, index=None, size=None):
    lengthscale = numpyro.param("gp/lengthscale", jnp.full(x.shape[1], 0.7))
    inducing = numpyro.param("gp/inducing", jnp.linspace(-1.5, 1.5, 5)[:, None])
    f = sparse_gp("gp", RBF(1.0, lengthscale), inducing)
    with data_plate(size or x.shape[0], index):
        return numpyro.sample("y", f(x).noisy(0.01), obs=y)
"""
scope: dict = {}
exec(OWN_MODEL, scope)
own_model = scope["model"]


@pytest.fixture(scope="module")
def fit() -> Fit:
    guide = Guide(own_model, inducing=LowRank(2))
    return fit_svi(KEY, own_model, guide, PowerEP(0.5, 3), X, Y, steps=5, restarts=2, learning_rate=0.05)


@pytest.fixture(scope="module")
def exact() -> Fit:
    return fit_lbfgs(KEY, exact_gp_regression(), X, Y, steps=5)


def functions() -> dict[str, ast.FunctionDef]:
    """The functions behind the verbs, as written, without their ``fit``."""
    written = {}
    for verb, bound in vars(FitVerbs).items():
        if isinstance(bound, Verb):
            function = bound.public()
            (node,) = ast.parse(inspect.getsource(inspect.unwrap(function))).body
            assert isinstance(node, ast.FunctionDef)
            node.args.args = [argument for argument in node.args.args if argument.arg != "fit"]
            written[verb] = node
    return written


def test_every_verb_is_a_public_function_that_takes_key_fit_x_y_in_this_order():
    for verb, node in functions().items():
        parameters = list(inspect.signature(getattr(FitVerbs, verb)).parameters)
        order = [name for name in ("key", "fit", "x", "y") if name in parameters]
        assert parameters[: len(order)] == order, verb
        assert node.name in ppl_dgp.__all__


def test_the_stub_of_the_verbs_says_what_the_functions_say():
    stub = ast.parse((PACKAGE / "fit" / "verbs.pyi").read_text())
    (kind,) = (node for node in stub.body if isinstance(node, ast.ClassDef))
    declared = {node.name: node for node in kind.body if isinstance(node, ast.FunctionDef)}
    written = functions()
    assert declared.keys() == written.keys()
    for verb, node in declared.items():
        node.args.args = [argument for argument in node.args.args if argument.arg != "self"]
        assert ast.unparse(node.args) == ast.unparse(written[verb].args), verb
        assert ast.unparse(node.returns) == ast.unparse(written[verb].returns).replace("AnyPosterior", "Self")


def test_the_stub_of_the_package_has_its_names():
    imports = [
        node for node in ast.parse((PACKAGE / "__init__.pyi").read_text()).body
        if isinstance(node, ast.ImportFrom)
    ]  # fmt: skip
    names = {(node.module, name.name) for node in imports for name in node.names}
    assert all(name.asname == name.name for node in imports for name in node.names)
    homes = {(home, name) for name, home in ppl_dgp._HOME_OF.items()}
    assert names == homes | {("ppl_dgp", room) for room in ppl_dgp._ROOMS}
    for name in ppl_dgp.__all__:
        assert getattr(ppl_dgp, name) is not None
    assert ppl_dgp.kernels.Linear is not ppl_dgp.gp.means.Linear
    with pytest.raises(AttributeError, match="no attribute 'predicted'"):
        ppl_dgp.predicted  # noqa: B018


def test_importing_the_package_costs_next_to_nothing():
    program = "import sys, ppl_dgp; assert not {'jax', 'numpy', 'pandas'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_picture_of_a_fit_needs_neither_tables_nor_distributions():
    """They take a second of the first one."""
    program = (
        "import sys; from ppl_dgp import Conditional, Guide, PowerEP, deep_gp, fit_svi, plot_fit, save_figure; "
        "found = {'pandas', 'scipy.stats'} & sys.modules.keys(); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_sums_that_are_not_asked_for_import_no_funsor():
    """It takes seconds."""
    program = "import sys; from ppl_dgp import PowerEP, fit_svi, responsibilities; assert 'funsor' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_verb_is_the_function_with_the_fit_in_its_place(fit):
    prediction = fit.predict(KEY, NEW, num_samples=3, levels=(0.5,))
    np.testing.assert_array_equal(
        prediction.quantiles, predict(KEY, fit, NEW, num_samples=3, levels=(0.5,)).quantiles
    )
    by_hand = Posterior(fit.model, fit.guide, fit.params).predict(KEY, x=NEW, num_samples=3)
    np.testing.assert_array_equal(by_hand.mean, prediction.mean)
    assert "fit" not in inspect.signature(fit.predict).parameters
    assert fit.predict.__doc__ == predict.__doc__


def test_it_prints_in_a_few_lines(fit, exact):
    lines = repr(fit).splitlines()
    assert len(lines) <= 7 and max(map(len, lines)) <= 110
    assert "Guide(inducing=LowRank(rank=2))" in repr(fit)
    assert "PowerEP(alpha=0.5, num_particles=3)" in repr(fit)
    assert "5 in" in repr(fit) and "best of 2 restarts" in repr(fit)
    assert f"{fit.losses[fit.best, -1]:.6g}" in repr(fit)
    model = deep_gp((1,), 4)
    text = repr(Posterior(model, Guide(model, hidden=MeanField()), fit.params))
    assert "hidden=MeanField()" in text and len(text) < 600


@pytest.mark.slow
def test_the_summary_has_the_hyperparameters_layer_by_layer():
    model = deep_gp((2,), 4, kernel=RBF)
    guide = Guide(model, hidden=Conditional())
    fitted = fit_svi(KEY, model, guide, PowerEP(0.0), X, Y, steps=1)
    table = fitted.summary()["value"]
    layers = set(table.index.get_level_values("layer"))
    assert layers == {"layer1", "layer2", "likelihood", "training"}
    np.testing.assert_array_equal(
        table["layer2", "lengthscale"].to_numpy(), fitted.params["layer2/lengthscale"]
    )
    assert table["likelihood", "noise", ""] == float(fitted.params["likelihood/noise"])
    parameters = set(table.index.get_level_values("parameter"))
    assert not any(name.startswith(("u_", "h_", "inducing")) for name in parameters)
    pd_table = summary(Posterior(model, guide, fitted.params))
    assert pd_table["value"].equals(table.drop("training", level="layer"))
    assert "too few" in fitted.summary().attrs["convergence"]


def assert_same(found: Fit, fit: Fit) -> None:
    for field in dataclasses.fields(fit):
        if field.name not in ("model", "guide", "objective"):
            values = jax.tree.leaves(getattr(found, field.name)), jax.tree.leaves(getattr(fit, field.name))
            for one, other in zip(*values, strict=True):
                np.testing.assert_array_equal(one, other)
                assert type(one) is type(other)


def test_a_saved_fit_is_read_back_with_its_rules_and_objective(fit, tmp_path):
    fit.save(tmp_path / "fit.safetensors")
    found = Fit.load(tmp_path / "fit.safetensors", model=own_model)
    assert_same(found, fit)
    assert found.model is own_model and found.guide == fit.guide and found.objective == fit.objective
    moved = dataclasses.replace(fit, params={name: value + 0.1 for name, value in fit.params.items()})
    moved.save(tmp_path / "fit.safetensors")
    assert_same(Fit.load(tmp_path / "fit.safetensors", model=own_model), moved)
    assert [path.name for path in tmp_path.iterdir()] == ["fit.safetensors"]


def test_in_a_new_process_predictions_are_the_same_to_the_digit(fit, exact, tmp_path):
    (tmp_path / "own.py").write_text(OWN_MODEL)
    fit.save(tmp_path / "fit.safetensors")
    exact.save(tmp_path / "exact.safetensors")
    program = """
import jax, numpy as np, numpyro
numpyro.enable_x64()
import own
from ppl_dgp.fit.result import Fit
from ppl_dgp.models.gp_regression import exact_gp_regression
x = np.linspace(-2.0, 2.0, 5)[:, None]
for name, model in ("fit", own.model), ("exact", exact_gp_regression()):
    fit = Fit.load(f"{name}.safetensors", model=model)
    prediction = fit.predict(jax.random.key(3), x, num_samples=3, samples=True)
    print(prediction.mean.tobytes().hex(), prediction.samples.tobytes().hex())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    for line, fitted in zip(done.stdout.splitlines(), (fit, exact), strict=True):
        prediction = fitted.predict(KEY, NEW, num_samples=3, samples=True)
        assert line.split() == [prediction.mean.tobytes().hex(), prediction.samples.tobytes().hex()]


SETTINGS = [
    MeanField(full=True),
    Conditional(tied=True),
    Conditional(markov=True),
    Conditional(free=True),
    Amortised((4, 3), MeanField(), missing="mask", around=2),
    AcrossOutputs(),
    FullRank(),
    PowerEP(0.25, 4, "moments"),
    BlackBoxAlpha(1.0),
    ImportanceWeighted(5, 0.5, doubly_reparameterised=True),
    StudentT(jnp.array(0.3), jnp.array(4.0)),
    Bernoulli(link="logit"),
    RBF(jnp.array(2.0), jnp.array([0.1, 0.7]), active_dims=(0, 2)) + RBF(1.0, jnp.ones(1)),
    RBF,
    (1, 2.5, float("inf"), None, "text", [True, {"a": np.arange(3)}]),
]


@pytest.mark.parametrize("value", SETTINGS, ids=lambda value: type(value).__name__)
def test_settings_come_back_as_they_were(value):
    encoder = Encoder()
    form = json.loads(json.dumps(encoder(value, "here"), allow_nan=False))
    found = Decoder(encoder.arrays)(form)
    assert type(found) is type(value)
    # no part lost: written again they are the same
    again = Encoder()
    assert json.loads(json.dumps(again(found, "here"))) == form
    assert again.arrays.keys() == encoder.arrays.keys()
    for name, array in encoder.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    if not isinstance(value, StudentT | Sum | tuple):
        assert found == value


def test_an_objective_in_closed_form_keeps_its_blocks():
    encoder = Encoder()
    objective = Collapsed(jnp.array([0.1, 0.9]), np.array([0, 1, 1]), correction=False)
    found = Decoder(encoder.arrays)(encoder(objective, "objective"))
    assert repr(found) == repr(objective)
    np.testing.assert_array_equal(found.factors.alpha, objective.factors.alpha)
    np.testing.assert_array_equal(found.factors.blocks, objective.factors.blocks)


def test_what_is_not_of_this_package_is_refused():
    encoder = Encoder()

    def closure(x):
        return x

    closure.__module__ = "ppl_dgp.models"
    for value, match in (
        (own_model, "which is not of ppl_dgp"),
        (partial(int), "found functools.partial"),
        (int, "found builtins.int"),
        (closure, "which no name leads to"),
        (Path("a"), "which is not of ppl_dgp"),
        (jax.random.key(0), "found a random key"),
        ({1: 2}, "found the key 1"),
    ):
        with pytest.raises(EncodingError, match=match):
            encoder(value, "place")
    for form, match in (
        ({"name": "os:system"}, "outside ppl_dgp"),
        # to import it would run the command line
        ({"name": "ppl_dgp.cli.__main__:main"}, "outside ppl_dgp"),
        ({"type": "subprocess:Popen", "arguments": {"args": "ls"}}, "outside ppl_dgp"),
        ({"name": "ppl_dgp.fit.files:os"}, "no class or function of ppl_dgp"),
        ({"name": "ppl_dgp.guides:NoRule"}, "found no such name"),
        ({"type": "MeanField", "arguments": {"colour": 1}}, r"settings \['colour'\]"),
        ({"type": "fit_svi", "arguments": {}}, "expected a class"),
        ({"numpy": "absent"}, "expected the form of a value"),
        ({"given": "model"}, "pass model="),
    ):
        with pytest.raises(EncodingError, match=match):
            Decoder({})(form)


def header_of(path: Path) -> dict:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(json.loads(content[8 : 8 + size])["__metadata__"][files.ENTRY])


def rewritten(path: Path, header: dict) -> None:
    path.write_bytes(with_arrays(arrays_of(path.read_bytes()), metadata={files.ENTRY: json.dumps(header)}))


def test_what_cannot_be_read_is_said_in_one_line(fit, tmp_path):
    path = tmp_path / "fit.safetensors"
    with pytest.raises(checkpoint.CheckpointError, match="check the path"):
        Fit.load(path)
    fit.save(path)
    with pytest.raises(checkpoint.CheckpointError, match=r"holds no model \(.*\); pass model= to Fit.load"):
        Fit.load(path)
    scheduled = PowerEP(lambda step: 0.5)
    dataclasses.replace(fit, objective=scheduled).save(tmp_path / "scheduled")
    with pytest.raises(checkpoint.CheckpointError, match="holds no objective"):
        Fit.load(tmp_path / "scheduled", model=own_model)
    found = Fit.load(tmp_path / "scheduled", model=own_model, objective=scheduled)
    assert found.objective is scheduled
    header = header_of(path)
    rewritten(path, header | {"format": 99})
    with pytest.raises(checkpoint.CheckpointError, match="found format 99, expected 1"):
        Fit.load(path, model=own_model)
    rewritten(path, header | {"type": "Guide"})
    with pytest.raises(checkpoint.CheckpointError, match="expected a Fit"):
        Fit.load(path, model=own_model)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(checkpoint.CheckpointError, match="found a directory, .* `ppl-dgp predict`"):
        Fit.load(tmp_path)
    with pytest.raises(checkpoint.CheckpointError, match="found no fit"):
        Fit.load(path, model=own_model)


def test_a_file_is_complete_or_the_former_one(fit, tmp_path, monkeypatch):
    path = tmp_path / "fit.safetensors"
    fit.save(path)
    before = path.read_bytes()

    def broken(*_args):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "replace", broken)
        with pytest.raises(OSError, match="disk full"):
            dataclasses.replace(fit, steps=7).save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_file_of_an_earlier_format_is_brought_to_this_one(fit, tmp_path, monkeypatch):
    """As if format 0 had called the seconds by another name, and the format before it had counted milliseconds."""
    path = tmp_path / "fit.safetensors"
    fit.save(path)
    header = header_of(path)
    fields = dict(header["fields"])
    fields["clock"] = 1000.0 * fields.pop("seconds")
    rewritten(path, header | {"format": -1, "fields": fields})
    with pytest.raises(checkpoint.CheckpointError, match="found format -1"):
        Fit.load(path, model=own_model)

    def to_seconds(header):
        changed = header["fields"] | {"clock": header["fields"]["clock"] / 1000.0}
        return header | {"format": 0, "fields": changed}

    def renamed(header):
        changed = dict(header["fields"])
        changed["seconds"] = changed.pop("clock")
        return header | {"format": 1, "fields": changed}

    monkeypatch.setattr(files, "MIGRATIONS", {-1: to_seconds, 0: renamed})
    found = Fit.load(path, model=own_model)
    assert found.seconds == pytest.approx(fit.seconds, rel=1e-12)
    np.testing.assert_array_equal(found.losses, fit.losses)


def test_the_file_of_format_1_that_is_kept_is_still_read():
    found = Fit.load(Path(__file__).parent / "fit_format_1.safetensors", model=own_model)
    assert found.guide == Guide(own_model, inducing=LowRank(2)) and found.objective == PowerEP(0.5, 3)
    assert found.steps == 5 and found.losses.shape == (2, 5)
    moments = found.predict(KEY, NEW, num_samples=1)
    mean = [
        -0.17073812594425194,
        -0.2897759850141621,
        0.14884230420215633,
        0.2746018180594722,
        0.18606995514615934,
    ]
    np.testing.assert_allclose(moments.mean[:, 0], mean, rtol=1e-9)


@pytest.mark.slow
def test_an_exact_gp_predicts_what_scikit_learn_predicts(exact):
    variance, lengthscale = float(exact.params["gp/variance"]), exact.params["gp/lengthscale"]
    noise = float(exact.params["likelihood/noise"])
    kernel = peer.ConstantKernel(variance, "fixed") * peer.RBF(np.asarray(lengthscale), "fixed")
    other = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(X, Y)
    mean, covariance = other.predict(NEW, return_cov=True)
    y_new = np.cos(NEW)
    prediction = exact.predict(KEY, NEW, y_new, levels=(0.1, 0.5), batch_size=2)
    np.testing.assert_allclose(prediction.mean[:, 0], mean.ravel(), atol=1e-8)
    np.testing.assert_allclose(prediction.f_variance[:, 0], np.diag(covariance), atol=1e-8)
    np.testing.assert_allclose(prediction.variance, prediction.f_variance + noise, rtol=1e-12)
    np.testing.assert_allclose(prediction.quantiles[1], prediction.mean, atol=1e-12)
    deviation = np.sqrt(prediction.variance[:, 0])
    expected = [
        multivariate_normal.logpdf(value, at, scale**2)
        for value, at, scale in zip(y_new[:, 0], mean.ravel(), deviation, strict=True)
    ]
    np.testing.assert_allclose(prediction.log_density, expected, rtol=1e-7)
    centre, joint = exact.joint_prediction(KEY, NEW)
    np.testing.assert_allclose(joint[0], covariance, atol=1e-8)
    draws = exact.sample_functions(KEY, NEW, 20_000)[..., 0]
    error = np.sqrt(np.diag(covariance) / 20_000)
    assert (abs(draws.mean(0) - centre[:, 0]) < 4 * error + 1e-6).all()
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.05 * covariance.max())
    samples = exact.predict(KEY, NEW, samples=True, num_samples=20_000).samples[..., 0]
    np.testing.assert_allclose(samples.std(0), deviation, rtol=0.03)
    assert energy(KEY, exact, X, Y) == pytest.approx(other.log_marginal_likelihood(), rel=1e-9)


def test_an_exact_gp_wants_its_training_rows(exact, fit):
    alone = Posterior(exact.model, no_latents, exact.params)
    with pytest.raises(ValueError, match="found no training rows"):
        alone.predict(KEY, NEW)
    given = Posterior(exact.model, no_latents, exact.params, data=(jnp.asarray(X), jnp.asarray(Y[:, 0])))
    np.testing.assert_array_equal(given.predict(KEY, NEW).mean, exact.predict(KEY, NEW).mean)
    with pytest.raises(TypeError, match="expected exact_gp_regression"):
        Posterior(own_model, no_latents, fit.params, data=given.data).predict(KEY, NEW)
    # it would go on at the values that learning starts from
    with pytest.raises(ValueError, match="found no 'gp.*', which the program has"):
        Posterior(exact.model, no_latents, {}, data=given.data).predict(KEY, NEW)


@pytest.mark.slow
def test_the_energy_is_minus_the_loss_and_has_an_optimal_q_of_u():
    """Titsias' bound: at the optimal q(u) the uncollapsed bound equals it, below it elsewhere."""
    model = sparse_gp_regression(5)
    guide = Guide(model)
    fitted = fit_svi(KEY, model, guide, PowerEP(0.0), X, Y, steps=3)
    rows = jnp.asarray(X), jnp.asarray(Y)
    loss = PowerEP(0.0).loss(KEY, fitted.params, model, guide, *rows)
    assert fitted.energy(KEY, X, Y) == pytest.approx(-float(loss), rel=1e-12)
    bound = fitted.energy(KEY, X, Y[:, 0], objective=Collapsed())
    best = fitted.optimal_inducing(X, Y)
    assert isinstance(best, Fit) and best.steps == fitted.steps
    assert best.energy(KEY, X, Y) == pytest.approx(bound, rel=1e-7)
    assert fitted.energy(KEY, X, Y) < bound - 0.1
    assert best.params["gp/inducing"] is fitted.params["gp/inducing"]
    posterior = Posterior(model, guide, fitted.params)
    half = optimal_inducing(posterior, X, Y, objective=Collapsed(0.5))
    assert half.energy(KEY, X, Y, objective=PowerEP(0.5, 1)) == pytest.approx(
        posterior.energy(KEY, X, Y, objective=Collapsed(0.5)), rel=1e-7
    )
    with pytest.raises(ValueError, match="objective: found none"):
        posterior.energy(KEY, X, Y)
    with pytest.raises(ValueError, match="found no parameters …/u_loc"):
        Posterior(exact_gp_regression(), no_latents, {}).optimal_inducing(X, Y)


@pytest.mark.slow
def test_fits_are_compared_by_the_measures_of_compare(fit):
    guide = Guide(own_model)
    full = fit_svi(KEY, own_model, guide, PowerEP(0.0), X, Y, steps=5)
    settings = dict(num_draws=30, num_locals=2, num_samples=5)
    found = fit.compare(KEY, X, Y, {"full": full}, NEW, np.sin(2 * NEW), **settings)
    assert list(found.table["fit"]) == ["this fit", "full"] and list(found.table["alpha"]) == [0.5, 0.0]
    assert found.fits["full", 0.0] is full and found.table.notna().all(axis=None)
    key_elbo = jax.random.split(jax.random.split(KEY)[0])[0]
    value, _ = elbo(key_elbo, full, X, Y, num_draws=30)
    assert found.table["elbo"][1] == pytest.approx(value, rel=1e-12)
    with pytest.raises(ValueError, match="for two fits"):
        compare_fits(KEY, fit, X, Y, {"this fit": full})


def test_defaults_are_the_same_in_python_in_estimators_and_on_the_command_line():
    guide = Guide(own_model)
    settings = Settings()
    for hidden in (settings.hidden, DeepGPRegressor().hidden, DeepGPClassifier().hidden):
        assert HIDDEN_RULES[hidden] == guide.hidden
    for source in (settings, SparseGPRegressor(), DeepGPRegressor(), SparseGPClassifier()):
        assert INDUCING_RULES[source.inducing_rule] == guide.inducing
        assert OBJECTIVES[source.objective](source.alpha) == PowerEP()


@pytest.mark.slow
def test_estimators_take_instances_where_they_take_names():
    x = np.linspace(-1.0, 1.0, 12)[:, None]
    settings = dict(num_inducing=3, steps=2, random_state=0, widths=(1,))
    named = DeepGPRegressor(hidden="conditional", inducing_rule="diagonal", alpha=0.5, **settings)
    given = DeepGPRegressor(
        hidden=Conditional(), inducing_rule=Diagonal(), objective=PowerEP(0.5), **settings
    )
    np.testing.assert_array_equal(
        named.fit(x, x[:, 0] ** 2).predict(x), given.fit(x, x[:, 0] ** 2).predict(x)
    )
    with pytest.raises(ValueError, match="hidden: found 'none'"):
        DeepGPRegressor(hidden="none", **settings).fit(x, x[:, 0])

"""What a GPU would run, without one: programs are lowered for CUDA, and call nothing but its libraries.

Numbers need a GPU; that no operation lacks an implementation there, and that no step asks the host, does not.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from fast import few
from numpyro.infer import SVI, Trace_ELBO

from ppl_dgp.fit import program
from ppl_dgp.fit.full_batch import no_latents
from ppl_dgp.guides import (
    Amortised,
    Conditional,
    DoublyStochastic,
    Guide,
    Markov,
    MeanField,
    MomentMatched,
    Optimal,
)
from ppl_dgp.models import (
    conditioned_gplvm,
    deep_gp,
    deep_gp_classification,
    deep_gplvm,
    deep_heteroscedastic_gp,
    dynamical_gplvm,
    exact_gp_regression,
    gp_narx,
    gplvm,
    gpssm,
    latent_input_gp,
    linear_gaussian_ssm,
    mixture_of_experts_gp,
    mixture_of_functions,
    shared_gplvm,
    sparse_gp_classification,
    sparse_gp_regression,
    sparse_heteroscedastic_gp,
    switching_gpssm,
)
from ppl_dgp.objectives import ApproximatePowerEP, BlackBoxAlpha, Collapsed, ImportanceWeighted, PowerEP

KEY = jax.random.PRNGKey(0)
X = np.random.default_rng(0).normal(size=(24, 2))
Y = np.sin(2.0 * X) + 0.1
LABELS = (Y[:, :1] > 0.0).astype(np.int32)
NONE = np.zeros((24, 0))
MOMENTS = PowerEP(0.0, propagation="moments")


def of(model, objective, x=X, y=Y[:, :1], **rules):
    return model, Guide(model, **rules), objective, x, y


#: model, guide, objective and data; after them whether minibatches are drawn
ZOO = {
    "sparse_gp_regression": lambda: (*of(sparse_gp_regression(5), PowerEP(0.5)), True),
    "deep_gp": lambda: (*of(deep_gp((2,), 5), PowerEP(0.5), hidden=Conditional()), True),
    "deep_gp, approximate": lambda: (
        *of(deep_gp((2,), 5), ApproximatePowerEP(0.5), hidden=MeanField()),
        False,
    ),
    "deep_gp, moments": lambda: (*of(deep_gp((2,), 5), MOMENTS, hidden=MomentMatched()), True),
    "deep_gp, weighted": lambda: (
        *of(deep_gp((2,), 5), ImportanceWeighted(4), hidden=DoublyStochastic()),
        True,
    ),
    "deep_gp, amortised": lambda: (*of(deep_gp((2,), 5), BlackBoxAlpha(0.5), hidden=Amortised()), True),
    "exact_gp_regression": lambda: (exact_gp_regression(), no_latents, Trace_ELBO(), X, Y[:, :1], False),
    "sparse_gp_classification": lambda: (*of(sparse_gp_classification(2, 5), PowerEP(0.5), y=LABELS), True),
    "deep_gp_classification": lambda: (*of(deep_gp_classification(3, (2,), 5), PowerEP(0.0), y=LABELS), True),
    "sparse_heteroscedastic_gp": lambda: (*of(sparse_heteroscedastic_gp(5), PowerEP(0.5)), True),
    "deep_heteroscedastic_gp": lambda: (*of(deep_heteroscedastic_gp((2,), 5), PowerEP(0.0)), True),
    "mixture_of_functions": lambda: (*of(mixture_of_functions(2, 5), PowerEP(0.5)), True),
    "mixture_of_experts_gp": lambda: (*of(mixture_of_experts_gp(2, 5), PowerEP(0.5)), True),
    "latent_input_gp": lambda: (*of(latent_input_gp(1, (), 5), PowerEP(0.0)), True),
    "gplvm": lambda: (
        *of(gplvm(2, 1, 5), Collapsed(), NONE, Y, hidden=MeanField(), inducing=Optimal()),
        False,
    ),
    "deep_gplvm": lambda: (*of(deep_gplvm(2, 1, (2,), 5), PowerEP(0.0), NONE, Y), True),
    "conditioned_gplvm": lambda: (
        *of(conditioned_gplvm(2, 1, 5, prior_inducing=4), PowerEP(0.0), X, Y),
        True,
    ),
    "dynamical_gplvm": lambda: (*of(dynamical_gplvm(2, 1, 5, times=6), PowerEP(0.0), X[:, :1], Y), True),
    "shared_gplvm": lambda: (*of(shared_gplvm((1, 1), 1, 5), PowerEP(0.0), NONE, Y), True),
    "gpssm": lambda: (*of(gpssm(2, 2, 5), PowerEP(0.5), X, Y, hidden=Markov()), False),
    "gp_narx": lambda: (*of(gp_narx(2, 5), PowerEP(0.5), X, Y), False),
    "linear_gaussian_ssm": lambda: (linear_gaussian_ssm(2), no_latents, Trace_ELBO(), X, Y, False),
    "switching_gpssm": lambda: (*of(switching_gpssm(2, 2, 2, 5), PowerEP(0.0), X, Y, hidden=Markov()), False),
}
FAST = ("deep_gp", "gplvm")


def lowered(model, guide, objective, x, y, minibatches, dtype):
    """A chunk of steps for CUDA, in StableHLO."""
    with jax.enable_x64(dtype == "float64"):
        x, y = (jnp.asarray(each, dtype if each.dtype == float else None) for each in (x, y))
        svi = SVI(model, guide, numpyro.optim.Adam(0.01), objective)
        state = jax.eval_shape(lambda: svi.init(KEY, x, y))
        run = program.build_chunk(svi, minibatches, 10, 1)
        about = jax.ShapeDtypeStruct((10, 8), jnp.int32), 0, 10
        return run.trace(state, x, y, *about).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("dtype", few(["float64", "float32"], 1))
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in ZOO]
)
def test_steps_of_every_model_are_made_for_cuda(name, dtype):
    text = lowered(*ZOO[name](), dtype)
    called = set(re.findall(r"custom_call @([\w.]+)", text))
    assert all(each.startswith(("cusolver", "cublas", "cu_")) for each in called), called
    assert not re.search("callback|infeed|outfeed", text)
    # of 32 bits: a GPU would round factors to 10 of 23 bits
    products = [line for line in text.splitlines() if "dot_general" in line and "f32" in line]
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)
    assert bool(products) == (dtype == "float32")
    # what is to be computed in 32 bits is: only expectations of kernels are widened
    assert ("f64" in text) == (dtype == "float64" or name in WIDENED)


@pytest.mark.parametrize("asked", [None, "tensorfloat32"])
def test_a_users_own_program_multiplies_in_full_unless_it_asks_otherwise(asked):
    """Within the objective; what is set for JAX stands, and is not touched."""
    model, guide, objective, x, y = of(deep_gp((2,), 5), PowerEP(0.5))
    with jax.enable_x64(False), jax.default_matmul_precision(asked):
        x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
        svi = SVI(model, guide, numpyro.optim.Adam(0.01), objective)
        state = svi.init(KEY, x, y)
        text = jax.jit(svi.update).trace(state, x, y).lower(lowering_platforms=("cuda",)).as_text()
        assert jax.default_matmul_precision.value == asked
    found = set(re.findall(r"precision = \[(\w+), \w+\]", text))
    # some products ask for it by themselves
    assert found == ({"HIGHEST"} if asked is None else {"HIGHEST", "HIGH"})


#: bounds and moments of uncertain inputs
WIDENED = ("gplvm", "deep_gp, moments")

"""A mixture of experts behind a gate that is a GP: its bound by quadrature, and what it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import initial, noise_like, on_host
from scipy.special import log_softmax, logsumexp
from test_discrete_layers import SHARP, gp, tempered

from ppl_dgp.fit import fit_svi
from ppl_dgp.guides import Guide
from ppl_dgp.models import mixture_of_experts_gp, sparse_gp_regression
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.predict import predict
from ppl_dgp.prediction.responsibilities import responsibilities

KEY = jax.random.PRNGKey(4)
X = np.array([[-0.7], [0.2], [0.8]])
Y = np.array([[0.4], [-0.3], [1.0]])


def test_its_objective_is_the_definition_by_quadrature():
    """E_q(h) (Σ_z softmax(h)_z exp t_α(z))^α, both entries of h by Gauss-Hermite nodes."""
    alpha, program = 0.5, mixture_of_experts_gp(2, 3)
    guide = Guide(program)
    params = on_host(initial(KEY, program, guide, jnp.asarray(X), jnp.asarray(Y)))
    kl = 0.0
    for number, name in enumerate(("gp", "gate")):
        params[f"{name}/u_scale"] = SHARP * np.broadcast_to(np.eye(3), (2, 3, 3))
        params[f"{name}/u_loc"] = 0.8 * noise_like(params[f"{name}/u_loc"], number)
        kl += 3 * SHARP**2 - 3 - 6 * np.log(SHARP) + 0.5 * np.square(params[f"{name}/u_loc"]).sum()

    def marginal(name):
        about = [params[f"{name}/{part}"] for part in ("variance", "lengthscale", "inducing", "u_loc")]
        return gp(float(about[0]), float(about[1][0]), about[2], about[3], X[:, 0])

    mean, residual = marginal("gp")
    mean = mean + params["gp/offset"]
    gate, spread = marginal("gate")
    deviation = np.sqrt(spread + float(params["gate/noise"]))
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    pairs = np.outer(weights, weights).ravel() / weights.sum() ** 2
    expected = -kl
    for n in range(3):
        grid = np.stack([np.repeat(nodes, 40), np.tile(nodes, 40)], 1)
        log_pi = log_softmax(gate[n] + deviation[n] * grid, axis=1)
        t = tempered(Y[n], mean[n], residual[n], params["likelihood/noise"], alpha)
        expected += logsumexp(alpha * logsumexp(log_pi + t, axis=1), b=pairs) / alpha
    given = {name: jnp.asarray(value) for name, value in params.items()}
    run = lambda key: -PowerEP(alpha, 3000).loss(key, given, program, guide, jnp.asarray(X), jnp.asarray(Y))
    values = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(KEY, 8)))
    assert values.mean() == pytest.approx(float(expected), abs=5.0 * values.std() / 8**0.5 + 2e-3)


@pytest.mark.slow
def test_it_finds_where_each_expert_is_to_be_found():
    """Calm on the left, loud on the right: densities beat those of one noise, and rows are told apart."""
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(-2.0, 2.0, (150, 1)), 0)
    calm = x[:, 0] < 0.3
    y = np.where(calm, np.sin(2.0 * x[:, 0]), 1.0)[:, None] + np.where(calm, 0.05, 0.6)[
        :, None
    ] * random.normal(size=(150, 1))
    program = mixture_of_experts_gp(2, 12)
    fit = fit_svi(KEY, program, Guide(program), PowerEP(0.5), x, y, steps=1500, learning_rate=0.03)
    shares = responsibilities(KEY, fit, x, y)["z"]
    first = shares[calm].mean(0).argmax()
    assert shares[calm & (x[:, 0] < 0.0), first].mean() > 0.9
    assert shares[x[:, 0] > 0.6, first].mean() < 0.2
    plain = sparse_gp_regression(12)
    one = fit_svi(KEY, plain, Guide(plain), PowerEP(0.5), x, y, steps=1500, learning_rate=0.03)
    new = np.linspace(-1.9, 1.9, 60)[:, None]
    left = new[:, 0] < 0.3
    at = np.where(left, np.sin(2.0 * new[:, 0]), 1.0)[:, None]
    density = [predict(KEY, each, new, at).log_density[left].mean() for each in (fit, one)]
    assert density[0] > density[1] + 0.5

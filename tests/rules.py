"""The rules for hidden variables by name, and a small deep GP of six rows that they are tried on."""

import jax.numpy as jnp

from ppl_dgp.guides import Conditional, DoublyStochastic, Markov, MeanField
from ppl_dgp.models import deep_gp

RULES = {
    "mean-field": MeanField(),
    "markov": Markov(),
    "coupled": Conditional(),
    "tied": Conditional(tied=True),
    "free": Conditional(free=True),
    "doubly-stochastic": DoublyStochastic(),
}
X = jnp.linspace(-1.5, 1.5, 6)[:, None] * jnp.array([[1.0, -0.5]])
Y = jnp.sin(2 * X[:, :1])
MODEL = deep_gp((2, 1), 3, inner_noise=0.05)

"""Amortised rules: what a rule keeps for every datum comes from a network of that datum, as many weights for any N.

A rule declares its per-datum parameters through ``numpyro.param``; here these calls are answered by the network's
outputs. With T the bijection onto a parameter's constraint, p_n(θ) where the rule itself would start it (the model's
own mean, noise, weights) and d_n = (x_n, y_n),

    parameter_n = T(g ⊙ T⁻¹(p_n(θ)) + W φ(d_n) + b),    g = 1, W = 0, b = 0 at the start,

so that the guide begins as the rule begins, and follows the model while it is trained. With g = 0 it is the rule with
parameters of the datum alone (docs/design.md, 4). The features φ(d) are d itself beside the outputs of the network.
Sources: Dai et al., "Variational auto-encoded deep Gaussian processes", ICLR 2016 (a recognition model of the hidden
layers); Rezende, Mohamed and Wierstra, ICML 2014.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import biject_to, constraints
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import Parameters, Propagation
from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.network_modules import initial_value, is_module, of_rows
from ppl_dgp.guides.conditional import CoupledConditional
from ppl_dgp.guides.dependence import DependsOn
from ppl_dgp.guides.latents import Latent, LatentRule
from ppl_dgp.guides.linear_conditional import LinearConditional
from ppl_dgp.guides.rule import HiddenRule
from ppl_dgp.numerics.compatibility import is_traced
from ppl_dgp.numerics.power_mean import Alpha


@dataclass(frozen=True)
class Amortised(HiddenRule):
    """``base`` with its per-datum parameters from a network of the datum: O(1) parameters in N, and new rows (x, y)
    have their q(h) at once.

    Every hidden layer has its own network, its weights the parameters ``layer1/h_net/…``. Data are taken as they are:
    standardise them. Where h is drawn, p_n follows the draw of the preceding layer, and that of u where u is drawn;
    where it is carried as moments, their mean.

    :param net: widths of tanh layers, () for a network that is linear in the datum; or an equinox or flax module, or a
        function of the input dimension that returns one. A module's outputs are features: their number is free. Input
        dimension: D + P, twice that with ``missing="mask"``.
    :param base: the rule whose parameters are amortised.
    :param missing: "mask" where data have missing entries, NaN: these become 0, and the network is also given which
        entries are there, 1 or 0 for each.
    :param around: along a trajectory, how many rows before and after its own the network of each step sees too, 0 where
        the sequence ends: a smoothing network (Eleftheriadis et al. 2017), and of x_0 the recognition model of Doerr et
        al. (2018).
    :raises TypeError: if ``base`` is no rule, or ``net`` none of the above.
    :raises ValueError: for a width below 1 or another ``missing``; when the guide runs without y, or if ``base`` has no
        parameters of its own.
    """

    net: Any = (32, 32)
    base: HiddenRule = CoupledConditional()
    missing: str | None = None
    around: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.base, HiddenRule):
            raise TypeError(f"base: found {self.base!r}, expected a rule such as MeanField()")
        if not isinstance(self.around, int) or self.around < 0:
            raise ValueError(f"around: found {self.around!r}, expected a whole number of rows, 0 or more")
        if self.missing not in (None, "mask"):
            raise ValueError(f"missing: found {self.missing!r}, expected 'mask' or None")
        if isinstance(self.net, list):
            object.__setattr__(self, "net", tuple(self.net))
        if isinstance(self.net, tuple):
            for width in self.net:
                if not isinstance(width, int) or width < 1:
                    raise ValueError(
                        f"net: found {width!r} among its widths, expected whole numbers of at least 1"
                    )
        elif not is_module(self.net) and not callable(self.net):
            raise TypeError(_not_a_network(self.net))
        if self.base.depends_on.on_model:
            raise ValueError(_nothing_to_amortise(self.base))

    @property
    def depends_on(self) -> DependsOn:  # type: ignore[override]
        """What q of the base depends on."""
        return self.base.depends_on

    @property
    def propagation(self) -> Propagation:  # type: ignore[override]
        """How the base wants h carried."""
        return self.base.propagation

    @property
    def definition(self) -> HiddenRule:
        return self.base.definition

    @property
    def latent(self) -> LatentRule:
        return _AmortisedLatent(self)

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        rows = step.marginal.mean.shape[0]
        return self.answered(name, rows, datum, lambda data: self.base.declare(name, rows, step, data))

    def linear(self, params: Parameters, step: Emission) -> LinearConditional:
        return self.base.linear(params, step)

    def conditional(self, params: Parameters, step: Emission) -> dist.Distribution:
        return self.base.conditional(params, step)

    def log_weight(self, params: Parameters, step: Emission, value: Array, alpha: Alpha) -> Float[Array, "B"]:
        return self.base.log_weight(params, step, value, alpha)

    def answered(
        self, name: str, rows: int, datum: Array | None, declare: Callable[[Array], Parameters]
    ) -> Parameters:
        """What ``declare`` makes, its per-datum parameters from the network.

        It is asked for as many rows as are at hand, so that each starts where the rule starts it.

        :param rows: B, those at hand.
        """
        if datum is None:
            raise ValueError(
                f"Amortised: found no y beside x for {name!r}, and q(h) is a function of both; call the guide with "
                "(x, y). New rows without y are predicted with the model's own conditionals: use predict()"
            )
        if datum.shape[0] != rows:
            # the model's plate draws the rows itself, out of all
            datum = numpyro.subsample(datum, event_dim=1)
        if not self.missing and not is_traced(datum) and np.isnan(np.asarray(datum)).any():
            raise ValueError(
                "Amortised: found missing entries, NaN, in the data that the network sees; take missing='mask'"
            )
        features = _datum_features(f"{name}_net", self.net, _with_presence(datum) if self.missing else datum)
        answer = _NetworkHeads(f"{name}_net", name, features)
        with answer:
            params = declare(datum)
        if not answer.answered:
            raise ValueError(_nothing_to_amortise(self.base))
        return params


@dataclass(frozen=True)
class _AmortisedLatent(LatentRule):
    """What the base makes of a latent without a GP in front, its parameters from the network."""

    rule: Amortised

    def declare(self, name: str, size: int, latent: Latent, datum: Array | None = None) -> Parameters:
        rows, base = latent.prior.shape()[0], self.rule.base.latent
        return self.rule.answered(name, rows, datum, lambda data: base.declare(name, rows, latent, data))

    def conditional(self, params: Parameters, latent: Latent) -> dist.Distribution:
        return self.rule.base.latent.conditional(params, latent)


def _nothing_to_amortise(base: HiddenRule) -> str:
    return (
        f"base: found {base!r}, which has no parameters of each datum: nothing to amortise; use it as it is, or take "
        "one that has them, such as MeanField() or Conditional()"
    )


def _with_presence(datum: Float[Array, "B K"]) -> Float[Array, "B K2"]:
    """Zeros for missing entries, and beside them which entries are there."""
    there = ~jnp.isnan(datum)
    return jnp.concatenate([jnp.where(there, datum, 0.0), there.astype(datum.dtype)], axis=1)


class _NetworkHeads(Messenger):
    """Answers a rule's per-datum parameters with heads on the features; its calls reach nobody further out."""

    def __init__(self, net: str, site: str, features: Float[Array, "B F"]) -> None:
        super().__init__()
        self.net, self.site, self.features = net, site, features
        self.answered = False

    def process_message(self, msg: dict[str, Any]) -> None:
        # what has no event_dim is no parameter of a datum: a head's own weights, or what the rule shares
        if msg["type"] != "param" or msg["kwargs"].get("event_dim") is None:
            return
        constrain = biject_to(msg["kwargs"].get("constraint", constraints.real))
        start = constrain.inv(initial_value(msg))
        event = start.shape[1:]
        head = f"{self.net}/{msg['name'].removeprefix(self.site).lstrip('_')}"
        gain = numpyro.param(f"{head}/own", jnp.ones(event, start.dtype))
        weight = numpyro.param(f"{head}/weight", jnp.zeros((self.features.shape[1], *event), start.dtype))
        bias = numpyro.param(f"{head}/bias", jnp.zeros(event, start.dtype))
        # T(g ⊙ T⁻¹(p) + W φ + b)
        msg["value"] = constrain(gain * start + jnp.tensordot(self.features, weight, 1) + bias)
        msg["stop"] = self.answered = True


def _datum_features(name: str, net: Any, inputs: Float[Array, "B K"]) -> Float[Array, "B F"]:
    """The inputs, and beside them what the network makes of them."""
    if isinstance(net, tuple):
        if not net:
            return inputs
        return jnp.concatenate([inputs, _perceptron(name, net, inputs)], axis=1)
    if not is_module(net):
        net = net(inputs.shape[1])
        if not is_module(net):
            raise TypeError(_not_a_network(net))
    outputs = of_rows(name, net, inputs)(inputs)
    if jnp.ndim(outputs) != 2 or outputs.shape[0] != inputs.shape[0]:
        raise ValueError(
            f"net: found outputs of shape {jnp.shape(outputs)} for inputs {inputs.shape}, expected "
            f"({inputs.shape[0]}, F); let the module return a vector for each datum"
        )
    return jnp.concatenate([inputs, outputs], axis=1)


def _perceptron(name: str, widths: tuple[int, ...], inputs: Float[Array, "B K"]) -> Float[Array, "B F"]:
    """tanh layers; weights start at N(0, 1/fan-in), biases at 0."""
    for layer, width in enumerate(widths, start=1):
        fan_in, dtype = inputs.shape[1], inputs.dtype

        def start(key: Array, shape: tuple[int, int] = (fan_in, width), dtype: Any = dtype) -> Array:
            return jax.random.normal(key, shape, dtype) / jnp.sqrt(float(shape[0])).astype(dtype)

        weight = numpyro.param(f"{name}/layer{layer}/weight", start)
        bias = numpyro.param(f"{name}/layer{layer}/bias", jnp.zeros(width, dtype))
        inputs = jnp.tanh(inputs @ weight + bias)
    return inputs


def _not_a_network(net: Any) -> str:
    return (
        f"net: found {net!r}, expected widths such as (32, 32), an equinox or flax module, or a function of the "
        "input dimension that returns one"
    )

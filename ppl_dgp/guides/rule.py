"""The contract of rules for hidden variables: what a rule says, and what follows from it.

A rule says what q of one step depends on, its parameters, and its conditional. The representation of u, what cancels
between p and q, the log weight and the closed forms of moments follow. Shapes: N rows, B rows at hand, Q outputs of the
layer. Parameters are declared once for all N rows inside the data plate, which gathers the B rows.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ppl_dgp.gp.contract import Parameters, Propagation
from ppl_dgp.gp.emission import Emission
from ppl_dgp.guides.containment import Containment
from ppl_dgp.guides.dependence import DependsOn
from ppl_dgp.guides.latents import GaussianLatent, LatentRule, PriorLatent
from ppl_dgp.guides.linear_conditional import (
    LinearConditional,
    coupled_log_weight,
    linear_expected_weight,
    linear_moments,
    model_moments,
)
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.power_mean import Alpha


class HiddenRule:
    r"""Rule for hidden variables: one step of q(h), of a layer or of a trajectory.

    A rule of your own says three things: ``depends_on``, what q(h_n) is a function of; ``declare``, its parameters; and
    ``linear`` or ``conditional``, q itself. Weights, moments and the representation of u follow. This one draws h_n
    around c_n f(h_n⁻), where f is the layer's function and c_n is learnt for each row:

    >>> import jax.numpy as jnp
    >>> from ppl_dgp.guides import DependsOn, HiddenRule, LinearConditional, noise_of, per_datum
    >>> from ppl_dgp.numerics.gaussian import Gaussian
    >>> class Shrunk(HiddenRule):
    ...     depends_on = DependsOn.F
    ...     def declare(self, name, size, step, datum=None):
    ...         ones = lambda: jnp.ones_like(step.marginal.mean)
    ...         return {"coupling": per_datum(f"{name}_coupling", ones, size, 1)}
    ...     def linear(self, params, step):
    ...         c, s = params["coupling"], jnp.sqrt(noise_of(step))
    ...         return LinearConditional(noise=Gaussian(jnp.zeros_like(c), s), function=c)

    ``step`` is the model's own conditional of h_n given what came before: ``step.marginal.mean`` and ``.variance`` are
    those of f(h_n⁻), (B, Q), ``step.marginal.inputs`` is h_n⁻, and ``noise_of(step)`` the layer's noise. A rule has no
    state: parameters are made by ``declare`` with :func:`ppl_dgp.guides.per_datum` or ``numpyro.param``, under names
    that begin with ``name``, so that one rule serves all layers. Instances should compare by their settings, as frozen
    dataclasses do.

    Where q is no linear map with Gaussian noise, ``conditional`` gives it as any NumPyro distribution; moments are then
    not known, and h is drawn. A rule that follows f in such a way must also give ``log_weight``, for p and q are ratios
    over (f, h) jointly (docs/design.md, 4): without it the class is refused.

    :raises TypeError: at the definition of a class without ``depends_on``, or whose weight would not be known.
    """

    #: what q(h_n | …) is a function of; every rule says it
    depends_on: DependsOn
    #: how it wants h carried: as draws, or as one of the deterministic propagations
    propagation: Propagation = "draws"
    #: whether the covariance of a row's h is full over its dimensions
    full: bool = False
    #: how many rows before and after its own a network sees
    around: int = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        depends_on = getattr(cls, "depends_on", None)
        if isinstance(depends_on, DependsOn):
            check_definition(cls, depends_on)
        elif not isinstance(depends_on, property):
            raise TypeError(
                f"{cls.__name__}: found depends_on={depends_on!r}, expected what q(h) is a function of; write "
                "depends_on = DependsOn.NOTHING, PREVIOUS, U, F or MODEL in the class"
            )

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        """The rule's ``numpyro.param`` calls, for a layer of ``size`` rows; returns the rows at hand.

        Along a trajectory ``step`` is a :class:`ppl_dgp.state_space.trajectory.Transition` for each of its steps, and
        rules begin around the step's mean whatever came before: the model's own conditional would begin as a walk over
        all steps that the data do not hold. Of a hidden layer whose inputs are data it is a
        :class:`ppl_dgp.gp.emission.FirstLayer`.

        :param name: of the site, with which the parameters' names begin.
        :param size: N, the rows of the whole data set.
        :param datum: what is observed of the rows at hand, (B, D + P): x beside y; only amortised rules look at it.
        """
        if self.depends_on.on_model:
            return {}
        raise NotImplementedError(
            f"{type(self).__name__}: found no declare(), expected the rule's parameters"
        )

    def linear(self, params: Parameters, step: Emission) -> LinearConditional:
        """q as a linear map of what it depends on, with Gaussian noise.

        :raises TypeError: if q is not of this form.
        """
        raise no_closed_form(self)

    def conditional(self, params: Parameters, step: Emission) -> dist.Distribution:
        """q(h_n | what came before), batch (B,), event (Q,); f integrated out, u given where q depends on it.

        By default that of :meth:`linear`, or of ``DependsOn.MODEL`` the model's own step.
        """
        if self.depends_on.on_model:
            return step
        if not is_linear(self):
            raise TypeError(f"{type(self).__name__}: found neither conditional() nor linear(), expected one")
        return closed_form(self, params, step).at(step)

    def log_weight(self, params: Parameters, step: Emission, value: Array, alpha: Alpha) -> Float[Array, "B"]:
        """Log of p/q at the drawn value, tempered, as :attr:`depends_on` has it (docs/design.md, 1.4)."""
        if self.depends_on.on_model:
            return jnp.zeros(value.shape[0], value.dtype)
        if self.depends_on is DependsOn.F:
            return coupled_log_weight(closed_form(self, params, step), step, value, alpha)
        log_weight: Array = step.tempered(value, alpha) - self.conditional(params, step).log_prob(value)
        return log_weight

    def contains(self, other: HiddenRule) -> Containment | None:
        """Where this rule is ``other``, so that it can begin at its optimum; None where it cannot be it."""
        return None

    @property
    def latent(self) -> LatentRule:
        """What the rule makes of latents without a GP in front: independent Gaussians, or the prior."""
        return PriorLatent() if self.depends_on.on_model else GaussianLatent(self.full)

    @property
    def definition(self) -> HiddenRule:
        """The rule that says what q is: itself, or of a rule that wraps another the innermost."""
        return self


def _definer(rule: type[HiddenRule], method: str) -> type:
    """The class that gives a rule its method."""
    return next(base for base in rule.__mro__ if method in vars(base))


def check_definition(rule: type[HiddenRule], depends_on: DependsOn) -> None:
    """Refuse a rule whose weight would not be that of its q.

    :raises TypeError: naming the method that is missing, or too many.
    """
    definers = {method: _definer(rule, method) for method in ("conditional", "linear", "log_weight")}
    overridden = [method for method, definer in definers.items() if definer is not HiddenRule]
    if depends_on.on_model and overridden:
        raise TypeError(
            f"{rule.__name__}: found {', '.join(overridden)} beside depends_on=MODEL, whose q is the model's own "
            "conditional and whose weight is 1; leave it out, or declare what q depends on"
        )
    weighed = "log_weight" in overridden
    if weighed and not all(issubclass(definers["log_weight"], definer) for definer in definers.values()):
        raise TypeError(
            f"{rule.__name__}: found log_weight() of {definers['log_weight'].__name__} beside another q, expected the "
            "weight of the rule's own; give log_weight() too"
        )
    # the closed-form weight is that of linear(), and of no other conditional
    if depends_on is DependsOn.F and not weighed and overridden != ["linear"]:
        raise TypeError(
            f"{rule.__name__}: found depends_on=F and no weight that is that of its q; give linear() and leave "
            "conditional() out, or give log_weight() beside conditional()"
        )
    if {"conditional", "linear"} <= set(overridden):
        # draws would be of one of them, and weights of the other
        raise TypeError(
            f"{rule.__name__}: found conditional() beside linear(), from which it follows; leave conditional() out, or "
            "take a class without linear()"
        )


def is_linear(rule: HiddenRule) -> bool:
    """Whether a rule gives its q as a linear map with Gaussian noise."""
    return _definer(type(rule.definition), "linear") is not HiddenRule


def no_closed_form(rule: HiddenRule) -> TypeError:
    """What is raised where moments of a rule's q are not known."""
    return TypeError(
        f"{type(rule.definition).__name__}: found no closed form of its moments; leave propagation out, so that h is "
        "drawn"
    )


def closed_form(rule: HiddenRule, params: Parameters, step: Emission) -> LinearConditional:
    """The linear map of a rule's q, which is to depend on what the rule says, and on nothing else.

    :raises TypeError: if it does not, or has no such map.
    """
    form, depends_on = rule.linear(params, step), rule.depends_on
    name = type(rule.definition).__name__
    maps = {"previous": form.previous, "inducing": form.inducing, "function": form.function}
    needs = {"previous": DependsOn.PREVIOUS, "inducing": DependsOn.U, "function": DependsOn.F}
    for field, needed in needs.items():
        if maps[field] is not None and depends_on < needed:
            raise TypeError(
                f"{name}: found {field} in linear(), expected none where q depends on {depends_on.name}; declare "
                f"depends_on = DependsOn.{needed.name}"
            )
    if depends_on is DependsOn.F and (form.function is None or form.inducing is not None):
        raise TypeError(
            f"{name}: found linear() {'without function' if form.function is None else 'with inducing'}, expected a "
            "map of f where q depends on F, u integrated out with it; or declare depends_on = DependsOn.U"
        )
    if form.function is not None and not form.noise.diagonal:
        raise TypeError(f"{name}: found noise with full covariances beside f, expected deviations (B, Q)")
    return form


def moments(rule: HiddenRule, params: Parameters, step: Emission, propagation: Propagation) -> Gaussian:
    """Mean and scale of h under q, its inputs and u integrated out.

    :raises TypeError: where they have no closed form.
    """
    if rule.depends_on.on_model:
        return model_moments(step, propagation)
    return linear_moments(_without_function(rule, params, step), step)


def expected_weight(rule: HiddenRule, params: Parameters, step: Emission) -> Float[Array, "B"]:
    """The weight at α = 0 averaged over h, its inputs and u in closed form.

    :raises TypeError: where it has none.
    """
    if rule.depends_on.on_model:
        return jnp.zeros(step.marginal.mean.shape[0], step.marginal.mean.dtype)
    return linear_expected_weight(_without_function(rule, params, step), step)


def _without_function(rule: HiddenRule, params: Parameters, step: Emission) -> LinearConditional:
    """The map of a q whose moments are known: of the states before, or of u, and not of f."""
    form = closed_form(rule, params, step)
    if form.function is not None or (form.inducing is not None and form.previous is not None):
        raise no_closed_form(rule)
    return form


def knows_states(rule: HiddenRule) -> bool:
    """Whether q of any state of a trajectory is known without a pass from the first, so that a window is smoothed."""
    before = rule.depends_on in (DependsOn.NOTHING, DependsOn.PREVIOUS)
    return before and is_linear(rule)

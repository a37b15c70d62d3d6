"""A guide is the model, run again with the conditionals of its latents replaced by a rule (docs/design.md, 1.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import ensure_compile_time_eval
from jaxtyping import Array
from numpyro.handlers import block
from numpyro.infer.autoguide import AutoGuide
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import (
    LOC_SUFFIX,
    Model,
    Parameters,
    Propagation,
    check_made,
    inducing_site,
    role_of,
    with_request,
)
from ppl_dgp.gp.emission import Emission, FirstLayer, emission_of
from ppl_dgp.gp.representation import pushed_inputs
from ppl_dgp.gp.wrappers import mask_of, unwrap
from ppl_dgp.guides.dependence import DependsOn
from ppl_dgp.guides.guided_trajectory import guided_trajectory, started_step
from ppl_dgp.guides.hidden import DoublyStochastic, MeanField, along_function
from ppl_dgp.guides.inducing import Earlier, FullRank, InducingRule, Optimal
from ppl_dgp.guides.latents import Latent
from ppl_dgp.guides.names import HIDDEN_RULES, INDUCING_RULES, named
from ppl_dgp.guides.rule import HiddenRule, check_definition, expected_weight, moments
from ppl_dgp.numerics.compatibility import is_traced
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.power_mean import Alpha
from ppl_dgp.state_space.trajectory import trajectory_of


class HiddenConditional(dist.Distribution):
    """A rule applied to one site: q's distribution for it, with the rule's own log weight."""

    def __init__(self, rule: HiddenRule, params: Parameters, step: Emission) -> None:
        if step.correlated and not rule.depends_on.on_model:
            raise ValueError(
                f"hidden: found {rule} for a layer of mixed or convolved outputs, whose correlations it does not know; "
                "take DoublyStochastic()"
            )
        self.rule, self.params, self.step = rule, params, step
        self.conditional = rule.conditional(params, step)
        super().__init__(step.batch_shape, step.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self.step.support

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """A draw of h, (B, Q)."""
        draw: Array = self.conditional.sample(key, sample_shape)
        return draw

    def log_prob(self, value: Array) -> Array:
        """log q(h | what came before), (B,)."""
        log_density: Array = self.conditional.log_prob(value)
        return log_density

    def log_weight(self, value: Array, alpha: Alpha) -> Array:
        """The rule's tempered log p/q, (B,)."""
        return self.rule.log_weight(self.params, self.step, value, alpha)

    def expected_weight(self) -> Array:
        """The rule's log p/q at α = 0, averaged over h where it is carried as moments, (B,)."""
        return expected_weight(self.rule, self.params, self.step)

    def moments(self, propagation: Propagation) -> Gaussian:
        """Moments of h in place of a draw.

        :raises ValueError: for mixed or convolved outputs, whose correlations they would miss.
        """
        if self.step.correlated:
            raise ValueError(
                f"propagation: found {propagation!r} of a layer of mixed or convolved outputs, expected draws; take "
                "propagation='draws'"
            )
        return moments(self.rule, self.params, self.step, propagation)


@contextmanager
def _rows_of_training(site: str) -> Iterator[None]:
    """Say of parameters that do not fit the rows at hand what they are; NumPyro's plate only says that they do not."""
    try:
        yield
    except ValueError as error:
        if "invalid shape of numpyro.param" not in str(error):
            raise
        raise ValueError(
            f"x: found other rows than the guide was trained on, each of which has a q of its own at {site!r}; at new "
            "rows take ppl_dgp.predict(key, fit, x), or guide.with_model_hidden() in NumPyro's Predictive"
        ) from error


class _GuideHandler(Messenger):
    """Gives each of the model's latents its distribution in q, and hides its data."""

    def __init__(self, fn: Model, guide: Guide, others: dict[str, Array], datum: Array | None) -> None:
        super().__init__(fn)
        self.guide, self.others, self.datum = guide, others, datum
        self.values: dict[str, Array] = {}
        self.earlier: dict[str, Earlier] = {}
        #: by inducing site, that whose draw is in the place of its inducing inputs
        self.pushed_from: dict[str, str] = {}
        #: whether a latent of the rows came before
        self.layered = False

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "deterministic":
            msg["stop"] = True
        if msg["type"] == "inducing" and self.guide.inducing.pushes_inducing:
            self.pushed_from[inducing_site(msg["function"])] = inducing_site(msg["behind"].name)
            msg["value"] = pushed_inputs(msg["behind"])
        if msg["type"] != "sample" or msg.get("mine"):
            return
        name, role = msg["name"], role_of(msg)
        # an emission without a role is data to come: y at new rows
        awaited = role.kind is None and name not in self.others and emission_of(msg["fn"]) is not None
        if msg["is_observed"] or awaited or name in self.guide.observed:
            self.guide.observed.add(name)
            # data have no place in q: nobody further out sees the site, and nothing reads its value
            msg["stop"] = True
            if msg["value"] is None:
                msg["value"] = msg["fn"].mean
        elif unwrap(msg["fn"]).has_enumerate_support:
            # the objective sums it out
            self.guide.summed.add(msg["name"])
            msg["value"] = jnp.broadcast_to(
                unwrap(msg["fn"]).enumerate_support(False).ravel()[0], msg["fn"].shape()
            )
            msg["stop"] = True
        elif role.inducing:
            self._inducing(msg)
        elif role.hidden:
            self._hidden(msg)
        elif name in self.others:
            msg["value"], msg["stop"] = self.others[name], True
        else:
            raise ValueError(
                f"guide: found the latent site {name!r} without a role; give it infer=hidden_role(), observe it, or "
                "pass others=AutoNormal (any AutoGuide class) to approximate it"
            )

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and not msg["is_observed"] and msg["name"] not in self.guide.observed:
            self.values[msg["name"]] = msg["value"]
            if role_of(msg).inducing:
                self.earlier[msg["name"]] = Earlier(msg["fn"], msg["value"])

    def _inducing(self, msg: dict[str, Any]) -> None:
        role = role_of(msg)
        rule = self.guide.inducing
        with _StartAt(msg["name"] + LOC_SUFFIX, role.start):
            msg["fn"] = rule.of_site(msg["name"], msg["fn"].event_shape, role, dict(self.earlier))
        # what the objective decides by how u is represented: where p and q of steps that share a function have nothing
        # to cancel, E log p(x | u) is the same term by term
        hidden = self.guide.hidden
        request: dict[str, Any] = {
            "representation": hidden.depends_on.representation,
            "follows_function": along_function(hidden),
            "pushed_from": self.pushed_from.get(msg["name"]),
        }
        msg["infer"] = with_request(msg, **request)

    def _hidden(self, msg: dict[str, Any]) -> None:
        guide, start, trajectory = self.guide, role_of(msg).start, trajectory_of(msg["fn"])
        layered, self.layered = self.layered, True
        if trajectory is not None:
            rule = self._hidden_rule()
            msg["fn"] = guided_trajectory(msg["name"], trajectory, rule, guide.latent_rule, start, self.datum)
            msg["infer"] = with_request(msg, propagation=rule.propagation)
            return
        step = emission_of(msg["fn"])
        plates = msg["cond_indep_stack"]
        if len(plates) != 1:
            raise ValueError(
                f"guide: found {len(plates)} plates around {msg['name']!r}, expected the data plate only"
            )
        size = self.sizes[plates[0].name]
        if step is None:
            self._latent(msg, size)
            return
        rule = self._hidden_rule()
        with _rows_of_training(msg["name"]):
            begun = started_step(step, start)
            if not layered:
                begun = FirstLayer(begun.marginal, begun.likelihood, begun.partly)
            params = rule.declare(msg["name"], size, begun, self.datum)
        mask = mask_of(msg["fn"])
        conditional = HiddenConditional(rule, params, step)
        msg["fn"] = conditional if mask is True else conditional.mask(mask)
        msg["infer"] = with_request(msg, propagation=rule.propagation)

    def _hidden_rule(self) -> HiddenRule:
        rule = self.guide.hidden
        if isinstance(self.guide.inducing, Optimal) and rule.depends_on in (DependsOn.U, DependsOn.F):
            raise ValueError(
                f"inducing: found Optimal() beside {rule}, where h depends on u and its formula is no optimum; take "
                "MeanField() or Markov(), or FullRank()"
            )
        return rule

    def _latent(self, msg: dict[str, Any], size: int) -> None:
        """A latent without a GP in front."""
        name, prior, rule = msg["name"], msg["fn"], self.guide.latent_rule
        if len(prior.batch_shape) != 1 or prior.event_dim != 1:
            raise ValueError(
                f"guide: found a prior of shape {prior.batch_shape} + {prior.event_shape} at hidden site {name!r}, "
                "expected a vector for each row; write dist.Normal(0, 1).expand([Q]).to_event(1)"
            )
        mask = mask_of(prior)
        latent = Latent(prior, role_of(msg).start)
        with _rows_of_training(name):
            params = rule.latent.declare(name, size, latent, self.datum)
        q = rule.latent.conditional(params, latent)
        msg["fn"] = q if mask is True or rule.depends_on.on_model else q.mask(mask)

    @property
    def sizes(self) -> dict[str, int]:
        """Full sizes of the plates, by name."""
        return self.guide._sizes


class _StartAt(Messenger):
    """Has a parameter start where the model would have it."""

    def __init__(self, name: str, start: Callable[[], Array] | None) -> None:
        super().__init__()
        self.name, self.start = name, start

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "param" and msg["name"] == self.name and self.start is not None:
            # asked for where the parameter is not known yet, and only there
            msg["fn"] = lambda *args, **kwargs: self.start()


class _Sizes(Messenger):
    """Notes the full size of each plate (a frame knows only that of the rows at hand)."""

    def __init__(self, fn: Model, sizes: dict[str, int]) -> None:
        super().__init__(fn)
        self.sizes = sizes

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "plate":
            self.sizes[msg["name"]] = msg["args"][0]


@dataclass(eq=False, init=False)
class Guide:
    """q for a model whose latents carry roles: ``inducing`` and ``hidden`` sites by rules, the rest by ``others``.

    :param model: a NumPyro model; it is run again at every call of the guide.
    :param hidden: rule of the hidden layers, or its name in ``HIDDEN_RULES``; ``DoublyStochastic()`` by default, as of
        estimators and the command line.
    :param inducing: rule of the inducing outputs, or its name in ``INDUCING_RULES``; ``FullRank()`` by default.
    :param latent: rule of hidden sites without a GP in front, a GPLVM's x_n: by default that of ``hidden``, or
        ``MeanField()`` where that is the model's own conditional.
    :param others: an ``AutoGuide`` class for latents without a role (``handlers.lift``-ed hyperparameters).
    :raises ValueError: at the first call, if a latent has neither a role nor a guide.
    """

    model: Model
    hidden: HiddenRule = DoublyStochastic()
    inducing: InducingRule = FullRank()
    others: type[AutoGuide] | None = None
    latent: HiddenRule | None = None

    def __init__(
        self,
        model: Model,
        hidden: HiddenRule | str = "doubly-stochastic",
        inducing: InducingRule | str = "full-rank",
        others: type[AutoGuide] | None = None,
        latent: HiddenRule | str | None = None,
    ) -> None:
        self.model, self.others = model, others
        self.hidden = named("hidden", hidden, HIDDEN_RULES)
        self.inducing = named("inducing", inducing, INDUCING_RULES)
        self.latent = named("latent", latent, HIDDEN_RULES)
        if not callable(self.model):
            raise TypeError(f"model: found {type(self.model).__name__}, expected a NumPyro model")
        check_made("model", self.model)
        if isinstance(self.others, AutoGuide):
            name = type(self.others).__name__
            raise TypeError(
                f"others: found a guide, an instance of {name}, expected its class, of which a guide of the latents "
                f"without a role is made; give others={name}"
            )
        if not isinstance(self.hidden, HiddenRule):
            raise TypeError(f"hidden: found {self.hidden!r}, expected a rule such as MeanField()")
        if self.latent is not None and not isinstance(self.latent, HiddenRule):
            raise TypeError(f"latent: found {self.latent!r}, expected a rule such as MeanField()")
        if not isinstance(self.inducing, InducingRule):
            raise TypeError(f"inducing: found {self.inducing!r}, expected a rule such as FullRank()")
        for rule in (self.hidden, self.latent):
            if rule is not None and rule.definition is rule:
                # that an instance declares may differ from what its class does
                check_definition(type(rule), rule.depends_on)
        self.observed: set[str] = set()
        #: the discrete latents that were met
        self.summed: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._others: AutoGuide | None = None
        if self.others is not None:
            hide = lambda msg: msg["type"] == "sample" and role_of(msg).kind is not None
            self._others = self.others(block(self.model, hide_fn=hide))

    def _meaning(self) -> tuple[Any, ...]:
        """What makes two guides the same program; an AutoGuide remembers its first call, and equals itself alone."""
        return self.model, self.hidden, self.inducing, self.latent, None if self._others is None else id(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guide) and self._meaning() == other._meaning()

    def __hash__(self) -> int:
        return hash(self._meaning())

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Array]:
        """Sample the latents of q; returns them by name."""
        others = {} if self._others is None else self._others(*args, **kwargs)
        latents = _GuideHandler(_Sizes(self.model, self._sizes), self, others, _datum(args))
        latents(*args, **kwargs)
        return {**others, **latents.values}

    @property
    def latent_rule(self) -> HiddenRule:
        """The rule of hidden sites without a GP in front."""
        if self.latent is not None:
            return self.latent
        return MeanField() if self.hidden.depends_on.on_model else self.hidden

    def with_model_hidden(self) -> Guide:
        """The same q(u) and others with the model's own hidden conditionals: what new rows are predicted with."""
        guide = Guide(self.model, DoublyStochastic(), self.inducing, None, DoublyStochastic())
        guide.observed, guide.summed, guide._others = self.observed, self.summed, self._others
        return guide


def _datum(args: tuple[Any, ...]) -> Array | None:
    """x beside y for each row at hand, where the model is called as ``model(x, y, …)`` with tables."""
    tables = [table for table in args[:2] if jnp.ndim(table) > 0]
    if len(tables) != 2 or len({jnp.shape(table)[0] for table in tables}) != 1:
        return None
    if any(map(is_traced, tables)):
        return jnp.concatenate([jnp.reshape(table, (jnp.shape(table)[0], -1)) for table in tables], axis=1)
    # known where they are, so that what is wrong with them can be said
    with ensure_compile_time_eval():
        x, y = (np.reshape(table, (len(table), -1)) for table in map(np.asarray, tables))
        return jnp.asarray(np.concatenate([x, y], axis=1, dtype=jnp.result_type(*tables)))

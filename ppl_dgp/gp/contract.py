"""Contract between models, guides and objectives: calls, the names of sites, and the roles of latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from jaxtyping import Array

#: a run of a program: its sites by name, as ``numpyro.handlers.trace`` records them
Trace = dict[str, dict[str, Any]]
#: constrained values of ``numpyro.param`` sites by name, as ``SVI.get_params`` gives them
Parameters = dict[str, Array]

#: the plate of the rows, which :func:`ppl_dgp.gp.sparse_gp.data_plate` makes; what predicts and folds in looks for it
DATA_PLATE = "data"
#: the site of the targets, which predictions, forecasts and ArviZ exports are of
TARGET_SITE = "y"
#: the site of a latent without a GP in front, or of a trajectory: a GPLVM's latents, a GPSSM's states
LATENT_SITE = "x"
#: behind a function's name: the site of its whitened inducing outputs
INDUCING_SUFFIX = "/u"
#: behind a function's name: the deterministic site of the jitter that its Kzz took
JITTER_SUFFIX = "/jitter"
#: behind a site's name: the parameter of the mean of its q, or of the constant in it
LOC_SUFFIX = "_loc"
#: behind a site's name: the parameter of its deviations, or of the lower Cholesky factor of its covariance
SCALE_SUFFIX = "_scale"

#: how u is carried: integrated out, one draw per datum, or one draw for all
Representation = Literal["marginal", "per_datum_sample", "shared_sample"]
#: how a hidden layer is carried: as draws, or as moments by one of the deterministic propagations
Propagation = Literal["draws", "moments", "full-moments", "linearised"]
#: what a latent is to guide and objective: inducing outputs of a function, or a hidden variable
RoleKind = Literal["inducing", "hidden"]
#: the keys of ``infer`` that NumPyro reads
NUMPYRO_KEYS = frozenset({"enumerate", "expand", "num_samples", "is_auxiliary", "tmc"})


def inducing_site(function: str) -> str:
    """The site of the inducing outputs of a function, given its name."""
    return function + INDUCING_SUFFIX


@dataclass(frozen=True)
class SiteRole:
    """The role of a latent, under the key ``role`` of its ``infer``; the model says the first four, a guide the rest.

    :param kind: None of a latent without a role.
    :param start: gives the guide's starting point: of inducing outputs the means (P, M), of hidden variables a
        ``Gaussian`` (B, Q).
    :param initial_scale: of inducing outputs, where the scale of q(u) starts.
    :param reused: of inducing outputs, whether the function is evaluated more than once per datum.
    :param representation: of inducing outputs, how the guide asks for u to be represented.
    :param follows_function: of inducing outputs, whether q of the hidden variables behind depends on the function.
    :param at_inducing: of inducing outputs v, gives A, (M, M) or (P, M, M), and m(Z), (M, P): f at the inducing inputs
        is m(Z) + A v.
    :param gram: of inducing outputs v, gives Kuu, the usual jitter on its diagonal, and L⁻¹, both (M, M).
    :param pushed_from: of inducing outputs, the site of those whose draw the guide has put in the place of the inducing
        inputs.
    :param propagation: of hidden variables, how the guide asks for them to be propagated.
    """

    kind: RoleKind | None = None
    start: Callable[[], Any] | None = None
    initial_scale: float = 1.0
    reused: bool = False
    representation: Representation | None = None
    follows_function: bool = False
    at_inducing: Callable[[], tuple[Array, Array]] | None = None
    gram: Callable[[], tuple[Array, Array]] | None = None
    pushed_from: str | None = None
    propagation: Propagation | None = None

    @property
    def inducing(self) -> bool:
        """Whether the site holds the inducing outputs of a function."""
        return self.kind == "inducing"

    @property
    def hidden(self) -> bool:
        """Whether the site is a hidden variable."""
        return self.kind == "hidden"


def hidden_role(start: Callable[[], Any] | None = None) -> dict[str, Any]:
    """The ``infer`` of a hidden variable: ``numpyro.sample("layer1/h", f(x).noisy(s2), infer=hidden_role())``.

    :param start: gives the moments at which a guide starts, a ``Gaussian`` of means and deviations (B, Q).
    """
    return {"role": SiteRole("hidden", start)}


def inducing_role(
    start: Callable[[], Array] | None = None,
    *,
    initial_scale: float = 1.0,
    reused: bool = False,
    at_inducing: Callable[[], tuple[Array, Array]] | None = None,
    gram: Callable[[], tuple[Array, Array]] | None = None,
) -> dict[str, Any]:
    """The ``infer`` of a function's inducing outputs, as ``sparse_gp`` gives it.

    :param start: gives the means (P, M) at which a guide starts.
    :param initial_scale: where a guide starts the scale of q(u).
    :param reused: whether the function is evaluated more than once per datum.
    :param at_inducing: gives A and m(Z), f at the inducing inputs being m(Z) + A v; ``GlobalInducing`` needs it.
    :param gram: gives Kuu, the usual jitter on its diagonal, and L⁻¹; ``Decoupled(orthogonal="weights")`` needs them.
    """
    role = SiteRole("inducing", start, initial_scale, reused, at_inducing=at_inducing, gram=gram)
    return {"role": role}


#: the fields of a role that may be written beside its kind: ``infer={"role": "inducing", "reused": True}``
ROLE_KEYS = frozenset(SiteRole.__dataclass_fields__) - {"kind"}
_NO_ROLE = SiteRole()


def role_of(site: Mapping[str, Any]) -> SiteRole:
    """The role of a site (or message), from its ``infer``: one of :func:`hidden_role`, or written as strings.

    :raises ValueError: for an unknown role, or beside a role an unknown key.
    """
    infer = site.get("infer") or {}
    role = infer.get("role")
    settings = {key: infer[key] for key in ROLE_KEYS & infer.keys()}
    if isinstance(role, SiteRole):
        return replace(role, **settings) if settings else role
    if role is None:
        return SiteRole(**settings) if settings else _NO_ROLE
    name = site.get("name")
    if role not in get_args(RoleKind):
        raise ValueError(
            f"infer: found the role {role!r} at {name!r}, expected one of {', '.join(get_args(RoleKind))}"
        )
    unknown = sorted(key for key in infer.keys() - ROLE_KEYS - NUMPYRO_KEYS - {"role"} if key[:1] != "_")
    if unknown:
        raise ValueError(
            f"infer: found the key {unknown[0]!r} at {name!r}, expected of {', '.join(sorted(ROLE_KEYS))}"
        )
    return SiteRole(role, **settings)


def with_request(site: Mapping[str, Any], **asked: Any) -> dict[str, Any]:
    """The ``infer`` of a site whose guide asks for a ``representation`` or a ``propagation``."""
    others = {key: value for key, value in site["infer"].items() if key not in ROLE_KEYS}
    return {**others, "role": replace(role_of(site), **asked)}


@runtime_checkable
class Model(Protocol):
    """A NumPyro model, or the guide of one: plain calls of ``sample``, ``param`` and ``plate``.

    What the fits call is ``model(x, y=None, index=None, size=None)``: inputs (N, D) and targets (N, P) of the rows at
    hand, their numbers ``index`` (B,) in a data set of ``size`` rows. A model that is never trained on minibatches
    needs no ``index`` and no ``size``.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __hash__(self) -> int: ...


@runtime_checkable
class Objective(Protocol):
    """What a fit minimises, with the signature of NumPyro's ``ELBO.loss``: any of NumPyro's own, or of ours."""

    def loss(
        self,
        rng_key: Array,
        param_map: Parameters,
        model: Model,
        guide: Model,
        *args: Any,
        **kwargs: Any,
    ) -> Array:
        """The loss in nats over all rows, at constrained parameters; model and guide are called with ``args``."""
        ...


def check_made(name: str, program: Any) -> None:
    """Refuse, by a TypeError, a class in the place of what is made by it."""
    if isinstance(program, type):
        kind = program.__name__
        raise TypeError(
            f"{name}: found the class {kind}, expected a {name} made by it; call it first, {kind}(…)"
        )


def check_columns(name: str, shape: tuple[int, ...], columns: int) -> None:
    """Refuse, by a ValueError, inputs of a function that are not (B, D) with the D of its inducing inputs."""
    if len(shape) != 2 or shape[1] != columns:
        raise ValueError(
            f"{name}: found inputs of shape {shape}, expected (B, {columns}), the columns of its inducing inputs; "
            "give rows with the columns of those it was fitted to"
        )

r"""The Gaussian process state space model (Frigola 2014; Bui 2017, 3.2; Doerr et al. 2018; Ialongo et al. 2019).

    x_0 ~ N(m_0, s_0² I)                                      of each sequence
    f_q ~ GP(m_q, k),   x_t = f(x_{t−1}, c_t) + ε,   ε ~ N(0, diag(Q))            t = 1 … T
    y_t = C x_t + d + ε,   ε ~ N(0, R),   or y_t ~ p(y | C x_t + d), or p(y | g(x_t)) with g_p ~ GP(0, k')

Card. For series with a state that is not observed: systems with inputs c_t to identify, forecast and simulate. Guides,
of one model: ``MeanField()`` (Frigola; over-estimates Q), ``Markov()`` (McHutchon; Eleftheriadis et al.),
``Conditional()`` (Ialongo et al.: x_t follows f), ``Conditional(markov=True)`` (f and x_{t−1}: contains them),
``DoublyStochastic()`` (the model's own transition: Doerr et al. with one draw of u for a trajectory; their factorised
form, no bound, is ``PRSSMSurrogate()``), ``MomentMatched()`` (Bui: its moments, no bound either), ``Amortised(net,
base, around=k)`` (from a network of k rows before and after each; as ``latent=`` a recognition model of x_0). Where f
is in q, the f(x_{t−1}) of a trajectory are drawn independently given u, as they do. ``fit_series`` trains, from a chain
where q follows f; ``window=`` cuts the series for minibatches.
Objectives: ``PowerEP(alpha)``, each step tempered on its own; for ``MeanField()`` and ``Markov()``
``PowerEP(0.0, propagation="moments")`` needs no draws, and ``ApproximatePowerEP(alpha)``, an energy, takes them;
``EnsembleKalman(members)`` filters the path, with a guide of ``EnsembleSmoother()`` and nothing learnt per step (Lin et
al. 2024: an estimate, no bound). Sites: ``transition/u``, ``x`` (T + 1, Q) with x_0 first, ``y``; parameters
``transition/lengthscale``, ``transition/noise``, ``emission/weights``, ``likelihood/noise`` ….
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.means import Linear, Mean, Zero
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.kernels import RBF
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernels_of_outputs
from ppl_dgp.models.observation import NoiseChoice, Observed, observed_by
from ppl_dgp.models.observation import emission as observation
from ppl_dgp.models.parts import as_columns
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.states import EMISSIONS, STATE_STARTS, StateInitialiser, checked_start, emission_function
from ppl_dgp.models.timed import check_step_times, checked_timed, increments, over_unit_time
from ppl_dgp.models.zoo_model import ZooModel
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.state_space.sequences import Layout, layout, sequence_numbers
from ppl_dgp.state_space.trajectory import Trajectory
from ppl_dgp.state_space.windows import Windows, WindowSpec

#: of the settings that are names, the names they may be
STATE_SPACE_CHOICES = {
    "mean": ("identity", "zero", "linear"),
    "emission": EMISSIONS,
    "start": STATE_STARTS,
}
#: scale at which q(u) of the transition starts, around the regression on the states at the start
TRANSITION_SCALE = 0.1
#: M unless told
STATE_INDUCING = 20


@dataclass(frozen=True, eq=False, repr=False)
class gpssm(ZooModel):
    """A GPSSM as a NumPyro model ``model(x, y=None, index=None, size=None)``, its rows the steps in their order.

    Its x are the controls (T, C), C = 0 for none; of several sequences the last column is the number of each row's.

    :param num_outputs: P columns of y.
    :param latent: Q dimensions of the state, fewer or more than P; P if not given. Dimensions beyond those of y begin
        as earlier values of y.
    :param num_inducing: M of the transition, and of a GP emission; at most the number of rows.
    :param mean: of the transition: "identity" (of the state), "zero", or "linear" (in state and controls, learnt).
    :param emission: "linear" (learnt, begins as the identity where Q ≥ P), "identity" (the first dimensions of the
        state are what is observed, which gives them a meaning) or "gp".
    :param kernel: of the transition: a name, a class, an instance or a function, see
        :mod:`ppl_dgp.models.kernel_values`.
    :param emission_kernel: of a GP emission.
    :param separate: whether each output of the transition, and of a GP emission, has a kernel and inducing inputs of
        its own: values ``transition/output1/lengthscale`` …, ``transition/inducing`` (Q, M, Q + C).
    :param process_noise: where the learnt variances Q start, in squared units of the state.
    :param noise: variance of Gaussian observation noise: None to learn one, "per-column", or a number to fix it.
    :param likelihood: instead of Gaussian noise, see :func:`ppl_dgp.models.gplvm`.
    :param initial: m_0 and s_0² of every dimension of x_0.
    :param start: where the states begin: "outputs", as y (of counts its logarithm) has them and its earlier values
        (its principal components if they are fewer), or "linear", smoothed by the linear-Gaussian model that fits best
        (EM), of those that do not grow without end (spectral radius at most 0.999): the transition begins at its
        noise, with ``mean="linear"`` at its dynamics, and f varies by as much as they leave open; or "subspace", the
        same where EM begins at states of a subspace method (see :mod:`ppl_dgp.state_space.subspace`), which finds
        modes that y and its earlier values hide, of more than a few rows and an emission that is learnt.
    :param num_sequences: S; their rows come one sequence after the other.
    :param window: steps L of a window, where ``fit_svi(batch_size=…)`` is to see W windows of contiguous steps at a
        time, at any offset, a batch size of W·L. The bound stays unbiased under ``MeanField()`` and ``Markov()``, which
        know the state that a window starts from; under other rules each window is a sequence of its own, whose first
        state is learnt (one for each row that a window may begin at) or recognised by a network. Sequences may be
        shorter than a window.
    :param timed: whether steps differ in length: the last control is then Δt > 0, the time since the row before (in
        units in which it is about 1; before the first row that since x_0), f is a rate and noise adds up with time,
        x_t = x_{t−1} + Δt f(x_{t−1}, c_t) + ε, ε ~ N(0, Δt Q), an Euler step of a stochastic differential equation.
        It takes the default start and mean; of a kernel with a ``Linear`` part moments have no closed form then.
    :param missing: whether NaN in y stands for an entry that was not observed.
    :param inducing: inputs of the transition (M, Q + C) to begin at, whose M is the model's; without Δt.
    :param train_inducing: whether the inducing inputs are learnt.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for unknown names, fewer states than an identity emission needs, a variance that is not
        positive, where shapes do not fit, or for a minibatch without ``window``, which tears the steps apart.
    """

    num_outputs: int
    latent: int | None = None
    num_inducing: int = STATE_INDUCING
    _: KW_ONLY
    mean: str = "identity"
    emission: str = "linear"
    kernel: KernelChoice = RBF
    emission_kernel: KernelChoice = RBF
    separate: bool = False
    process_noise: float = 0.05
    noise: NoiseChoice | None = None
    likelihood: Observed | None = None
    initial: tuple[float, float] = (0.0, 1.0)
    start: str = "outputs"
    num_sequences: int = 1
    window: int | None = None
    timed: bool = False
    missing: bool = False
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        checked_start(self.start, self.emission)
        checked_timed(self.timed, self.start, self.mean)
        self._settle(**checked_settings(self, **STATE_SPACE_CHOICES))

    @property
    def width(self) -> int:
        """Q."""
        return self.num_outputs if self.latent is None else self.latent

    @property
    def num_windows(self) -> WindowSpec | None:
        """Of all rows, the number of windows that minibatches are made of; None without ``window``."""
        return None if self.window is None else WindowSpec(self.window, self.num_sequences)

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        width = self.width
        where, windows = _at_hand(x, index, size, self.num_sequences, self.window)
        controls = x if self.num_sequences == 1 else x[:, :-1]
        rows = None if index is None or windows is None else windows.rows
        seen = y if y is None or rows is None else y[rows]
        if self.timed:
            check_step_times(x, self.num_sequences)
        given = observed_by(self.likelihood, self.noise, seen, self.num_outputs)
        functions = given.num_functions(self.num_outputs)
        begun = None if y is None else given.function_at(y)
        begin = StateInitialiser(
            self.start, begun, controls, where, (width, functions), self.missing, self.emission, self.initial
        )

        # those of f, a rate where steps are timed
        dims = width + controls.shape[1] - self.timed
        own = width if self.separate else None
        inducing_settings = self.num_inducing, self.train_inducing, self.inducing
        inducing = inducing_inputs(
            "transition", lambda: begin.inputs[:, :dims], *inducing_settings, dims, own
        )
        starts = (lambda: begin.lengthscales, lambda: begin.variance) if self.start != "outputs" else ()
        kernel: Any = kernels_of_outputs(own, "transition", self.kernel, dims, *starts)
        if self.timed:
            changed = [increments(each, dims + 1) for each in (kernel if own else [kernel])]
            kernel, inducing = changed if own else changed[0], over_unit_time(inducing)
        m = _transition_mean(self.mean, width, controls.shape[1], begin)
        q = numpyro.param(
            "transition/noise",
            lambda _: begin.linear.process_noise(self.process_noise),
            constraint=constraints.positive,
        )
        settings: dict[str, Any] = {"reused": True, "initial_scale": TRANSITION_SCALE, "jitter": self.jitter}
        if y is not None:
            of_steps = q * controls[:, -1:] if self.timed else q
            settings["begin_at"] = lambda: (begin.inputs, begin.states, of_steps)
        f = sparse_gp("transition", kernel, inducing, width, mean=m, **settings)
        g = emission_function(
            self.emission,
            begin,
            self.num_inducing,
            self.emission_kernel,
            self.train_inducing,
            self.jitter,
            self.separate,
        )

        shape = self.num_sequences, width
        x_0 = Gaussian(jnp.full(shape, self.initial[0]), jnp.full(shape, self.initial[1] ** 0.5))
        trajectory = Trajectory(f, q, controls, x_0, where, windows, timed=self.timed)
        weight: Any = 1.0
        counted: Any = True
        if windows is not None and rows is not None:
            trajectory, weight, counted = trajectory.in_windows(windows), windows.weight, windows.counted
        infer = hidden_role(lambda: begin.path(jnp.sqrt(q)))
        with numpyro.handlers.scale(scale=weight):
            path = offer("x", numpyro.sample("x", trajectory, infer=infer))
            states = trajectory.states(path)
            with data_plate(states.shape[0] if isinstance(states, Array) else states.mean.shape[0]):
                likely = observation(g(states), given, rows, y is not None, self.missing)
                return numpyro.sample("y", likely if counted is True else likely.mask(counted), obs=seen)


def _transition_mean(name: str, width: int, num_controls: int, begin: StateInitialiser) -> Mean:
    if name == "zero":
        return Zero(width)
    if name == "identity":
        return Linear(jnp.eye(width + num_controls, width))
    weights = numpyro.param("transition/weights", lambda _: begin.linear.transition)
    return Linear(weights, numpyro.param("transition/bias", lambda _: begin.linear.shift))


def _at_hand(
    x: Array, index: Array | None, size: int | None, num_sequences: int, window: int | None
) -> tuple[Layout, Windows | None]:
    """The layout of the whole series, and how it is cut."""
    numbers = None if num_sequences == 1 else sequence_numbers(x)
    where = layout(x.shape[0], numbers, num_sequences)
    if window is None:
        everything = index is not None and size == x.shape[0] == len(index)
        if (index is None and size in (None, x.shape[0])) or everything:
            return where, None
        raise ValueError(
            f"index: found {x.shape[0]} of {size} rows, expected all of them in their order, for each step starts from "
            "the one before; leave batch_size out, or give the model a window"
        )
    if index is None and not isinstance(x, jax.core.Tracer):
        # sequences that no window fits in are an error
        WindowSpec(window, num_sequences)(x)
    return where, Windows(window, where, index)

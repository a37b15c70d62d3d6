"""What a fit takes and what it gives: the data checked, the parameters of the best restart, the errors."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, Shaped
from numpyro.handlers import seed, trace
from numpyro.infer import ELBO, SVI

from ppl_dgp.fit.advice import advice_of
from ppl_dgp.fit.chains import Chains
from ppl_dgp.fit.convergence import LEAST_TOLERANCE, Convergence, Leg, Phase, ends_of_parts, in_order
from ppl_dgp.fit.posterior import Posterior, shortened
from ppl_dgp.fit.program import build_finish, cached_program, selected
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.objectives.capabilities import capabilities_of
from ppl_dgp.objectives.row_sums import RowSums


class FitError(RuntimeError):
    """Training cannot go on; the message says what happened and what to try."""


@dataclass(frozen=True, eq=False, repr=False)
class Fit(Posterior):
    """A trained model: what was trained, how, and its parameters. Its verbs are in :class:`Posterior`.

    ``params`` are the constrained parameters of the best restart (the lowest mean loss over the last tenth of
    the steps), ``restart_params`` those of all R restarts, stacked. ``losses`` are the objective's losses in nats
    at every step, NaN where a step was rejected; ``rejected_steps`` counts these over all restarts. ``seconds``
    is the wall-clock time of the whole fit, over all its sessions if it was resumed; ``compile_seconds`` is
    what compiling, and finding the start meanwhile, took of it in the last session. ``fingerprint`` is the SHA-256 of
    the data. ``jitter`` holds what covariance matrices needed on their diagonals at ``params``, relative to the mean
    diagonal, by the sites ``…/jitter`` that report it; empty if interrupted. ``input_seconds`` is what the steps of the
    last session waited for rows that ``fit_stream`` reads. ``chains`` says how the Markov chains of ``fit_nuts`` went.
    ``convergence`` is how far it is from its optimum, None where nothing looked; :attr:`converged` and :attr:`gap` are
    of it. ``path`` tells of the poorer families that it was trained along.
    """

    objective: ELBO
    losses: Float[np.ndarray, "R steps"]
    rejected_steps: int
    seconds: float
    steps: int
    restart_params: dict[str, Shaped[Array, "..."]]
    best: int
    fingerprint: str
    compile_seconds: float = 0.0
    jitter: Mapping[str, float] = field(default_factory=dict)
    input_seconds: float = 0.0
    chains: Chains | None = None
    convergence: Convergence | None = None
    path: tuple[Leg, ...] = ()

    def __repr__(self) -> str:
        restarts = self.losses.shape[0]
        steps = f"{self.steps} in {self.seconds:.3g} s"
        if restarts > 1:
            steps += f", the best of {restarts} restarts"
        if self.rejected_steps:
            steps += f", {self.rejected_steps} rejected"
        last = f"{self.losses[self.best, -1]:.6g}" if self.losses.size else "none"
        if self.convergence is not None:
            last += f", {self.convergence.shown}"
        about = {}
        if self.path:
            about["path"] = ", ".join(f"{leg.guide} {leg.bound:.6g}" for leg in self.path)
        about |= {"objective": shortened(self.objective), "steps": steps, "last loss": last}
        if self.advice:
            about["advice"] = "; ".join(text.partition(":")[0] for text in self.advice) + ", see fit.advice"
        return "\n".join([super().__repr__(), *(f"  {name:<10}{text}" for name, text in about.items())])

    @property
    def converged(self) -> bool | None:
        """Whether what steps without end would gain is within the tolerance; None where nothing is known."""
        return None if self.convergence is None else self.convergence.converged

    @property
    def gap(self) -> float:
        """What steps without end would gain, an estimate in nats; NaN where nothing is known."""
        return float("nan") if self.convergence is None else self.convergence.gap

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The parts of the training, whose losses say whether it has converged."""
        return () if self.convergence is None else self.convergence.phases

    @property
    def advice(self) -> tuple[str, ...]:
        """What may be wrong with it and what to do about it, a line each; nothing if nothing is known to be."""
        return advice_of(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to one file; see :func:`ppl_dgp.fit.files.save_fit`."""
        from ppl_dgp.fit.files import save_fit

        save_fit(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str], **parts: Any) -> "Fit":
        """Read what :meth:`save` wrote; ``model=`` (and ``guide=``, ``objective=``) where the file does not hold them.

        See :func:`ppl_dgp.fit.files.load_fit`.
        """
        from ppl_dgp.fit.files import load_fit

        return load_fit(path, **parts)


class Interrupted(KeyboardInterrupt):
    """Training was interrupted: ``fit`` is what was fitted so far; the checkpoint, if any, holds it too.

    Of several fits side by side ``fits`` are those that have begun, of which ``fit`` is the first.
    """

    def __init__(self, fit: Fit | Sequence[Fit]):
        self.fits = [fit] if isinstance(fit, Fit) else list(fit)
        self.fit = self.fits[0]
        super().__init__(f"training interrupted after {self.fits[-1].steps} steps")


def best_restart(losses: Float[np.ndarray, "R steps"]) -> int:
    """The restart with the lowest mean loss over the last tenth of the steps, rejected ones left out, but none whose
    losses run away."""
    last = _last_tenth(losses)
    errors = [ends_of_parts(each, [len(each)], whole=True)[1][0] for each in last]
    return in_order(mean_loss(last).tolist(), errors, LEAST_TOLERANCE)[0]


def last_losses(losses: Float[np.ndarray, "R steps"]) -> Float[np.ndarray, " R"]:
    """The mean loss over the last tenth of the steps, by which fits are compared."""
    return mean_loss(_last_tenth(losses))


def _last_tenth(losses: Float[np.ndarray, "R steps"]) -> Float[np.ndarray, "R last"]:
    return losses[:, -max(1, losses.shape[1] // 10) :]


def mean_loss(losses: Float[np.ndarray, "R steps"]) -> Float[np.ndarray, " R"]:
    """Mean over the steps that were not rejected, infinite where all were."""
    kept = np.isfinite(losses)
    total = np.where(kept, losses, 0.0).sum(axis=1)
    return np.where(kept.any(axis=1), total / np.maximum(kept.sum(axis=1), 1), np.inf)


def finished(
    restart_params: Mapping[str, Array],
    svi: SVI,
    x: Array,
    y: Array,
    sums: Mapping[str, RowSums] | None = None,
) -> dict[str, Array]:
    """The R stacked parameters, with those of the q(u) that a ``Collapsed`` objective has optimised away.

    :param sums: over the rows, those that are known (:func:`ppl_dgp.fit.fixed_rows.sums_over_rows`).
    """
    if not capabilities_of(svi.loss).optimises_inducing:
        return dict(restart_params)
    restarts = len(next(iter(restart_params.values())))
    each = [{name: value[r] for name, value in restart_params.items()} for r in range(restarts)]
    finish = cached_program(svi, build_finish).run
    ends = [finish(one, x, y, dict(sums or {})) for one in each]
    return {name: jnp.stack([end[name] for end in ends]) for name in ends[0]}


def assemble(
    restart_params: Mapping[str, Array],
    losses: Float[np.ndarray, "R steps"],
    known: Sequence[Convergence] | None = None,
    **rest: Any,
) -> Fit:
    """The ``Fit`` of R stacked parameters and losses, with what is ``known`` of how far each is from its optimum."""
    best = best_restart(losses)
    return Fit(
        params=selected(dict(restart_params), np.int32(best)),
        losses=losses.copy(),
        rejected_steps=int(np.isnan(losses).sum()),
        steps=losses.shape[1],
        restart_params=dict(restart_params),
        best=best,
        convergence=None if known is None else known[best],
        **rest,
    )


def checked_data(
    x: ArrayLike | None,
    y: ArrayLike,
    model: Callable[..., Any] | None = None,
    empty_columns: bool = False,
) -> tuple[Float[Array, "N D"], Num[Array, "N P"]]:
    """Inputs and targets as arrays of two dimensions; inputs without columns where ``x`` is None.

    :raises ValueError: if they are not numbers of shapes (N, D) and (N, P) or (N,), or hold NaN or infinity. NaN is
        allowed in y where the ``model`` takes missing entries, everywhere in a column only with ``empty_columns``.
    """
    arrays = {"y": np.asarray(y)}
    if arrays["y"].ndim == 1:
        arrays["y"] = arrays["y"][:, None]
    if x is not None:
        arrays = {"x": np.asarray(x)} | arrays
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise ValueError(
                f"{name}: found dtype {array.dtype}, expected numbers; encode or drop other columns"
            )
        if array.ndim != 2 or 0 in array.shape:
            remedy = f"reshape it, for one column {name}[:, None]"
            raise ValueError(
                f"{name}: found shape {array.shape}, expected two dimensions, none of them empty; {remedy}"
            )
        gaps = name == "y" and array.dtype.kind == "f" and np.isnan(array)
        partly = np.any(gaps) and model is not None and _takes_missing(model, arrays)
        if partly and not empty_columns and (empty := np.isnan(array).all(0)).any():
            column = int(np.argmax(empty))
            raise ValueError(
                f"y: found no entry in column {column}, expected at least one; leave the column out"
            )
        wrong = ~np.isfinite(array) & ~(partly & np.isnan(array))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise ValueError(
                f"{name}: found {array[row, column]} at row {row}, column {column}, expected finite numbers; "
                "drop or impute such rows" + (", or make a model with missing=True" if name == "y" else "")
            )
        # the squares of slopes, which have squares themselves, must be numbers
        kind = jnp.finfo(jnp.result_type(float))
        most = float(kind.max) ** 0.25
        largest = max(float(np.nanmax(array, initial=0)), -float(np.nanmin(array, initial=0)))
        if largest > most:
            raise ValueError(
                f"{name}: found {largest:.3g}, expected at most {most:.3g} in {kind.bits} bits, which cannot hold "
                "its fourth power; standardise"
                + (", or call numpyro.enable_x64()" if kind.bits == 32 else "")
            )
    arrays.setdefault("x", np.zeros((len(arrays["y"]), 0)))
    if len(arrays["x"]) != len(arrays["y"]):
        raise ValueError(
            f"y: found {len(arrays['y'])} rows beside {len(arrays['x'])} of x, expected as many; "
            "pass the targets of the same rows"
        )
    floats = jnp.result_type(float)
    # Counts and labels stay whole numbers.
    return jnp.asarray(arrays["x"], floats), jnp.asarray(
        arrays["y"], floats if arrays["y"].dtype.kind == "f" else None
    )


def _takes_missing(model: Callable[..., Any], arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether NaN in y stands for a missing entry: all its observed sites say so."""
    y = jnp.asarray(arrays["y"], float)
    x = jnp.asarray(arrays["x"], float) if "x" in arrays else jnp.zeros((len(y), 0))
    found: list[bool] = []

    def look(y: Array) -> None:
        sites = trace(seed(model, jax.random.PRNGKey(0))).get_trace(x, y).values()
        observed = [site["fn"] for site in sites if site["type"] == "sample" and site["is_observed"]]
        found.extend(getattr(emission_of(each) or unwrap(each), "partly", False) for each in observed)

    jax.eval_shape(look, y)
    return bool(found) and all(found)


def fingerprint(x: Num[Array, "N D"], y: Num[Array, "N P"]) -> str:
    """SHA-256 of shapes, dtypes and values."""
    digest = hashlib.sha256()
    for array in (np.asarray(x), np.asarray(y)):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()

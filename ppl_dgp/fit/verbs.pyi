"""The signatures of the verbs for type checkers; a test compares them with the functions behind.

A verb is the public function of its name, with the fit in the place of its argument ``fit``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from numpyro.infer import ELBO

from ppl_dgp.diagnostics import Comparison, Dependence, HorizonScores, LayerMap, ParetoK
from ppl_dgp.diagnostics.horizons import HORIZONS
from ppl_dgp.fit.result import Fit
from ppl_dgp.gp.contract import Propagation
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import Collapsed
from ppl_dgp.prediction.exploration import ExpectedInformation
from ppl_dgp.prediction.forecast import Forecast, Smoothed
from ppl_dgp.prediction.latents import Latents
from ppl_dgp.prediction.modes import Modes
from ppl_dgp.prediction.particle_filter import ParticleFiltered
from ppl_dgp.prediction.planning import ControlPlan, Cost
from ppl_dgp.prediction.predict import Prediction

class FitVerbs:
    def predict(
        self,
        key: Array,
        x: Float[Array, "N D"] | Float[np.ndarray, "N D"] | None,
        y: Array | np.ndarray | None = None,
        *,
        num_samples: int = 100,
        levels: Sequence[float] = (),
        samples: bool = False,
        row_by_row: bool = False,
        propagation: Propagation = "draws",
        latents: Mapping[str, Gaussian] | None = None,
        batch_size: int = 1000,
    ) -> Prediction: ...
    def sample_functions(
        self, key: Array, x: ArrayLike, num_samples: int = 10, *, prior: bool = False
    ) -> Float[Array, "S N P"]: ...
    def sample_layers(
        self, key: Array, x: ArrayLike, num_samples: int = 10, *, prior: bool = False
    ) -> dict[str, Float[Array, "S N Q"]]: ...
    def joint_prediction(
        self, key: Array, x: ArrayLike, num_samples: int = 100
    ) -> tuple[Float[Array, "N P"], Float[Array, "P N N"]]: ...
    def log_likelihood(self, key: Array, x: ArrayLike, y: ArrayLike) -> Float[Array, " N"]: ...
    def smooth(
        self, key: Array, x: Float[Array, "T C"] | None, y: Array, *, num_samples: int = 200
    ) -> Smoothed: ...
    def forecast(
        self,
        key: Array,
        x: Float[Array, "T C"] | None,
        y: Array,
        controls: Float[Array, "H K"] | int,
        *,
        y_future: Array | None = None,
        sequence: int | None = -1,
        seen: tuple[Array | None, Array] | None = None,
        function: str = "path",
        num_samples: int = 200,
        num_particles: int = 500,
    ) -> Forecast: ...
    def simulate(
        self, key: Array, x: Array | None, y: Array, controls: Array | int, **settings: Any
    ) -> Forecast: ...
    def simulate_narx(
        self,
        key: Array,
        history: ArrayLike,
        controls: ArrayLike | int,
        *,
        y_future: ArrayLike | None = None,
        feedback: str = "draws",
        num_samples: int = 200,
    ) -> Forecast: ...
    def filter_forward(
        self,
        key: Array,
        x: Float[Array, "T C"] | None,
        y: Array,
        x_new: Float[Array, "H K"] | None,
        y_new: Array,
        *,
        num_particles: int = 500,
        sequence: int = -1,
        fresh: bool = False,
    ) -> ParticleFiltered: ...
    def transition_function(self, x: Float[Array, "T C"] | None, y: Array) -> SparseGP: ...
    def transition_moments(
        self,
        x: Float[Array, "T C"] | None,
        y: Array,
        at: Float[Array, "B Q"],
        controls: Float[Array, "#B K"] | None = None,
    ) -> tuple[Float[Array, "B Q"], Float[Array, "B Q"]]: ...
    def transition_modes(
        self,
        x: Float[Array, "T C"] | None,
        y: Array,
        at: Float[Array, "*B Q"] | None = None,
        controls: Float[Array, "*#B K"] | None = None,
    ) -> Modes: ...
    def expected_information(
        self,
        key: Array,
        x: Float[Array, "T C"] | None,
        y: Array,
        candidates: ArrayLike,
        *,
        sequence: int | None = -1,
        num_samples: int = 50,
    ) -> ExpectedInformation: ...
    def plan_controls(
        self,
        key: Array,
        x: Float[Array, "T C"] | None,
        y: Array,
        cost: Cost,
        steps: int,
        bounds: tuple[ArrayLike, ArrayLike],
        *,
        state: ArrayLike | None = None,
        start: ArrayLike | None = None,
        times: ArrayLike | None = None,
        hold: int = 1,
        sequence: int | None = -1,
        num_samples: int = 10,
        num_candidates: int = 200,
        iterations: int = 5,
    ) -> ControlPlan: ...
    def regime_probabilities(
        self, key: Array, x: Float[Array, "T C"] | None, y: Array, *, num_samples: int = 100
    ) -> np.ndarray: ...
    def responsibilities(
        self,
        key: Array,
        x: Float[Array, "N D"] | Float[np.ndarray, "N D"] | None,
        y: Array | np.ndarray,
        *,
        num_samples: int = 100,
    ) -> dict[str, np.ndarray]: ...
    def discrete_draws(
        self,
        key: Array,
        x: Float[Array, "N D"] | Float[np.ndarray, "N D"] | None,
        y: Array | np.ndarray,
        *,
        num_samples: int = 100,
    ) -> dict[str, np.ndarray]: ...
    def infer_latents(
        self,
        key: Array,
        x: ArrayLike | None,
        y: ArrayLike,
        *,
        steps: int = 300,
        learning_rate: float = 0.05,
        batch_size: int = 500,
    ) -> Latents: ...
    def row_log_density(
        self,
        key: Array,
        x: ArrayLike | None,
        y: ArrayLike,
        *,
        latents: Latents | None = None,
        num_samples: int = 200,
        batch_size: int = 500,
    ) -> Float[np.ndarray, " K"]: ...
    def relevance(
        self, layer: str = "gp", site: str = "x", means: Float[np.ndarray, "N Q"] | None = None
    ) -> Float[np.ndarray, " Q"]: ...
    def partial_dependence(
        self,
        key: Array,
        x: ArrayLike,
        column: int,
        *,
        values: ArrayLike | None = None,
        num_rows: int = 40,
        num_samples: int = 20,
    ) -> Dependence: ...
    def explained(self, x: Float[Array, "N D"]) -> dict[str, Float[np.ndarray, " P"]]: ...
    def layer_maps(self, x: Float[Array | np.ndarray, "N D"], *, grid_size: int = 200) -> list[LayerMap]: ...
    def elbo(
        self, key: Array, x: ArrayLike | None, y: ArrayLike, num_draws: int = 100
    ) -> tuple[float, float]: ...
    def energy(
        self, key: Array, x: ArrayLike | None, y: ArrayLike, *, objective: ELBO | None = None
    ) -> float: ...
    def optimal_inducing(
        self, x: ArrayLike | None, y: ArrayLike, *, objective: Collapsed | None = None
    ) -> Self: ...
    def importance_weighted_bound(
        self, key: Array, x: ArrayLike | None, y: ArrayLike, num_draws: int = 200, num_locals: int = 8
    ) -> tuple[float, float]: ...
    def pareto_k(
        self,
        key: Array,
        x: ArrayLike | None,
        y: ArrayLike,
        num_draws: int = 400,
        num_locals: int = 8,
        local_draws: int = 1000,
    ) -> ParetoK: ...
    def held_out_scores(
        self,
        key: Array,
        x_test: ArrayLike,
        y_test: ArrayLike,
        *,
        num_samples: int = 200,
        target_scale: ArrayLike = 1.0,
    ) -> dict[str, float]: ...
    def horizon_scores(
        self,
        key: Array,
        x: Float[Array, "T C"] | None,
        y: Array,
        x_new: Float[Array, "n K"] | None,
        y_new: Array,
        *,
        horizons: Sequence[int] = HORIZONS,
        num_first: int = 0,
        num_origins: int = 50,
        num_samples: int = 200,
        num_particles: int = 500,
        sequence: int = -1,
        fresh: bool = False,
        function: str | None = None,
        target_scale: ArrayLike = 1.0,
    ) -> HorizonScores: ...
    def to_arviz(
        self,
        key: Array,
        x: Any,
        y: Any,
        *,
        num_draws: int | None = None,
        num_locals: int = 8,
        hidden: bool | None = None,
        align: bool = True,
        row: Any = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
    ) -> Any: ...
    def compare(
        self,
        key: Array,
        x: ArrayLike | None,
        y: ArrayLike,
        others: Mapping[str, Fit] | Fit,
        x_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        *,
        name: str = "this fit",
        num_draws: int = 200,
        num_locals: int = 8,
        num_samples: int = 200,
        target_scale: ArrayLike = 1.0,
    ) -> Comparison: ...
    def summary(self) -> pd.DataFrame: ...

"""α-divergence objectives for NumPyro's SVI: Power EP and black-box α (docs/design.md, 4).

With θ the sites outside the data plate, h_n those inside it, and w_n = p(y_n, h_n | θ) / q(h_n | θ) in tempered form,

* ``PowerEP``:        −KL[q(θ)‖p(θ)] + Σ_n E_{q(θ)}[(1/α) log E_{q(h_n|θ)} w_n^α], a lower bound at every α in (0, 1];
* ``BlackBoxAlpha``:  −KL[q(θ)‖p(θ)] + Σ_n (1/α) log E_{q(θ)} E_{q(h_n|θ)} w_n^α, an energy and no bound.

Both are the ELBO at α = 0, an exact branch. What is drawn inside and what outside the logarithm is the definition.
"""

from __future__ import annotations

from ppl_dgp.objectives.divergence import AlphaDivergence


class PowerEP(AlphaDivergence):
    """Power EP with θ outside the logarithm: a lower bound of the evidence (of the FITC model, for GPs) at every α.

    For one layer of Gaussian noise its maximum over q(u) is the closed-form power-EP energy, exact at Z = X. At α = 1
    the inner expectation no longer depends on q(h), so that with many particles the hidden guide is free to wander.
    A trajectory is part of θ: each of its steps is tempered over f, and averaged over the states outside the logarithm.
    """

    globals_outside_log = True
    weighs_rows = True
    along_trajectories = True


class BlackBoxAlpha(AlphaDivergence):
    """Black-box α (Hernández-Lobato et al. 2016; Li & Gal 2017), θ inside the logarithm: an energy, not a bound."""

    globals_outside_log = False
    weighs_rows = True

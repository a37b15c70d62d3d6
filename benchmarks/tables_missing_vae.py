"""A small variational autoencoder with masks, of ``benchmarks.tables_missing``; PyTorch, as `make bench-peers` has it.

    .venv-peers/bin/python -m benchmarks.tables_missing_vae vae SPLIT.npz LEFT.npz SEED BUDGET

The encoder sees entries, 0 where they lack, and which are there; the decoder says a mean and each column a noise; the
bound is of the entries that are there (Nazábal et al. 2020). Ten latents, two layers of 64 units on either side, Adam
at 0.001, until a twentieth of the entries, set aside, has not been said better for 200 epochs; then what was best.
"""

from __future__ import annotations

import copy
import json
import sys
import time

import numpy as np
import torch

LATENT, UNITS, RATE, BATCH, PATIENCE, MOST, DRAWS = 10, 64, 0.001, 100, 200, 5000, 50


class Masked(torch.nn.Module):
    """q(z | entries that are there) and p(entry | z)."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        latent = min(LATENT, columns - 1)
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        self.encoder = torch.nn.Sequential(
            linear(2 * columns, UNITS), relu(), linear(UNITS, UNITS), relu(), linear(UNITS, 2 * latent)
        )
        self.decoder = torch.nn.Sequential(
            linear(latent, UNITS), relu(), linear(UNITS, UNITS), relu(), linear(UNITS, columns)
        )
        self.log_noise = torch.nn.Parameter(torch.zeros(columns))

    def posterior(self, y: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, raw = self.encoder(torch.cat([y * there, there], 1)).chunk(2, 1)
        return mean, torch.nn.functional.softplus(raw) + 1e-4

    def loss(self, y: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        mean, scale = self.posterior(y, there)
        centre = self.decoder(mean + scale * torch.randn_like(mean))
        each = -0.5 * (self.log_noise + (y - centre) ** 2 / self.log_noise.exp() + np.log(2.0 * np.pi))
        divergence = 0.5 * (mean**2 + scale**2 - 1.0) - scale.log()
        return (divergence.sum(1) - (each * there).sum(1)).mean()

    @torch.no_grad()
    def filled(self, y: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Moments of every entry over draws of q."""
        mean, scale = self.posterior(y, there)
        draws = torch.stack([self.decoder(mean + scale * torch.randn_like(mean)) for _ in range(DRAWS)])
        return draws.mean(0), draws.var(0) + self.log_noise.exp()


def main() -> None:
    """Centres and variances in a file, the rest as a line of JSON."""
    _, place, left, seed = sys.argv[1:5]
    torch.manual_seed(int(seed))
    values = np.load(place)["y"]
    began = time.perf_counter()
    seen = torch.tensor(~np.isnan(values)).float()
    y = torch.tensor(np.nan_to_num(values)).float()
    apart = (torch.rand(seen.shape) < 0.05).float() * seen
    there = seen - apart
    model = Masked(values.shape[1])
    adam = torch.optim.Adam(model.parameters(), lr=RATE)
    best, kept, since, epochs = float("inf"), copy.deepcopy(model.state_dict()), 0, 0
    while since < PATIENCE and epochs < MOST:
        for rows in torch.randperm(len(y)).split(BATCH):
            adam.zero_grad()
            model.loss(y[rows], there[rows]).backward()
            adam.step()
        centre, variance = model.filled(y, there)
        each = 0.5 * (variance.log() + (y - centre) ** 2 / variance)
        said = float((each * apart).sum() / apart.sum())
        epochs, since = epochs + 1, since + 1
        if said < best:
            best, kept, since = said, copy.deepcopy(model.state_dict()), 0
    model.load_state_dict(kept)
    centre, variance = model.filled(y, seen)
    seconds = time.perf_counter() - began
    np.savez(left, centre=centre.double().numpy(), variance=variance.double().numpy())
    about = {"steps": epochs, "seconds": seconds, "versions": f"torch {torch.__version__}"}
    print(json.dumps(about), flush=True)


if __name__ == "__main__":
    main()

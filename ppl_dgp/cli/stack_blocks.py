"""The blocks of a stack, made of settings."""

from __future__ import annotations

from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.stacks import read_blocks
from ppl_dgp.models.blocks import DeterministicNetwork, LatentInputs, StackBlock
from ppl_dgp.models.function_blocks import BayesianLayer, GPLayer, RandomFeaturesLayer
from ppl_dgp.models.kernel_values import named_kernel


def blocks_of(settings: Settings) -> list[StackBlock]:
    """Those of a stack, GPs with the kernel and the inducing points of the settings."""
    assert settings.blocks is not None and settings.inducing is not None
    kernel, made = named_kernel(settings.kernel), []
    for name, widths in read_blocks(settings.blocks):
        width = widths[0] if widths else None
        block: StackBlock
        if name == "gp":
            block = GPLayer(width, settings.inducing, kernel=kernel)
        elif name == "bayesian":
            block = BayesianLayer(width)
        elif name == "random-features":
            block = RandomFeaturesLayer(width, kernel=kernel)
        elif name == "network":
            block = DeterministicNetwork(widths)
        else:
            block = LatentInputs(widths[0])
        made.append(block)
    return made

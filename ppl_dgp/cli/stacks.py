"""Blocks of a stack on the command line, from the features to the targets: ``bayesian:20,gp:2,gp``."""

from __future__ import annotations

from typing import Any

from ppl_dgp.cli.errors import BadInput
from ppl_dgp.messages import nearest_of

STACK = "stack"
#: of functions, of which the last has as many outputs as the targets need, and so no width
LAYER_BLOCKS = {
    "gp": "a sparse GP for each output",
    "bayesian": "a layer of a Bayesian neural network",
    "random-features": "a GP of random waves for each output",
}
BLOCKS = LAYER_BLOCKS | {
    "network": "a network of parameters, of several layers as network:20:2",
    "latent": "latents of each row beside what comes before",
}
EXAMPLE = "such as bayesian:20,gp"


def read_blocks(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """Name and widths of each block, the last without any. Raises BadInput for what makes no stack."""
    blocks = []
    parts = [part.strip() for part in text.split(",")]
    for place, part in enumerate(parts, start=1):
        name, *numbers = part.split(":")
        if name not in BLOCKS:
            raise BadInput(f"--blocks has {name!r}, which is unknown", nearest_of(name, list(BLOCKS)))
        if not all(number.isascii() and number.isdigit() and int(number) > 0 for number in numbers):
            raise BadInput(f"--blocks has {part!r}", f"give whole numbers of at least 1, {EXAMPLE}")
        last = place == len(parts)
        if last and (name not in LAYER_BLOCKS or numbers):
            found = "with a width" if numbers else "no layer of functions"
            raise BadInput(
                f"--blocks ends in {part!r}, {found}", f"end in {' or '.join(LAYER_BLOCKS)}, {EXAMPLE}"
            )
        if not last and (not numbers or (len(numbers) > 1 and name != "network")):
            found = "without a width" if not numbers else "of several widths"
            raise BadInput(f"--blocks has {part!r} {found}", f"give one, {EXAMPLE}")
        blocks.append((name, tuple(map(int, numbers))))
    return blocks


def check_blocks(settings: Any) -> None:
    """Raise BadInput for blocks that make no stack, a stack without any, or blocks of another model."""
    if settings.model == STACK:
        if settings.blocks is None:
            raise BadInput("--blocks is not given, but a stack is made of them", f"name them, {EXAMPLE}")
        read_blocks(settings.blocks)
    elif settings.blocks is not None:
        raise BadInput(
            f"--blocks is {settings.blocks}, but is of a stack", f"leave it out, or take --model {STACK}"
        )

"""What estimators of stacks share: their blocks, which are a setting, and the draws of their layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ppl_dgp.estimators.estimator import GPEstimator
from ppl_dgp.guides import HiddenRule
from ppl_dgp.models import stack
from ppl_dgp.models.blocks import StackBlock
from ppl_dgp.models.function_blocks import GPLayer


@dataclass(kw_only=True, eq=False, repr=False)
class StackEstimator(GPEstimator):
    """Blocks from the features to the targets."""

    blocks: Sequence[StackBlock] = (GPLayer(2), GPLayer())
    hidden: str | HiddenRule = "doubly-stochastic"
    num_samples: int = 100

    def _layers(self) -> tuple[tuple[int, ...], str | HiddenRule | None]:
        return (), self.hidden

    def _blocks(self) -> list[StackBlock]:
        """Those of the model.

        :raises TypeError: for what is no block.
        :raises ValueError: for blocks in an order that makes no model, and for a kernel beside them.
        """
        if self.kernel != "rbf":
            raise ValueError(
                f"kernel: found {self.kernel!r}, expected none beside blocks, which have their own; give it to them, "
                "GPLayer(kernel=…)"
            )
        return [self._within(block) for block in stack(self.blocks).blocks]

    def _within(self, block: StackBlock) -> StackBlock:
        """A block of no more inducing points than there may be."""
        if not isinstance(block, GPLayer) or block.inducing is not None:
            return block
        return replace(block, num_inducing=min(block.num_inducing, self.num_inducing_))

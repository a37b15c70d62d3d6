"""The command line ``ppl-dgp``: from a table to a fitted model, its predictions and a comparison of guides."""

import sys
from collections.abc import Sequence

from ppl_dgp.extras import MissingExtra

try:
    from ppl_dgp.cli.main import main
except MissingExtra as missing:
    _MISSING = str(missing)

    def main(argv: Sequence[str] | None = None) -> int:
        """Say that the command line is not installed, and how it is."""
        print(f"ppl-dgp: error: {_MISSING}", file=sys.stderr)
        return 2


__all__ = ["main"]

"""The command line ``ppl-dgp``: from a table to a fitted model, its predictions and a comparison of guides."""

from functools import partial

from ppl_dgp.cli.errors import refused
from ppl_dgp.extras import MissingExtra

try:
    from ppl_dgp.cli.main import main
except MissingExtra as missing:
    main = partial(refused, str(missing))

__all__ = ["main"]

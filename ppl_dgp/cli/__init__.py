"""The command line ``ppl-dgp``: from a table to a fitted model, its predictions and a comparison of guides."""

from ppl_dgp.cli.main import main

__all__ = ["main"]

"""Learning from a stream of batches in constant memory (Bui, Nguyen & Turner 2017)."""

from ppl_dgp.streaming.inducing import Greedy, InducingChoice, Keep, ReplacedAtRandom
from ppl_dgp.streaming.model import move_inducing, store_posterior, streamed
from ppl_dgp.streaming.stream import Stream

__all__ = [
    "Greedy",
    "InducingChoice",
    "Keep",
    "ReplacedAtRandom",
    "Stream",
    "store_posterior",
    "move_inducing",
    "streamed",
]

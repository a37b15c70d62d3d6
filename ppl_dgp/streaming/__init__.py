"""Learning from a stream of batches in constant memory (Bui, Nguyen & Turner 2017)."""

from ppl_dgp.streaming.inducing import Greedy, InducingChoice, Keep, Mixed
from ppl_dgp.streaming.model import remember, renew, streamed
from ppl_dgp.streaming.stream import Stream

__all__ = ["Greedy", "InducingChoice", "Keep", "Mixed", "Stream", "remember", "renew", "streamed"]

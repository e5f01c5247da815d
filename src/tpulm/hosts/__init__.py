"""Several machines that work on one run: which of them this is, where they wait for each other, and what if one is gone.

`join` finds the others and watches them; what they share out is decided by `Hosts.index` and `count` alone. There is no JAX in
here: corpus and dataset are prepared by several hosts, too.
"""

from tpulm.hosts.environment import Membership, membership
from tpulm.hosts.hosts import ALONE, Hosts
from tpulm.hosts.joining import end_now, join

__all__ = ["ALONE", "Hosts", "Membership", "end_now", "join", "membership"]

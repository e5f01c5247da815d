"""A run on a TPU that is not here: compiled by its real compiler, and what that tells of memory, time and money."""

from tpulm.plan.analysis import Analysis, DoesNotFit, Memory
from tpulm.plan.estimate import PhasePlan, Plan, collectives_by_kind, plan
from tpulm.plan.fitting import Fitting, dominating, fit
from tpulm.plan.topology import compiler_version

__all__ = [
    "Analysis",
    "DoesNotFit",
    "Fitting",
    "Memory",
    "PhasePlan",
    "Plan",
    "collectives_by_kind",
    "compiler_version",
    "dominating",
    "fit",
    "plan",
]

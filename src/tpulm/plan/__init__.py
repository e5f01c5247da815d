"""A run on a TPU that is not attached: compiled by its real compiler, and what that says of memory, time and money."""

from tpulm.plan.analysis import Analysis, DoesNotFit, Memory, compiler_version
from tpulm.plan.estimate import Fitting, PhasePlan, Plan, collectives_by_kind, dominating, fit, plan

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

"""A run on a TPU that is not attached: compiled by its real compiler, and what that says of memory, time and money.

`analysis` compiles a program and asks for its memory, `hlo` reads the compiled text, `costs` says what each instruction
takes, `estimate` makes steps, hours and dollars of it and looks for a batch that fits, `advice` says what would be better.
"""

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

"""One page about a run, a fine-tuning, or several runs side by side: HTML without scripts that needs no network.

W/report/index.html is rewritten at evaluations and at the end, and by `tpulm report`.
"""

from tpulm.report.comparison import write_comparison
from tpulm.report.finetuning import is_finetuning
from tpulm.report.run import PAGE, Reporter, write

__all__ = ["PAGE", "Reporter", "is_finetuning", "write", "write_comparison"]

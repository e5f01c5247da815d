"""One page about a run, a fine-tuning, or several runs side by side: HTML without scripts that needs no network.

W/report/index.html is rewritten at evaluations and at the end, and by `tpulm report`.
`history` joins the metrics of all attempts; `run` and `finetuning` render the page of one, `comparison` that of several runs.
`facts` are what the page and the model card of an export have in common; `publishing` uploads an export to the Hub.
"""

from html import escape
from pathlib import PurePath

from tpulm import storage
from tpulm.report import comparison
from tpulm.report.finetuning import is_finetuning
from tpulm.report.run import Reporter, page_of, write

__all__ = ["Report", "Reporter", "comparison", "is_finetuning", "write"]


class Report:
    """The page about a run or a fine-tuning, or about several runs side by side, shown as the value of a notebook cell."""

    def __init__(self, *workdirs: str | PurePath):
        self._workdirs = [storage.as_path(workdir) for workdir in workdirs]

    def html(self) -> str:
        """The page in a frame."""
        page = page_of(self._workdirs[0]) if len(self._workdirs) == 1 else comparison.render(self._workdirs)
        return f'<iframe srcdoc="{escape(page)}" sandbox="" style="width: 100%; height: 640px; border: 0"></iframe>'

    _repr_html_ = html

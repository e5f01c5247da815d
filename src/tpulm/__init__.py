"""Pretrain language models from raw text, and export them in Hugging Face format.

    config = tpulm.load_config("bert-mini", {"corpus.sources": ["reviews/*.txt.gz"]})
    summary = tpulm.run(config, workdir="w")                        # the whole pipeline
    for step, state, metrics in tpulm.training_steps(config, "w"):  # or your own loop around the compiled step
        ...
    model = tpulm.load_model("w/export")
    classifier = tpulm.Classifier("w/export", labels=("neg", "pos")).fit(train, dev)

Names are imported on first use, so `import tpulm` itself loads neither JAX nor NumPy.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tpulm.accelerators import nvidia_driver, tpu_chips
from tpulm.runtime.memory import keep_between_steps

if TYPE_CHECKING:
    from tpulm.config import load as load_config, load_finetune
    from tpulm.convert.huggingface import load_model
    from tpulm.finetuning import Classifier, bench, finetune
    from tpulm.labelled import Columns, read_examples
    from tpulm.pipeline import Summary, run, training_steps
    from tpulm.predict.classify import classify
    from tpulm.predict.embed import embed
    from tpulm.predict.fill_mask import fill_mask
    from tpulm.predict.generate import generate
    from tpulm.predict.scores import sentence_scores
    from tpulm.progress import PrintedProgress
    from tpulm.report import Report
    from tpulm.train.metrics import read_metrics

__all__ = [
    "Classifier",
    "Columns",
    "PrintedProgress",
    "Report",
    "Summary",
    "bench",
    "classify",
    "embed",
    "fill_mask",
    "finetune",
    "generate",
    "load_config",
    "load_finetune",
    "load_model",
    "read_examples",
    "read_metrics",
    "run",
    "sentence_scores",
    "training_steps",
]

# libtpu is there for `tpulm plan`; tried as a device it complains on stderr. A container that hides chips sets TPU_ variables;
# those of logs, and those that JAX itself sets where it finds none, tell nothing.
_SAY_NOTHING = ("TPU_LIBRARY_PATH", "TPU_SKIP_MDS_QUERY", "TPU_ML_PLATFORM", "TPU_MIN_LOG", "TPU_STDERR_LOG")
_tpu_is_named = any(name.startswith("TPU_") and not name.startswith(_SAY_NOTHING) for name in os.environ)
if find_spec("libtpu") and not (_tpu_is_named or tpu_chips() or nvidia_driver()):
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if "jax" in sys.modules and not (jax := sys.modules["jax"]).config.jax_platforms:  # imported before, it has read that
        jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])

_HOMES = {
    "load_config": ("tpulm.config", "load"),
    "load_model": ("tpulm.convert.huggingface", "load_model"),
    "Summary": ("tpulm.pipeline", "Summary"),
    "run": ("tpulm.pipeline", "run"),
    "training_steps": ("tpulm.pipeline", "training_steps"),
    "load_finetune": ("tpulm.config", "load_finetune"),
    "Columns": ("tpulm.labelled", "Columns"),
    "read_examples": ("tpulm.labelled", "read_examples"),
    "PrintedProgress": ("tpulm.progress", "PrintedProgress"),
    "Report": ("tpulm.report", "Report"),
    "read_metrics": ("tpulm.train.metrics", "read_metrics"),
    "Classifier": ("tpulm.finetuning.classifier", "Classifier"),
    "bench": ("tpulm.finetuning.benchmark", "bench"),
    "classify": ("tpulm.predict.classify", "classify"),
    "embed": ("tpulm.predict.embed", "embed"),
    "finetune": ("tpulm.finetuning.run", "finetune"),
    "fill_mask": ("tpulm.predict.fill_mask", "fill_mask"),
    "generate": ("tpulm.predict.generate", "generate"),
    "sentence_scores": ("tpulm.predict.scores", "sentence_scores"),
}
_TRAINING = ("Classifier", "bench", "finetune", "run", "training_steps")


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tpulm' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    if name in _TRAINING:
        keep_between_steps()
    return getattr(import_module(module), attribute)

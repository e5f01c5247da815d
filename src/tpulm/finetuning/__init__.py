"""Text classification and regression with a pretrained encoder."""

from tpulm.finetuning.classifier import Classifier
from tpulm.finetuning.run import finetune, read_mistakes
from tpulm.finetuning.summary import FinetuneSummary, SeedResult

__all__ = ["Classifier", "FinetuneSummary", "SeedResult", "finetune", "read_mistakes"]

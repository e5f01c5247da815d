"""Fine-tuning a pretrained model on labelled texts: tasks by name, `Classifier` in memory, `finetune` on files,
`bench` on the tasks of a benchmark.

`run` reads examples (`tpulm.labelled`), lets a task check and label them (`tasks`, and a module each: `multilabel`, `tagging`,
`questions`, `choices`, `embedding`), fits a `Classifier` per seed with the training loop of `tpulm.train`, and saves the best
one with a `summary`. `predict.classify` uses a saved model without any of this. `benchmark` runs the tasks of `suites`.
"""

from tpulm.config.finetune import METRICS
from tpulm.finetuning.benchmark import BenchReport as BenchReport, bench as bench
from tpulm.finetuning.choices import ChoiceOfAnswers
from tpulm.finetuning.classifier import Classifier as Classifier
from tpulm.finetuning.embedding import Retrieval as Retrieval, ScoredSimilarity
from tpulm.finetuning.multilabel import LabelSets
from tpulm.finetuning.questions import QuestionAnswering
from tpulm.finetuning.run import finetune as finetune, read_mistakes as read_mistakes
from tpulm.finetuning.summary import FinetuneSummary as FinetuneSummary, SeedResult as SeedResult
from tpulm.finetuning.tagging import EntityTagging
from tpulm.finetuning.tasks import Task as Task, TextClassification, TextRegression, register_task as register_task

for _name, _task in {
    "classification": TextClassification(),
    "regression": TextRegression(),
    "choice": ChoiceOfAnswers(),
    "embed": ScoredSimilarity(),
    "multilabel": LabelSets(),
    "qa": QuestionAnswering(),
    "retrieve": Retrieval(),
    "tag": EntityTagging(),
}.items():
    register_task(_name, _task, metrics=METRICS[_name])

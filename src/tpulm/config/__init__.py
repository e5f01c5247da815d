"""What a run is: frozen models, one per component, and how a run file becomes one.

`load(reference, overrides)` resolves a recipe's name or a run file to a `RunConfig`; `canonical_json` is the one way a
configuration is written down and compared. Importing this package loads pydantic and nothing heavier.
"""

from tpulm.config.finetune import FinetuneConfig
from tpulm.config.phases import Phase, phase_at, phases_of
from tpulm.config.resolve import (
    Change,
    canonical_json,
    changes,
    differences,
    finetune_settings,
    from_json,
    list_recipes,
    listed,
    load,
    load_finetune,
    recipe_text,
)
from tpulm.config.schema import (
    OBJECTIVES,
    SCHEDULES,
    CheckpointConfig,
    CleaningConfig,
    CorpusConfig,
    DataConfig,
    GeneratorConfig,
    HardwareConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PhaseConfig,
    RunConfig,
    SourceConfig,
    TokenizerConfig,
    TrainConfig,
)
from tpulm.config.source import CORPUS_FORMATS
from tpulm.config.starting import Start

__all__ = [
    "CORPUS_FORMATS",
    "OBJECTIVES",
    "SCHEDULES",
    "Change",
    "CheckpointConfig",
    "CleaningConfig",
    "CorpusConfig",
    "DataConfig",
    "FinetuneConfig",
    "GeneratorConfig",
    "HardwareConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "Phase",
    "PhaseConfig",
    "RunConfig",
    "SourceConfig",
    "Start",
    "TokenizerConfig",
    "TrainConfig",
    "canonical_json",
    "changes",
    "differences",
    "finetune_settings",
    "from_json",
    "list_recipes",
    "listed",
    "load",
    "load_finetune",
    "phase_at",
    "phases_of",
    "recipe_text",
]

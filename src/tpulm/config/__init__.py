"""The configuration of a run: frozen models, one per component, and how a run file becomes one.

`load(reference, overrides)` resolves a recipe's name or a run file (`resolve`) to the `RunConfig` of `schema`, or to that of
`finetune`; `validation` explains mistakes, also in files from elsewhere, and `reference` lists all settings. `stock_classes`
says which class of transformers a model is. `canonical_json` is the form in which configurations are saved and compared.
Importing this package loads nothing heavier than pydantic.
"""

from tpulm.config.finetune import FinetuneConfig as FinetuneConfig
from tpulm.config.resolve import (
    Change as Change,
    Start as Start,
    canonical_json as canonical_json,
    changes as changes,
    differences as differences,
    finetune_settings as finetune_settings,
    flatten as flatten,
    flattened as flattened,
    from_json as from_json,
    list_recipes as list_recipes,
    load as load,
    load_finetune as load_finetune,
    recipe_text as recipe_text,
)
from tpulm.config.schema import (
    CORPUS_FORMATS as CORPUS_FORMATS,
    DEFAULT_OBJECTIVES as DEFAULT_OBJECTIVES,
    OBJECTIVES as OBJECTIVES,
    SCHEDULES as SCHEDULES,
    CheckpointConfig as CheckpointConfig,
    CleaningConfig as CleaningConfig,
    CorpusConfig as CorpusConfig,
    DataConfig as DataConfig,
    GeneratorConfig as GeneratorConfig,
    HardwareConfig as HardwareConfig,
    ModelConfig as ModelConfig,
    ObjectiveConfig as ObjectiveConfig,
    OptimizerConfig as OptimizerConfig,
    Phase as Phase,
    PhaseConfig as PhaseConfig,
    RotaryScaling as RotaryScaling,
    RunConfig as RunConfig,
    SourceConfig as SourceConfig,
    TokenizerConfig as TokenizerConfig,
    TrackConfig as TrackConfig,
    TrainConfig as TrainConfig,
    phase_at as phase_at,
    phases_of as phases_of,
)
from tpulm.config.validation import listed as listed

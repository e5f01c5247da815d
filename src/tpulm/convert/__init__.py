"""Converting models to and from other formats."""

from tpulm.convert.curve import Point
from tpulm.convert.huggingface import LoadedModel, load_model, save_model
from tpulm.convert.model_card import CardFacts, CorpusFacts, DatasetFacts, Example, Scores, write_card

__all__ = [
    "CardFacts",
    "CorpusFacts",
    "DatasetFacts",
    "Example",
    "LoadedModel",
    "Point",
    "Scores",
    "load_model",
    "save_model",
    "write_card",
]

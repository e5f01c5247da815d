"""Inference with a trained model. Importing this loads JAX: commands do it inside their functions."""

from tpulm.predict.fill_mask import Prediction, fill_mask
from tpulm.predict.generate import Generation, GenerationChunk, Sampling, generate, stream

__all__ = ["Generation", "GenerationChunk", "Prediction", "Sampling", "fill_mask", "generate", "stream"]

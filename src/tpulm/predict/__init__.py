"""Inference with a trained model. Importing this loads JAX: commands do it inside their functions.

`fill_mask`, `generate`, `embed`, `classify` and `scores` each take a loaded model and texts: texts become padded rows of a few
shapes (`shapes`), the device computes them, and each text gets its answer. `minimal_pairs` compares scores of sentences.
`classify` is for models that `tpulm.finetuning` made, whose `Classifier` predicts with the same code.
"""

from tpulm.predict.fill_mask import Prediction, fill_mask
from tpulm.predict.generate import Generation, GenerationChunk, Sampling, generate, stream

__all__ = ["Generation", "GenerationChunk", "Prediction", "Sampling", "fill_mask", "generate", "stream"]

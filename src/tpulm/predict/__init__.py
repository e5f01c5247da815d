"""Using a trained model. Importing this loads JAX: commands do it inside their functions."""

from tpulm.predict.fill_mask import Prediction, fill_mask

__all__ = ["Prediction", "fill_mask"]

"""Whole models in plain JAX: each a spec of its parameters, and functions of parameters and tokens.

`bert` is the encoder of BERT, ModernBERT and EuroBERT, `electra` two of them, `decoder` the causal model. Fine-tuned ones
are an encoder with the head or pooling of `classifier`. Their layers come from `tpulm.nn`, their losses from
`tpulm.objectives`.
"""

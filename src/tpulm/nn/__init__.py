"""Building blocks of models, in plain JAX: parameters described by specs, and free functions over them.

One alphabet of axes is used in annotations, einsum strings and comments everywhere below nn, models and objectives:

    B batch (rows)        L sequence             M sequence of the keys     R all tokens, B * L
    D model               H heads                K head size                G rows of an example
    F feed-forward        V vocabulary           T token types              P predicted positions of a row
    N layers (stacked)    S positions embedded   C classes                  E texts of a row, each with a vector
    I, O inputs and outputs of a dense layer

A layer is a `ParamSpec` tree (`params`) and a function beside it: `layers` has the small ones, `attention` and `dropout` their
subjects, `transformer` the stack of whole layers. `flash` and `flash_gpu` are attention as kernels of TPUs and GPUs.
"""

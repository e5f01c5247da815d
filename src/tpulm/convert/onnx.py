"""An encoder with its head as an ONNX graph, for onnxruntime and others; docs/design/onnx.md says why it is hand-written.

Inputs are int64 [batch, sequence], as transformers' tokenizers give them: without token_type_ids if there is only one type.
attention_mask is 0 for padding.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any

import jax
import numpy as np

from tpulm import storage
from tpulm.config import ModelConfig
from tpulm.convert.huggingface import LoadedModel
from tpulm.errors import ConfigError, installing
from tpulm.models.bert import Bert, masked_activation
from tpulm.models.classifier import HEADS, SequenceClassifier, TextEncoder, TokenClassifier, head_kind
from tpulm.models.electra import Discriminator, Generator
from tpulm.nn.attention import Heads, rotary_frequencies
from tpulm.nn.layers import Activation, Dense, Norm
from tpulm.nn.transformer import Layer, layer_kind

OPSET, IR_VERSION = 17, 8  # of 2022: the first with LayerNormalization
FILE = "onnx/model.onnx"  # next to the weights, where sentence-transformers and transformers.js look for it
_UNSEEN = -1e9  # added to the scores of masked positions
_MOST_BYTES = 2_000_000_000  # a protobuf message is smaller than 2 GiB


def export_onnx(model: LoadedModel, path: PurePath) -> None:
    """Write an ONNX graph with the outputs "logits" of texts or tokens, as in transformers, "start_logits" and "end_logits" of
    answers, or "sentence_embedding". For choices "logits" is one number per row, with a row per choice.

    Raises ConfigError for a causal model, for a model of 2 GB or more, and if the library is missing.
    """
    if find_spec("onnx") is None:
        raise ConfigError(f"ONNX needs the package onnx: {installing('onnx')}")
    if model.config.architecture == "decoder":
        raise ConfigError("this is a causal language model; only encoders are exported as ONNX")
    graph, config = _Graph(), model.config
    table = graph.constant(model.params.embeddings.tokens[: model.vocab_size])
    output = _head(graph, model, table, _encoder(graph, model.params, config, table))
    outputs = {"sentence_embedding" if model.head == "embedding" else "logits": output}
    if model.head == "spans":
        parts = graph.add("Split", output, outputs=2, axis=2)
        outputs = {
            name: graph.add("Squeeze", part, [2]) for name, part in zip(("start_logits", "end_logits"), parts, strict=True)
        }
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if config.token_types > 1 else [])]
    of_texts = model.head in ("classification", "choice", "embedding")
    shape = ["batch", *([] if of_texts else ["sequence"]), *([] if model.head in ("detection", "spans") else [None])]
    data = graph.serialized(outputs, shape, inputs)
    storage.make_folder(path.parent)
    storage.write_atomic(path, data)


class _Graph:
    """Nodes in execution order. Strings name the outputs of nodes; arrays and numbers are constants."""

    def __init__(self) -> None:
        self._nodes, self._constants = list[Any](), dict[str, np.ndarray]()

    def add(self, kind: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or the names of several."""
        from onnx import helper  # pyright: ignore[reportMissingImports]

        names = [f"{kind}_{len(self._nodes)}_{number}" for number in range(outputs)]
        operands = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        self._nodes.append(helper.make_node(kind, operands, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any) -> str:
        """Add a constant, floats as float32 and integers as int64; return its name, for reuse."""
        array, name = np.asarray(value), f"constant_{len(self._constants)}"
        self._constants[name] = np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else np.int64).reshape(
            array.shape
        )
        return name

    def serialized(self, outputs: dict[str, str], shape: list[str | None], inputs: list[str]) -> bytes:
        import onnx  # pyright: ignore[reportMissingImports]
        from onnx import TensorProto, helper, numpy_helper  # pyright: ignore[reportMissingImports]

        if sum(array.nbytes for array in self._constants.values()) >= _MOST_BYTES:
            raise ConfigError("the model has 2 GB of weights or more, which an ONNX file cannot hold")
        for name, output in outputs.items():
            self._nodes.append(helper.make_node("Identity", [output], [name]))
        takes = [helper.make_tensor_value_info(one, TensorProto.INT64, ["batch", "sequence"]) for one in inputs]
        gives = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs]
        weights = [numpy_helper.from_array(array, one) for one, array in self._constants.items()]
        graph = helper.make_graph(self._nodes, "tpulm", takes, gives, weights)
        model = helper.make_model(
            graph, producer_name="tpulm", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString()

    # -- what tpulm.nn.layers computes ------------------------------------------------------------------------------------

    def affine(self, x: str, kernel: Any, bias: Any) -> str:
        product = self.add("MatMul", x, kernel)
        return product if bias is None else self.add("Add", product, bias)

    def dense(self, params: Dense, x: str) -> str:
        return self.affine(x, params.kernel, params.bias)

    def norm(self, params: Norm | None, x: str, config: ModelConfig) -> str:
        """x itself if there is no norm."""
        if params is None:
            return x
        if config.norm == "layer":
            bias = np.zeros_like(params.scale) if params.bias is None else params.bias  # without it onnxruntime 1.32 crashes
            return self.add("LayerNormalization", x, params.scale, bias, axis=-1, epsilon=config.norm_epsilon)
        mean = self.add("ReduceMean", self.add("Mul", x, x), axes=[-1])
        return self.add("Mul", self.add("Div", x, self.add("Sqrt", self.add("Add", mean, config.norm_epsilon))), params.scale)

    def activation(self, name: Activation, x: str) -> str:
        if name == "relu":
            return self.add("Relu", x)
        if name == "silu":
            return self.add("Mul", x, self.add("Sigmoid", x))
        if name == "gelu":
            gate = self.add("Erf", self.add("Div", x, math.sqrt(2.0)))
        else:
            cube = self.add("Mul", self.add("Mul", self.add("Mul", x, x), x), 0.044715)
            gate = self.add("Tanh", self.add("Mul", self.add("Add", x, cube), math.sqrt(2.0 / math.pi)))
        return self.add("Mul", self.add("Mul", x, self.add("Add", gate, 1.0)), 0.5)


def _encoder(graph: _Graph, params: Any, config: ModelConfig, table: str) -> str:
    """The last hidden states [batch, sequence, D]; `table` holds the token embeddings."""
    own, add = params.embeddings, graph.add
    positions = add("Range", 0, add("Gather", add("Shape", "input_ids"), 1), 1)
    x = add("Gather", table, "input_ids")
    if own.positions is not None:
        x = add("Add", x, add("Gather", own.positions, positions))
    if own.types is not None:
        x = add("Add", x, add("Gather", own.types, "token_type_ids") if config.token_types > 1 else own.types[0])
    x = graph.norm(own.norm, x, config)
    x = x if params.projection is None else graph.dense(params.projection, x)
    mask = add("Unsqueeze", add("Cast", "attention_mask", to=1), [1, 2])
    masks: dict[int | None, str] = {None: add("Mul", add("Sub", 1.0, mask), _UNSEEN)}
    turns = dict[float, tuple[str, str]]()
    for number in range(config.num_layers):
        kind = layer_kind(number, config, causal=False)
        theta, window = config.local_theta if kind.is_local else config.rotary_theta, kind.window.before
        if config.positions == "rotary" and theta not in turns:
            scaling = None if kind.is_local else config.rotary_scaling
            frequencies = rotary_frequencies(config.hidden_size // config.num_heads, theta, scaling)
            angles = add("Mul", add("Unsqueeze", add("Cast", positions, to=1), [1]), frequencies[None])
            turns[theta] = add("Cos", angles), add("Sin", angles)
        if window not in masks:
            apart = add("Abs", add("Sub", add("Unsqueeze", positions, [0]), add("Unsqueeze", positions, [1])))
            masks[window] = add("Where", add("Greater", apart, window), _UNSEEN, masks[None])
        layer: Layer = jax.tree.map(lambda leaf, number=number: leaf[number], params.layers)
        x = _layer(graph, layer, x, config, masks[window], turns.get(theta), norms_input=kind.norms_input)
    return graph.norm(params.final_norm, x, config)


def _layer(
    graph: _Graph, params: Layer, x: str, config: ModelConfig, mask: str, turn: tuple[str, str] | None, *, norms_input: bool
) -> str:
    add, pre, own = graph.add, config.norm_position == "pre", params.attention
    below = graph.norm(params.attention_norm, x, config) if pre and norms_input else x

    def heads(of: Heads, turn: tuple[str, str] | None) -> str:
        size, *split = of.kernel.shape
        y = graph.affine(below, of.kernel.reshape(size, -1), None if of.bias is None else of.bias.reshape(-1))
        y = add("Transpose", add("Reshape", y, [0, 0, *split]), perm=[0, 2, 1, 3])
        if turn is None:
            return y
        first, second = add("Split", y, outputs=2, axis=-1)
        lower = add("Sub", add("Mul", first, turn[0]), add("Mul", second, turn[1]))
        return add("Concat", lower, add("Add", add("Mul", second, turn[0]), add("Mul", first, turn[1])), axis=-1)

    scores = add("MatMul", heads(own.query, turn), add("Transpose", heads(own.key, turn), perm=[0, 1, 3, 2]))
    weights = add("Softmax", add("Add", add("Mul", scores, own.query.kernel.shape[2] ** -0.5), mask), axis=-1)
    mixed = add("Transpose", add("MatMul", weights, heads(own.value, None)), perm=[0, 2, 1, 3])
    kernel = own.output.kernel.reshape(-1, config.hidden_size)
    x = add("Add", x, graph.affine(add("Reshape", mixed, [0, 0, len(kernel)]), kernel, own.output.bias))
    x = x if pre else graph.norm(params.attention_norm, x, config)
    below = graph.norm(params.feed_forward_norm, x, config) if pre else x
    inner = graph.activation(config.activation, graph.dense(params.gate or params.up, below))
    inner = inner if params.gate is None else add("Mul", inner, graph.dense(params.up, below))
    x = add("Add", x, graph.dense(params.down, inner))
    return x if pre else graph.norm(params.feed_forward_norm, x, config)


def _pooled(graph: _Graph, x: str, *, mean: bool) -> str:
    if not mean:
        return graph.add("Gather", x, 0, axis=1)
    mask = graph.add("Unsqueeze", graph.add("Cast", "attention_mask", to=1), [2])
    sums = (graph.add("ReduceSum", one, [1], keepdims=0) for one in (graph.add("Mul", x, mask), mask))
    return graph.add("Div", *sums)


def _head(graph: _Graph, model: LoadedModel, table: str, x: str) -> str:
    config, add, params, outputs = model.config, graph.add, model.params, model.head_config
    if isinstance(params, TextEncoder):
        x = _pooled(graph, x, mean=outputs is None or outputs.pooling == "mean")
        return x if outputs is not None and not outputs.normalized else add("LpNormalization", x, axis=-1, p=2)
    if isinstance(params, SequenceClassifier):
        own, kind = params.classification_head, HEADS[head_kind(config)]
        assert own.dense is not None  # None in a causal model's
        x = graph.dense(own.dense, _pooled(graph, x, mean=outputs is not None and outputs.pooling == "mean"))
        x = add("Tanh", x) if kind.activation == "tanh" else graph.activation(kind.activation or config.activation, x)
        return graph.dense(own.output, graph.norm(own.norm, x, config))
    if isinstance(params, TokenClassifier):
        own = params.token_head
        x = x if own.dense is None else graph.activation(config.activation, graph.dense(own.dense, x))
        return graph.dense(own.output, graph.norm(own.norm, x, config))
    if isinstance(params, Discriminator):
        own = params.detection_head
        x = graph.activation(config.activation, graph.dense(own.dense, x))
        return add("Squeeze", graph.dense(own.output, x), [2])
    assert isinstance(params, Bert | Generator)
    own, size = params.masked_head, model.vocab_size
    if own.dense is not None:
        x = graph.norm(own.norm, graph.activation(masked_activation(config), graph.dense(own.dense, x)), config)
    products = add("Transpose", table if own.output is None else own.output[:size], perm=[1, 0])
    return graph.affine(x, products, None if own.output_bias is None else own.output_bias[:size])

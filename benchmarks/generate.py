"""Text generation against transformers' `generate`: tokens a second of the same random decoder, sampled, batches of 16 prompts.

    python benchmarks/generate.py [--rounds 3] [--size small|base] [--tokens 128] [--json FILE]

Ours is `tpulm.generate` (top-p 0.95), theirs `model.generate` with the same settings and a cache of keys and values; both in
float32 (TF32 on a GPU), compiled or warmed up before, with a vocabulary of 30,000. "base" is 12 layers of 768, the default on a
GPU. Needs torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tpulm import generate, tokenization
from tpulm.accelerators import nvidia_driver
from tpulm.config import ModelConfig, TokenizerConfig
from tpulm.convert.huggingface import LoadedModel, save_loaded
from tpulm.models import decoder
from tpulm.nn.params import initialize

PROMPTS, PROMPT_WORDS, VOCAB_SIZE = 16, 24, 30_000
SIZES = {"small": (4, 256, 4), "base": (12, 768, 12)}  # layers, hidden size, heads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=SIZES, default="base" if nvidia_driver() else "small")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("torch is not installed: 'pip install torch==2.13.0' makes the comparison possible")
    if not nvidia_driver():
        jax.config.update("jax_platforms", "cpu")  # no TPU is looked for
    model, prompts = random_model(*SIZES[options.size]), make_prompts()
    contenders = {"tpulm": lambda: ours(model, prompts, options.tokens), "transformers": theirs(model, prompts, options.tokens)}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    first_seconds = dict[str, float]()
    for turn in range(options.rounds + 1):
        for name, contender in contenders.items():
            begun = time.perf_counter()
            tokens = contender()
            seconds = time.perf_counter() - begun
            if turn:
                rates[name].append(tokens / seconds)
            else:
                first_seconds[name] = round(seconds, 1)
    result = {f"{name}_tokens_per_second": round(statistics.median(values)) for name, values in rates.items()}
    ratios = [a / b for a, b in zip(rates["tpulm"], rates["transformers"], strict=True)]
    result |= {"first_seconds": first_seconds, "size": options.size, "ratio": round(statistics.median(ratios), 2)}
    print("  ".join(f"{name} {value}" for name, value in result.items()))
    if options.json:
        Path(options.json).write_text(json.dumps(result))


def make_prompts() -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join("".join(map(chr, rng.integers(97, 123, 4))) for _ in range(PROMPT_WORDS)) for _ in range(PROMPTS)]


def random_model(layers: int, size: int, heads: int) -> LoadedModel:
    rng = np.random.default_rng(1)
    words = ["".join(map(chr, rng.integers(97, 123, 8))) for _ in range(40_000)]
    texts = [" ".join(words[::step]) for step in (1, -1)]  # every word twice
    made = tokenization.train([[*make_prompts(), *texts]], TokenizerConfig(algorithm="bpe", vocab_size=VOCAB_SIZE))
    config = ModelConfig(
        architecture="decoder",
        num_layers=layers,
        hidden_size=size,
        num_heads=heads,
        intermediate_size=4 * size,
        max_positions=1024,
        norm_position="pre",
        norm_epsilon=1e-5,
    )
    spec = decoder.spec(config, vocab_size=made.vocab_size)
    return LoadedModel(jax.device_get(initialize(spec, jax.random.key(0))), config, made.vocab_size, made, "causal")


def ours(model: LoadedModel, prompts: list[str], tokens: int) -> int:
    return sum(len(one.token_ids) for one in generate(model, prompts, max_tokens=tokens, temperature=1.0, top_p=0.95))


def theirs(model: LoadedModel, prompts: list[str], tokens: int) -> Any:
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM

    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        save_loaded(Path(folder) / "model", model)
        network: Any = AutoModelForCausalLM.from_pretrained(Path(folder) / "model")
    network = network.to(device).eval()
    encoded = [model.tokenization.causal().encode_one(prompt) for prompt in prompts]
    longest, pad = max(map(len, encoded)), model.tokenization.special.pad
    ids = torch.tensor([[pad] * (longest - len(one)) + one for one in encoded], device=device)
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in encoded], device=device)
    sampling = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 0, "pad_token_id": pad, "eos_token_id": None}

    def run() -> int:
        with torch.inference_mode():
            made = network.generate(input_ids=ids, attention_mask=mask, max_new_tokens=tokens, **sampling)
        return made[:, longest:].numel()

    return run


if __name__ == "__main__":
    main()

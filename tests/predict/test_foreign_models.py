"""Causal models of others, with their tokenizers: the tokens that transformers' `generate` gives, before and after import."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenizers import ByteLevelBPETokenizer, Tokenizer, processors

from command_line import invoke
from tpulm import load_model
from tpulm.convert.importing import import_model
from tpulm.predict import generate

TEXTS = ["the old cat sees a fox", "a fox, seen by the cat; the cat is old!", "고양이가 여우를 본다. 猫は狐を見る。"] * 4
PROMPTS = ["the old cat", "", " a fox sees", "猫は", "unheard-of words\n\nand lines", "the <|end|>cat"]
TOKENS = 24
SIZES = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3, "max_position_embeddings": 64}
SIZES |= {"vocab_size": 320, "bos_token_id": 0, "eos_token_id": 1}


@pytest.fixture(scope="module")
def bytes_tokenizer() -> Tokenizer:
    """Byte-level BPE that knows two special tokens: <|begin|> is 0 and <|end|> is 1."""
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(TEXTS, vocab_size=300, special_tokens=["<|begin|>", "<|end|>"], show_progress=False)
    return Tokenizer.from_str(made.to_str())


def save_random_llama(torch: ModuleType, folder: Path, **settings: Any) -> None:
    """A model of transformers with numbers far from zero, so that what it says varies."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(3)
    model: Any = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("llama", **SIZES | settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.7)
    model.save_pretrained(folder)


def same_as_transformers(torch: ModuleType, source: Path, imported: Path, prompts: list[str]) -> None:
    """Greedy tokens of both are those that transformers makes of the model in `source`, prompt by prompt."""
    import transformers

    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    tokenizer, copied = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (source, imported))
    model = load_model(imported)
    found = generate(model, prompts, max_tokens=TOKENS, temperature=0.0)
    assert generate(load_model(source), prompts, max_tokens=TOKENS, temperature=0.0) == found
    ends = theirs.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    seen: set[int] = set()
    for prompt, one in zip(prompts, found, strict=True):
        ids = tokenizer(prompt)["input_ids"]
        assert copied(prompt)["input_ids"] == ids
        ids = ids or [theirs.generation_config.bos_token_id]
        assert model.tokenization.encode_one(prompt) == ids
        inputs = torch.tensor([ids])
        out = theirs.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=TOKENS, do_sample=False, pad_token_id=ends[0]
        )
        expected = out[0, len(ids) :].tolist()
        ended = (expected[:-1], "end of text") if expected[-1] in ends else (expected, "max_tokens")
        assert (list(one.token_ids), one.ending) == ended
        seen |= set(expected)
    assert len(seen) > 1, "or equality would say little"


def test_a_gpt2_with_vocab_json_and_merges(torch: ModuleType, real_data: Path, tmp_path: Path):
    source, out = real_data / "fixtures" / "gpt2_hf", tmp_path / "out"
    prompts = ["low newer", "", "lowest wider", " low", "d", "<|endoftext|>low"]
    import_model(source, out)
    files = {"config.json", "import.json", "model.safetensors", "special_tokens_map.json"}
    assert {file.name for file in out.iterdir()} == files | {"tokenizer.json", "tokenizer_config.json"}
    same_as_transformers(torch, source, out, prompts)
    printed = json.loads(invoke("generate", out, *prompts, "--temperature", 0, "--max-tokens", TOKENS, "--json").stdout)
    direct = generate(load_model(source), prompts, max_tokens=TOKENS, temperature=0.0)
    assert [one["token_ids"] for one in printed] == [list(one.token_ids) for one in direct]


@pytest.mark.parametrize("ends", [1, [1, *range(60, 70)]], ids=["one end", "several ends"])
def test_a_llama_begins_every_prompt_with_its_bos(torch: ModuleType, bytes_tokenizer: Tokenizer, tmp_path: Path, ends: Any):
    import transformers

    source = tmp_path / "source"
    save_random_llama(torch, source, intermediate_size=40, eos_token_id=ends)
    copy = Tokenizer.from_str(bytes_tokenizer.to_str())
    copy.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", 0)]
    )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=copy, bos_token="<|begin|>", eos_token="<|end|>")
    fast.save_pretrained(source)
    assert import_model(source, tmp_path / "out").notes == ()
    for name in ("tokenizer.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    same_as_transformers(torch, source, tmp_path / "out", PROMPTS)
    if isinstance(ends, list):
        found = generate(load_model(source), PROMPTS, max_tokens=TOKENS, temperature=0.0)
        assert any(one.ending == "end of text" for one in found), "or nothing was tried"
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(source)
    for settings, said in (({"repetition_penalty": 1.0, "num_beams": 1}, False), ({"repetition_penalty": 1.8}, True)):
        theirs.generation_config.update(**settings)
        theirs.generation_config.save_pretrained(source)
        stderr = invoke("generate", source, "the", "--max-tokens", 2).stderr
        assert ("asks for repetition_penalty = 1.8; that is not done" in " ".join(stderr.split())) == said

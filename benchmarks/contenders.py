"""What benchmarks/prepare.py measures, each in a process of its own: `python benchmarks/contenders.py JOB`, a JSON object.

Every one of them prints seconds, tokens and more as one JSON object. Reading the text is within all but `bare`.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpora import in_batches, read

from tpulm import corpus, tokenization
from tpulm.config import CorpusConfig, DataConfig, SourceConfig
from tpulm.dataset import MODULES, prepare, warm_up
from tpulm.runtime.workers import WorkerPool


@dataclass(frozen=True)
class Job:
    contender: str
    files: tuple[str, ...]
    tokenizer: str  # its folder
    workers: int
    sequence_length: int


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    print(json.dumps(CONTENDERS[job.contender](job)))


def bare(job: Job) -> dict[str, Any]:
    """What the library does at its best: texts in memory, lists of 10,000, so that it need not hold all tokens as objects."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(job.tokenizer) / "tokenizer.json"))
    seconds, tokens = 0.0, 0
    for file in job.files:
        for texts in in_batches(read(Path(file))):
            started_at = time.perf_counter()
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            seconds += time.perf_counter() - started_at
            tokens += sum(map(len, encodings))
    return {"seconds": seconds, "tokens": tokens}


def preparation(job: Job) -> dict[str, Any]:
    """Rows as the contender is called, from the compressed file to the finished dataset."""
    config = DataConfig.model_validate({"rows": job.contender, "sequence_length": job.sequence_length})
    sources = CorpusConfig(sources=tuple(SourceConfig(path=file) for file in job.files))
    with tempfile.TemporaryDirectory(prefix="tpulm-prepare-") as workdir:
        started_at = time.perf_counter()
        with WorkerPool(job.workers, modules=MODULES) as pool:  # as in tpulm.pipeline.preparation, where a tokenizer is given
            warm_up(pool, job.tokenizer)
            scattered = corpus.scatter(sources, workdir, part_bytes=config.part_bytes, runner=pool)
            scattered_at = time.perf_counter()
            given = {"tokenizer": tokenization.load(job.tokenizer), "tokenization_path": job.tokenizer}
            manifest = prepare(config, workdir, **given, corpus_manifest=scattered, runner=pool)
        seconds = time.perf_counter() - started_at
        counts = (manifest.train.counts, manifest.holdout.counts)
        tokens = sum(one.tokens for one in counts)
        return {
            "seconds": seconds,
            "scatter_seconds": scattered_at - started_at,
            "bytes_per_token": disk_usage(Path(workdir) / "dataset") / tokens,
            "tokens": tokens,
            "duplicates": sum(one.duplicates for one in counts),
            "rows": sum(one.rows for one in counts),
            "padding_fraction": manifest.train.padding_fraction,
        }


def datasets(job: Job) -> dict[str, Any]:
    """Hugging Face's libraries as their examples have it, ids alone: nothing is kept that ours does not keep."""
    with tempfile.TemporaryDirectory(prefix="tpulm-datasets-") as cache:
        os.environ.update(HF_HOME=cache, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # `map` has a process for each core
        from datasets import load_dataset
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(Path(job.tokenizer) / "tokenizer.json"))
        length = job.sequence_length

        def tokenize(batch: dict[str, list[str]]) -> dict[str, Any]:
            ids = tokenizer(batch["text"], add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False)
            return {"input_ids": ids["input_ids"]}

        def group_texts(batch: dict[str, list[list[int]]]) -> dict[str, Any]:
            ids = list(itertools.chain(*batch["input_ids"]))
            return {"input_ids": [ids[first : first + length] for first in range(0, len(ids) // length * length, length)]}

        started_at = time.perf_counter()
        lines: Any = load_dataset("text", data_files=list(job.files), split="train")
        loaded_at = time.perf_counter()
        encoded = lines.map(tokenize, batched=True, num_proc=job.workers, remove_columns=["text"])
        rows = encoded.map(group_texts, batched=True, num_proc=job.workers)
        seconds = time.perf_counter() - started_at
        return {
            "seconds": seconds,
            "scatter_seconds": loaded_at - started_at,
            "tokens": len(rows) * length,
            "rows": len(rows),
        }


CONTENDERS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "bare": bare,
    "packed": preparation,
    "segments": preparation,
    "datasets": datasets,
}


def missing_libraries(contender: str) -> list[str]:
    wanted = ("datasets", "transformers") if contender == "datasets" else ()
    return [name for name in wanted if importlib.util.find_spec(name) is None]


def disk_usage(folder: Path) -> int:
    """What `du` says, in bytes."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


if __name__ == "__main__":
    main()

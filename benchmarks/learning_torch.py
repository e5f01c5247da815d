"""The work of torch and transformers in benchmarks/learning.py, each job a process: `learning_torch.py JOB`, a JSON object.

    pretrain   the peer: transformers' BertForMaskedLM on grouped rows, as run_mlm groups them, or its
               model of any kind on batches that tpulm wrote; resumed where it was stopped
    pace       the same steps, so many for each line of stdin, whose seconds it prints
    score      the loss of a saved model, ours or theirs, on held-out texts with fixed masks
    finetune   a saved model on labelled examples: the same code for all of them
    tfidf      1 to 4 characters and logistic regression; of pairs the cosine of both

Torch runs under tcmalloc where it is installed (benchmarks/turns.py). Texts are tokenized once and kept; that time is in
no budget.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from learning_data import Example, labels_of, lines_of, metric, read
from torch.nn.functional import cross_entropy, mse_loss  # pyright: ignore[reportMissingImports]
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
)
from turns import say

from tpulm.accelerators import cpu_multiplies_bfloat16

LENGTH = 64
MASKED = 0.15
BFLOAT16 = cpu_multiplies_bfloat16()
DROPOUT = 0.1  # in fine-tuning
EPOCHS = (6, 2)  # of up to 2,000 labels, and of more
BATCH = 32


@dataclass(frozen=True)
class Peer:
    """How torch pretrains. As they stand: the defaults of transformers' run_mlm and its Trainer."""

    learning_rate: float = 5e-5
    batch_size: int = 8
    warmup_fraction: float = 0.0
    weight_decay: float = 0.0
    dropout: float = 0.1
    bfloat16: bool = False
    gathered: bool = False  # logits at the predicted positions only, always as many of a row
    compiled: bool = False
    attention: str = "sdpa"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float = 1.0
    name: str = "adamw"  # or muon, for the matrices of layers


def main() -> None:
    job = json.loads(sys.argv[1])
    name = job.pop("job")
    if threads := job.pop("threads", None):
        torch.set_num_threads(threads)
    result = {"pretrain": pretrain, "pace": pace, "score": score, "finetune": finetune, "tfidf": tfidf}[name](**job)
    say(result)


def tokenizer_of(folder: str) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_file=str(Path(folder) / "tokenizer.json"),
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        unk_token="[UNK]",
    )


def grouped_rows(texts: Path, tokenizer: Any, kept: Path) -> np.ndarray:
    """int [N, 64]: all texts with their special tokens, one after another, cut into rows."""
    if not kept.is_file():
        ids: list[int] = []
        lines = lines_of(texts)
        for first in range(0, len(lines), 10_000):
            for one in tokenizer.backend_tokenizer.encode_batch_fast(lines[first : first + 10_000]):
                ids.extend(one.ids)
        rows = np.asarray(ids[: len(ids) // LENGTH * LENGTH], np.uint16).reshape(-1, LENGTH)
        unfinished = kept.with_suffix(".unfinished.npy")
        np.save(unfinished, rows)
        unfinished.replace(kept)
    return np.load(kept, mmap_mode="r")


class Muon:
    """Jordan et al. 2024: steps along the momentum with its singular values near 1, of RMS 0.2 (Liu et al. 2025).

    Parts of a matrix that transformers has fused, queries, keys and values, or a gate and what it gates, are matrices of their
    own; all of one shape are computed at once.
    """

    FUSED: ClassVar[dict[str, int]] = {"Wqkv": 3, "Wi": 2}

    def __init__(self, matrices: dict[str, Any], weight_decay: float):
        self.weight_decay, self.means = weight_decay, [torch.zeros_like(p) for p in matrices.values()]
        self.matrices = list(matrices.values())
        self.parts = [self.FUSED.get(name.split(".")[-2], 1) for name in matrices]
        self.done = 0

    @torch.no_grad()
    def step(self, rate: float) -> None:
        self.done += 1
        shapes: dict[Any, list[tuple[Any, Any]]] = {}
        for matrix, mean, parts in zip(self.matrices, self.means, self.parts, strict=True):
            mean.mul_(0.95).add_(matrix.grad, alpha=0.05)
            ahead = mean * (0.95 / (1 - 0.95 ** (self.done + 1))) + matrix.grad * (0.05 / (1 - 0.95**self.done))
            matrix.mul_(1.0 - rate * self.weight_decay)
            for part, towards in zip(matrix.chunk(parts), ahead.chunk(parts), strict=True):
                shapes.setdefault(part.shape, []).append((part, towards))
        for shape, pairs in shapes.items():
            updates = self._orthogonal(torch.stack([towards for _, towards in pairs]))
            for (part, _), update in zip(pairs, updates, strict=True):
                part.sub_(update, alpha=rate * 0.2 * math.sqrt(max(shape)))

    @staticmethod
    def _orthogonal(x: Any) -> Any:
        if tall := x.shape[1] > x.shape[2]:
            x = x.mT
        x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-8)
        for _ in range(5):
            square = x @ x.mT
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        return x.mT if tall else x


class Pretraining:
    """The model, its optimizer and `step()`. `steps` is where the learning rate reaches 0."""

    def __init__(self, tokenizer: str, rows: str, texts: str, peer: Peer, steps: int, seed: int):
        torch.manual_seed(seed)
        self.tokenizer, self.peer, self.steps, self.seed = tokenizer_of(tokenizer), peer, steps, seed
        self.rows = grouped_rows(Path(texts), self.tokenizer, Path(rows))
        self.special = np.asarray(sorted(self.tokenizer.all_special_ids))
        config = BertConfig(
            vocab_size=len(self.tokenizer),
            num_hidden_layers=4,
            hidden_size=256,
            num_attention_heads=4,
            intermediate_size=1024,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=peer.dropout,
            attention_probs_dropout_prob=peer.dropout,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        config._attn_implementation = peer.attention
        self._begin(BertForMaskedLM(config))

    def _begin(self, model: Any) -> None:
        peer, self.model = self.peer, model.train()
        self.loss = torch.compile(self._loss) if peer.compiled else self._loss
        named = dict(self.model.named_parameters())
        of_layers = {name: p for name, p in named.items() if peer.name == "muon" and p.ndim > 1 and ".layer" in name}
        self.muon = Muon(of_layers, peer.weight_decay)
        matrices = [p for name, p in named.items() if p.ndim > 1 and name not in of_layers]
        others = [p for p in named.values() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": peer.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, lr=peer.learning_rate, betas=(peer.beta1, peer.beta2), eps=peer.epsilon, fused=True
        )
        self.done = 0

    def step(self) -> float:
        batch = [torch.from_numpy(one) for one in self._batch()]
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        self.model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.peer.bfloat16):
            loss = self.loss(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.peer.clip_norm)
        self.optimizer.step()
        self.muon.step(self._rate())
        self.done += 1
        return float(loss.detach())

    def _loss(self, *batch: Any) -> Any:
        ids, labels, predicted = batch
        if not self.peer.gathered:
            return self.model(input_ids=ids, labels=labels).loss
        hidden = self.model.bert(input_ids=ids).last_hidden_state
        chosen = torch.gather(hidden, 1, predicted[:, :, None].expand(-1, -1, hidden.shape[-1]))
        logits = self.model.cls(chosen).flatten(0, 1).float()
        return cross_entropy(logits, torch.gather(labels, 1, predicted).flatten())

    def _batch(self) -> tuple[np.ndarray, ...]:
        """Rows in an order of each epoch's own; of each row 15 % of the tokens, 80 % of them [MASK], 10 % random."""
        size, count = self.peer.batch_size, len(self.rows)
        first = self.done * size
        places = np.arange(first, first + size)
        chosen = np.concatenate(
            [self._order(int(epoch))[places[places // count == epoch] % count] for epoch in set(places // count)]
        )
        ids = self.rows[np.sort(chosen)].astype(np.int64)
        chance = np.random.default_rng((self.seed, self.done))
        draws = np.where(np.isin(ids, self.special), 2.0, chance.random(ids.shape))
        predicted = np.argsort(draws, axis=1)[:, : round(MASKED * LENGTH)]
        mask = np.zeros(ids.shape, bool)
        if self.peer.gathered:
            np.put_along_axis(mask, predicted, True, axis=1)
        else:  # as DataCollatorForLanguageModeling draws them, each by itself
            mask = draws < MASKED
        labels = np.where(mask, ids, -100)
        how = chance.random(ids.shape)
        ids = np.where(mask & (how < 0.8), self.tokenizer.mask_token_id, ids)
        ids = np.where(mask & (how >= 0.9), chance.integers(0, len(self.tokenizer), ids.shape), ids)
        return ids, labels, predicted

    def _order(self, epoch: int) -> np.ndarray:
        if getattr(self, "_kept", (None,))[0] != epoch:
            self._kept = (epoch, np.random.default_rng((self.seed, 1 << 20, epoch)).permutation(len(self.rows)))
        return self._kept[1]

    def _rate(self) -> float:
        warmup = round(self.peer.warmup_fraction * self.steps)
        return self.peer.learning_rate * min(
            (self.done + 1) / max(1, warmup), (self.steps - self.done) / max(1, self.steps - warmup)
        )

    def save(self, folder: Path) -> None:
        """All of it or nothing."""
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        self.model.save_pretrained(unfinished)
        self.tokenizer.save_pretrained(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)


class Twin(Pretraining):
    """transformers' model of the first weights in a folder, on the batches and with the learning rates that lie there."""

    def __init__(self, tokenizer: str, batches: str, peer: Peer, steps: int, seed: int):
        torch.manual_seed(seed)
        self.tokenizer, self.peer, self.steps = tokenizer_of(tokenizer), peer, steps
        self.files, self._kept = sorted(Path(batches).glob("*.npz")), (-1, {})
        first, kind = Path(batches) / "first", peer.attention
        self._begin(AutoModelForMaskedLM.from_pretrained(first, dtype=torch.float32, attn_implementation=kind))

    def _loss(self, *batch: Any) -> Any:
        ids, labels, predicted, weights, mask, positions = batch
        hidden = self.model.base_model(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        chosen = torch.gather(hidden, 1, predicted[:, :, None].expand(-1, -1, hidden.shape[-1]))
        bert = hasattr(self.model, "cls")
        logits = self.model.cls(chosen) if bert else self.model.decoder(self.model.head(chosen))
        logits = logits.flatten(0, 1).float()
        return (cross_entropy(logits, labels.flatten(), reduction="none") * weights.flatten()).sum() / weights.sum()

    def _batch(self) -> tuple[np.ndarray, ...]:
        """A token sees those of its segment, in a causal phase those before it. For `pace` the batches begin again."""
        starts = [int(file.stem) for file in self.files]
        length = starts[-1] + len(np.load(self.files[-1])["rate"])
        file = bisect_right(starts, self.done % length) - 1
        if self._kept[0] != file:
            self._kept = (file, dict(np.load(self.files[file])))
        one = {name: values[self.done % length - starts[file]] for name, values in self._kept[1].items()}
        self._now = float(one["rate"])
        segments = one["segments"]
        seen = segments[:, None, :, None] == segments[:, None, None, :]
        if one["causal"]:
            seen &= np.tri(seen.shape[-1], dtype=bool)
        if self.peer.attention == "eager":
            seen = np.where(seen, np.float32(0.0), np.finfo(np.float32).min)
        whole = [one[name].astype(np.int64) for name in ("ids", "labels", "predicted")]
        return *whole, one["weights"].astype(np.float32), seen, one["positions"].astype(np.int64)

    def _rate(self) -> float:
        return self._now


def training_of(tokenizer: str, peer: dict[str, Any], steps: int, seed: int, **data: str) -> Pretraining:
    kind: Any = Twin if "batches" in data else Pretraining
    return kind(tokenizer, **data, peer=Peer(**peer), steps=steps, seed=seed)


def pretrain(folder: str, until: int, stops: int, **settings: Any) -> dict[str, Any]:
    """Up to step `until`; models of `stops` of all `steps`, the last one at the end, in folder/STEP."""
    training, steps = training_of(**settings), settings["steps"]
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    state = place / "state.pt"
    if state.is_file():
        kept = torch.load(state)
        training.model.load_state_dict(kept["model"])
        training.optimizer.load_state_dict(kept["optimizer"])
        training.muon.means, training.muon.done = kept["muon"], kept["step"]
        training.done = kept["step"]
        torch.set_rng_state(kept["random"])
    due = {max(1, round(steps * number / stops)) for number in range(1, stops + 1)}
    began, since, losses = time.perf_counter(), training.done, []
    while training.done < until:
        losses.append(training.step())
        if not math.isfinite(losses[-1]):
            print(f"the loss is {losses[-1]} at step {training.done:,}", file=sys.stderr)
            (place / "diverged.json").write_text(json.dumps({"step": training.done}))
            break
        if training.done in due:
            training.save(place / str(training.done))
            kept = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict(), "step": training.done}
            kept |= {"random": torch.get_rng_state(), "muon": training.muon.means}
            torch.save(kept, state.with_suffix(".unfinished"))
            state.with_suffix(".unfinished").replace(state)
            seconds = (time.perf_counter() - began) / (training.done - since)
            print(f"{training.done:,}/{steps:,}  {seconds:.3f} s a step  loss {np.mean(losses[-50:]):.3f}", file=sys.stderr)
    return {}


def pace(per_round: int, **settings: Any) -> dict[str, Any]:
    if "rows" in settings:
        grouped_rows(Path(settings["texts"]), tokenizer_of(settings["tokenizer"]), Path(settings["rows"]))
    began = time.perf_counter()
    training = training_of(**settings, steps=1_000_000, seed=0)
    training.step()
    first = time.perf_counter() - began
    training.step()
    say({"first": first})
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(per_round):
            training.step()
        say({"seconds": (time.perf_counter() - began) / per_round})
    return {}


def encode(tokenizer: Any, texts: list[Any], length: int) -> list[Any]:
    """The encodings of texts, or of pairs of texts, of at most so many tokens."""
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(length)
    return backend.encode_batch(texts)


def encoded(tokenizer: Any, examples: list[Example], length: int = LENGTH) -> list[tuple[list[int], list[int]]]:
    """(ids, types) of each."""
    texts = [one.text if one.pair is None else (one.text, one.pair) for one in examples]
    return [(one.ids, one.type_ids) for one in encode(tokenizer, texts, length)]


def padded(rows: list[tuple[list[int], list[int]]], pad: int, types: bool) -> dict[str, Any]:
    length = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [pad] * (length - len(ids)) for ids, _ in rows])
    batch = {"input_ids": ids, "attention_mask": (ids != pad).long()}
    if types:
        batch["token_type_ids"] = torch.tensor([kinds + [0] * (length - len(kinds)) for _, kinds in rows])
    return batch


@torch.no_grad()
def score(folders: list[str], tokenizer: str, texts: str) -> dict[str, Any]:
    """Nats of a masked token for each model: 15 % of each text's tokens, at least one, all [MASK].

    Bits a character are these by the mean number of characters of a token, of the first 62 tokens of each text.
    """
    words = tokenizer_of(tokenizer)
    encodings = encode(words, lines_of(Path(texts)), LENGTH)
    rows = [(one.ids, one.type_ids) for one in encodings]
    characters = sum(one.offsets[-2][1] for one in encodings) / sum(len(one.ids) - 2 for one in encodings)
    order = sorted(range(len(rows)), key=lambda number: len(rows[number][0]))
    losses: dict[str, Any] = {}
    for folder in folders:
        model: Any = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
        total, count = 0.0, 0
        for first in range(0, len(order), 100):
            batch = padded([rows[number] for number in order[first : first + 100]], words.pad_token_id, types=False)
            ids = batch["input_ids"].numpy().copy()
            chance = np.random.default_rng((1, first))
            draws = np.where(np.isin(ids, words.all_special_ids), 2.0, chance.random(ids.shape))
            mask = (draws < MASKED) | ((draws == draws.min(axis=1, keepdims=True)) & (draws < 2.0))
            labels = torch.from_numpy(np.where(mask, ids, -100))
            batch["input_ids"] = torch.from_numpy(np.where(mask, words.mask_token_id, ids))
            logits = model(**batch).logits
            total += float(cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"))
            count += int(mask.sum())
        loss = total / count
        losses[folder] = {"loss": loss, "bits_per_character": loss / math.log(2) / characters, "masked": count}
    return losses


def finetune(
    folder: str,
    tokenizer: str,
    data: str,
    labels: int,
    learning_rate: float,
    seed: int,
    from_scratch: bool,
    epochs: int | None = None,
    length: int = LENGTH,
    weight_decay: float = 0.01,
) -> dict[str, Any]:
    """The epoch is chosen on dev, and its model answers test. Accuracy, or Spearman's correlation.

    None: as many epochs as the number of labels wants.
    """
    torch.manual_seed(seed)
    words = tokenizer_of(tokenizer)
    train = read(Path(data) / "train.jsonl")[:labels]
    dev = read(Path(data) / "dev.jsonl")
    classes = isinstance(train[0].label, int)
    model = _classifier(folder, from_scratch, 1 + max(int(one.label) for one in train) if classes else 1)
    types = getattr(model.config, "type_vocab_size", 0) > 1
    rows = encoded(words, train, length)
    truth = torch.tensor([one.label for one in train], dtype=torch.long if classes else torch.float32)
    mean, deviation = (0.0, 1.0) if classes else (float(truth.mean()), float(truth.std()))
    epochs = epochs or EPOCHS[labels > 2_000]
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
    batches = math.ceil(len(train) / BATCH)
    warmup, total, step = max(1, batches * epochs // 10), batches * epochs, 0
    best, best_state, history = -math.inf, None, []
    for epoch in range(epochs):
        model.train()
        for chosen in _of_like_length(rows, np.random.default_rng((seed, epoch))):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * min((step + 1) / warmup, (total - step) / max(1, total - warmup))
            batch = padded([rows[number] for number in chosen], words.pad_token_id, types)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=BFLOAT16):
                logits = model(**batch).logits.float()
            wanted = truth[chosen]
            loss = cross_entropy(logits, wanted) if classes else mse_loss(logits[:, 0], (wanted - mean) / deviation)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
        reached = metric(answers(model, words, dev, types, length), labels_of(dev))
        history.append(reached)
        if reached > best:
            best, best_state = reached, {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(best_state)
    test = read(Path(data) / "test.jsonl")
    found = answers(model, words, test, types, length)
    replies = [round(float(one), 4) for one in found]
    return {"dev": best, "history": history, "test": metric(found, labels_of(test)), "answers": replies}


def _classifier(folder: str, from_scratch: bool, outputs: int) -> Any:
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(folder, num_labels=outputs)
    for name in (
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "attention_dropout",
        "mlp_dropout",
        "embedding_dropout",
        "classifier_dropout",
    ):
        if hasattr(config, name):
            setattr(config, name, DROPOUT)
    if from_scratch:
        return AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
    return AutoModelForSequenceClassification.from_pretrained(folder, config=config, attn_implementation="eager")


def _of_like_length(rows: list[tuple[list[int], list[int]]], chance: np.random.Generator) -> Iterator[np.ndarray]:
    """Batches of rows that need little padding, in a random order."""
    order = chance.permutation(len(rows))
    pools = [order[first : first + 50 * BATCH] for first in range(0, len(order), 50 * BATCH)]
    batches = []
    for pool in pools:
        pool = np.asarray(sorted(pool, key=lambda number: len(rows[number][0])))
        batches += [pool[first : first + BATCH] for first in range(0, len(pool), BATCH)]
    for number in chance.permutation(len(batches)):
        yield batches[number]


@torch.no_grad()
def answers(model: Any, words: Any, examples: list[Example], types: bool, length: int) -> np.ndarray:
    """Of each example its class, or its number."""
    model.eval()
    rows = encoded(words, examples, length)
    order = sorted(range(len(rows)), key=lambda number: len(rows[number][0]))
    found = np.zeros(len(rows))
    for first in range(0, len(order), 128):
        chosen = order[first : first + 128]
        with torch.autocast("cpu", torch.bfloat16, enabled=BFLOAT16):
            logits = model(**padded([rows[number] for number in chosen], words.pad_token_id, types)).logits.float()
        found[chosen] = logits.argmax(1).numpy() if logits.shape[1] > 1 else logits[:, 0].numpy()
    return found


def tfidf(data: str, labels: int) -> dict[str, Any]:
    """What is best on dev of three strengths of regularization; of pairs the cosine of both, which learns from no label."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # pyright: ignore[reportMissingImports]
    from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]

    train, dev, test = (read(Path(data) / f"{name}.jsonl") for name in ("train", "dev", "test"))
    train, true_dev, true_test = train[:labels], labels_of(dev), labels_of(test)
    words = TfidfVectorizer(analyzer="char", ngram_range=(1, 4), sublinear_tf=True, min_df=2 if labels > 5_000 else 1)
    if not isinstance(train[0].label, int):
        words.fit([part for one in train for part in (one.text, one.pair or "")])
        found = [_cosines(words, part) for part in (dev, test)]
        return {"dev": metric(found[0], true_dev), "test": metric(found[1], true_test), "answers": found[1].tolist()}
    inputs = words.fit_transform([one.text for one in train])
    best: dict[str, Any] = {"dev": 0.0}
    for strength in (1.0, 4.0, 16.0):
        fitted = LogisticRegression(C=strength, max_iter=1_000).fit(inputs, [one.label for one in train])
        reached = metric(fitted.predict(words.transform([one.text for one in dev])), true_dev)
        if reached > best["dev"]:
            found = fitted.predict(words.transform([one.text for one in test]))
            best = {"dev": reached, "test": metric(found, true_test), "answers": found.tolist(), "C": strength}
    return best


def _cosines(words: Any, examples: list[Example]) -> np.ndarray:
    left, right = (words.transform([getattr(one, side) for one in examples]) for side in ("text", "pair"))
    return np.asarray(left.multiply(right).sum(axis=1)).ravel()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    main()

"""`tpulm dataset prepare`, `import-tfrecord` and `inspect`."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Literal

from tpulm.cli.options import (
    Commands,
    FieldOptions,
    HostOptions,
    Lowercase,
    RunOptions,
    SetOptions,
    StripAccents,
    WorkDir,
    Workfolder,
    argument,
    option,
    path_option,
)
from tpulm.cli.terminal import drawn_progress, print_json, print_table, say, show
from tpulm.errors import ConfigError, DataError, some_of
from tpulm.readable import escaped, percent

if TYPE_CHECKING:
    import numpy as np
    from rich.text import Text

    from tpulm.config import RunConfig
    from tpulm.dataset import SampledRow
    from tpulm.tokenization import Tokenization

app = Commands(help="Rows of token ids: prepare or import them, look at them.", no_args_is_help=True)

# --json has all counts.
_SHOWN = (
    *("documents", "duplicates", "near_duplicates", "left_out_by_weight", "added_by_weight", "characters", "tokens"),
    *("rows", "padding_fraction", "unknown_share"),
)


@app.command()
def prepare(
    options: RunOptions,
    workdir: WorkDir,
    several: HostOptions,
    runner: Annotated[
        Literal["local", "beam"], option("Who computes: processes of this machine, or a cluster by Apache Beam.")
    ] = "local",
    beam_options: Annotated[
        list[str] | None, argument("Beam's own options: `-- --runner=DataflowRunner --region=…`.", "[-- BEAM_OPTIONS...]")
    ] = None,
) -> None:
    """Read the corpus, train or take the tokenizer, and write the rows to W/dataset. Needs no accelerator.

    Can be killed and run again at any time, with either runner: finished parts are kept, and the result is the same.
    """
    if beam_options and runner != "beam":
        raise ConfigError(f"{' '.join(beam_options)}: options after the run are Beam's own; give --runner beam with them")
    config = options.load()
    from tpulm.pipeline import preparation
    from tpulm.runtime import beam
    from tpulm.workfolder import working_in

    member = several.membership()
    if runner == "beam" and member is not None:
        raise ConfigError("--runner beam and --num-hosts are two ways to use several machines; choose one")
    tasks = beam.BeamRunner(beam_options or [], workdir) if runner == "beam" else None
    with drawn_progress() as progress, working_in(config, workdir, stage="dataset", member=member, progress=progress) as folder:
        preparation.prepare_data(config, folder.path, hosts=folder.hosts, runner=tasks, progress=progress)
    _show_counts(workdir)


@app.command("import-tfrecord")
def import_tfrecord(
    patterns: Annotated[
        list[str], argument("TFRecord files, folders of them, or globs such as `'data/*.tfrecord*'`.", "PATTERN...")
    ],
    vocab: Annotated[PurePath, path_option("The vocab.txt that the records were made with.")],
    kind: Annotated[
        Literal["bert", "electra"],
        option("Whose: BERT's create_pretraining_data.py, or ELECTRA's build_pretraining_dataset.py, wrote them.", "--format"),
    ],
    to: Annotated[PurePath, path_option("The work folder: an empty one, or one with this import begun.", metavar="W")],
    vocabulary: Annotated[SetOptions, FieldOptions("tpulm.config:TokenizerConfig", ("split_cjk",))],
    lowercase: Lowercase = None,
    strip_accents: StripAccents = None,
    holdout_fraction: Annotated[float, option("Fraction of the rows in the holdout split; at least one file.")] = 0.01,
    hold_out: Annotated[
        Literal["files", "rows"], option("Holdout by whole files (rows of a single file), or by rows.")
    ] = "files",
) -> None:
    """Turn existing pretraining TFRecords into the dataset of W; no text and no TensorFlow are needed.

    BERT's static masks are undone, since training draws its own at each step; exact duplicate rows are left out and counted.
    Every checksum, length, id, mask and segment is verified; whatever is wrong is named by file, record and byte. Can be killed
    and run again at any time. The exported model's tokenizer treats new text as the vocabulary says: one without upper-case
    letters is of lower-case text, for instance.

    Then 'tpulm run RECIPE --workdir W' trains from there. Its data.sequence_length and data.next_sentence must be those of the
    records: --set data.next_sentence=false for ELECTRA's.
    """
    from tpulm import storage, tokenization, workfolder
    from tpulm.config import load
    from tpulm.corpus.paths import find_paths, missing_shards
    from tpulm.dataset.importing import import_tfrecords

    found = {pattern: list(find_paths(pattern)) for pattern in patterns}
    names = list(chain.from_iterable(found.values()))
    paths = {path if storage.is_remote(path) else os.path.realpath(path): path for path in names}
    if absent := [name for pattern, some in found.items() for name in missing_shards(some, pattern)]:
        raise DataError(
            f"{len(absent):,} of the shards are missing: {some_of(absent, 5)}. Bring them here; to import only some, name these"
        )
    with drawn_progress() as progress:
        if missing := missing_shards(names, "*"):
            progress.note(f"an incomplete set is imported, without {some_of(missing, 5)}")
        tokenizer = tokenization.load_vocabulary(vocab, lowercase, strip_accents, **vocabulary, note=progress.note)
        with workfolder.importing_into(to) as folder:
            options = {"kind": kind, "tokenizer": tokenizer, "holdout_fraction": holdout_fraction, "hold_out": hold_out}
            result = import_tfrecords(list(paths.values()), folder, progress=progress, **options)
    rows = result.train.rows
    next_sentence = "true" if "next_sentence" in rows.columns else "false"
    _show_counts(folder)
    recipe, length = f"laptop-{kind}", rows.sequence_length
    longer = f" --set model.max_positions={length}" if length > load(recipe).model.max_positions else ""
    say(
        f"Next: tpulm run {recipe} --workdir {folder} --set data.sequence_length={length}{longer} "
        f"--set data.rows=segments --set data.next_sentence={next_sentence}, or any recipe for {kind.upper()}"
    )


@app.command()
def inspect(
    workdir: Workfolder,
    rows: Annotated[int, option("How many rows to show.", min=0)] = 4,
    split: Annotated[Literal["train", "holdout"], option("Which rows.")] = "train",
    seed: Annotated[int, option("Which random rows, and which of their tokens are masked.", min=0)] = 0,
    removed: Annotated[bool, option("Show instead what was left out on the way, and why, with samples.", "--removed")] = False,
) -> None:
    """Counts of W's dataset and a few rows decoded, with ⟦…⟧ around the tokens that training would mask.

    Of causal rows every token but the first is predicted; there the marks between texts stand out. With --removed: what the
    cleaning, the duplicates and the weights took away, how often, and a few texts of each kind.
    """
    from tpulm import dataset, storage, tokenization, workfolder
    from tpulm.config import RunConfig

    if removed:
        reasons = dataset.removed(workdir)
        if not reasons:
            show("nothing was left out, and nothing replaced")
        for item in reasons:
            reason = item.reason if item.reason.startswith("/") else item.reason.replace("_", " ")
            show(f"  {item.times:,}", lead=f"\n{reason}", style="bold")
            for text in item.samples:
                show(f" {text}", lead="  ·", style="dim")
        print_json({item.reason: {"times": item.times, "samples": list(item.samples)} for item in reasons})
        return
    has_run = storage.exists(workdir / "run.json") or not workfolder.is_imported(workdir)
    config = workfolder.open_run(workdir) if has_run else RunConfig()
    _show_counts(workdir)
    sampled = dataset.sample_rows(workdir, split, count=rows, seed=seed)
    if not sampled:
        return
    tokenizer = tokenization.load(workdir / "tokenizer")
    if config.data.rows == "causal":
        show(f"   {tokenizer.token(tokenizer.special.sep)} ends a text\n", lead="\nRows", style="bold")
        places = [set[int]() for _ in sampled]
    else:
        show("   ⟦masked⟧: what the model must predict\n", lead="\nRows", style="bold")
        places = _masked(config, tokenizer, sampled, seed)
    for row, masked in zip(sampled, places, strict=True):
        note = "" if row.random_next is None else f"  second segment {'random' if row.random_next else 'next'}"
        show(f"{split} row {row.number} ({row.part}){note}", style="dim")
        show(_readable(tokenizer, row.tokens, masked))
        show()


def _masked(config: RunConfig, tokenizer: Tokenization, rows: list[SampledRow], seed: int) -> list[set[int]]:
    """The places in each row that the masked objective would choose."""
    import jax
    import numpy as np

    from tpulm.objectives.masking import mask_rows, masking_config

    jax.config.update("jax_platforms", "cpu")
    ids = np.stack([row.tokens for row in rows]).astype(np.int32)
    law = masking_config(
        config.model.architecture,
        config.train.objective,
        sequence_length=ids.shape[1],
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
    )
    keys = jax.random.split(jax.random.key(seed), len(rows))
    word_start = None
    if law.whole_words:
        table = tokenizer.word_starts().astype(np.int8)
        starts = [table[row.tokens] if row.word_start is None else row.word_start for row in rows]
        word_start = np.stack(starts)
    mask = jax.jit(lambda ids, keys, word_start: mask_rows(ids, keys, law, word_start=word_start))
    masked = jax.device_get(mask(ids, keys, word_start))
    return [set(positions[weights > 0].tolist()) for positions, weights in zip(masked.positions, masked.weights, strict=True)]


def _readable(tokenizer: Tokenization, row: np.ndarray, masked: set[int]) -> Text:
    """A row as text, the tokens at the masked places in ⟦…⟧ and in colour; padding is counted, not shown."""
    from rich.text import Text

    text, padding = Text(), 0
    for place, token_id in enumerate(row.tolist()):
        if token_id == tokenizer.special.pad:
            padding += 1
            continue
        style = "reverse green" if place in masked else "dim cyan" if token_id in tuple(tokenizer.special) else ""
        token = escaped(tokenizer.token(token_id))
        if tokenizer.is_continuation(token_id):
            token = token.removeprefix("##")
        elif place:
            text.append(" ")
        text.append(f"⟦{token}⟧" if place in masked else token, style)
    return text.append(f"  + {padding} [PAD]", "dim") if padding else text


def _show_counts(workdir: PurePath) -> None:
    from tpulm import dataset

    splits: tuple[Literal["train", "holdout"], ...] = ("train", "holdout")
    by_split = dict[str, dict[str, float]]()
    for split in splits:
        summary = dataset.summarize(workdir, split)._asdict()
        counts = summary.pop("counts").model_dump(exclude={"character_lengths", "token_lengths"})
        by_split[split] = {**counts, **summary}
    shown = [label for label in _SHOWN if any(by_split[split][label] for split in splits)]  # 0: it does not apply
    rows = [(label.replace("_", " "), *(_format(label, by_split[split][label]) for split in splits)) for label in shown]
    print_table("Dataset", rows, header=("", *splits))
    print_json(by_split)


def _format(label: str, value: float) -> str:
    if label.endswith(("fraction", "share")):
        return percent(value, 2)
    return f"{value:,}"

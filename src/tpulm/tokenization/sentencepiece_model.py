"""Read SentencePiece's .model files as stock tokenizers with the same ids, which any reader of tokenizer.json understands.

The file says what SentencePiece does to a text: the normalization as a compiled table, whether a space is prepended, whether
spaces are merged. The message is that of sentencepiece's src/sentencepiece_model.proto.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final

from google.protobuf.message import DecodeError
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tpulm import storage
from tpulm.errors import DataError, some_of
from tpulm.protos import KIND, field, message_class, new_file
from tpulm.tokenization import special
from tpulm.tokenization.hf_files import check_usable, guarded
from tpulm.tokenization.pipelines import SPACE

_PACKAGE: Final = "tpulm.sentencepiece"
_UNIGRAM, _BPE = 1, 2  # kinds of models
_OTHERS: Final = {3: "words", 4: "characters"}
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # types of pieces
_FIRST_MARK: Final = 0x100000  # private use, plane 16: characters that stand for user-defined symbols while text is normalized
_NEVER = -1000.0  # the score of pieces that never match text
_TRAIN: Final = "train a tokenizer instead, by leaving tokenizer.path out"


def read(path: PurePath) -> Tokenizer:
    """The tokenizer, with the special tokens that an encoder needs and the file lacks ([PAD], [CLS], [SEP], [MASK]) appended.

    Ids are SentencePiece's, except where two segmentations are equally likely ("...." as "..." and "."), between which it
    decides by rounding errors, and for characters with several combining marks in an order that Unicode normalization changes.
    User-defined symbols are found before normalization, as there.
    Raises DataError for other files, and for kinds of models that `tokenizers` has no equivalent of.
    """
    model = _parsed(path)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if trainer.model_type not in (_UNIGRAM, _BPE):
        raise DataError(
            f"a SentencePiece model that splits text into {_OTHERS.get(trainer.model_type, 'something unknown')}; {_TRAIN}",
            location=str(path),
        )
    if trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        raise DataError(f"a model that marks spaces after words or not at all; {_TRAIN}", location=str(path))
    names = _names(model.pieces, path)
    unknown = next((index for index, piece in enumerate(model.pieces) if piece.type == _UNKNOWN), None)
    if unknown is None or len(set(names)) < len(names):
        raise DataError("it has no unknown piece, or one piece twice: the file is damaged", location=str(path))
    symbols = [piece.piece for piece in model.pieces if piece.type == _USER_DEFINED]
    if normalizer.remove_extra_whitespaces and (spaced := [one for one in symbols if one != one.strip(f" {SPACE}")]):
        raise DataError(
            f"user-defined symbols with spaces at an end ({some_of(list(map(repr, spaced)))}); {_TRAIN}", location=str(path)
        )
    with guarded(str(path), "the tokenizers library cannot have such a model"):
        tokenizer = _tokenizer(model, unknown, sorted(symbols, key=len, reverse=True))
        controls = [piece.piece for piece in model.pieces if piece.type == _CONTROL]  # which match no text
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in [*controls, *special.absent(names)]])
        tokenizer = Tokenizer.from_str(tokenizer.to_str())  # scores as after saving, which may change the last bit
    check_usable(tokenizer, str(path), has_compiled_rules=bool(normalizer.precompiled_charsmap))
    return tokenizer


def _names(pieces: Sequence[Any], path: PurePath) -> list[str]:
    """The text of each piece. Raises DataError for a piece that is not UTF-8 or whose score is not finite."""
    names: list[str] = []
    for number, piece in enumerate(pieces):
        if isinstance(piece.piece, bytes):  # how protobuf returns what is not UTF-8
            raise DataError(f"piece {number:,} is not UTF-8: the file is damaged", location=str(path))
        names.append(piece.piece)
        if not math.isfinite(piece.score):
            raise DataError(f"piece {number:,} has the score {piece.score}: the file is damaged", location=str(path))
    return names


def _tokenizer(model: Any, unknown: int, symbols: list[str]) -> Tokenizer:
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    kind = _unigram if trainer.model_type == _UNIGRAM else _bpe
    tokenizer = Tokenizer(kind(model.pieces, unknown, trainer.byte_fallback))
    tokenizer.normalizer = _normalizer(normalizer, symbols)
    scheme = "always" if normalizer.add_dummy_prefix else "never"
    split = trainer.split_by_whitespace and not any(SPACE in symbol for symbol in symbols)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=split)
    if symbols and trainer.model_type == _BPE:  # which never merges them
        apart = pre_tokenizers.Split(Regex("|".join(map(re.escape, symbols))), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, apart])
    spaces = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if trainer.byte_fallback else spaces
    return tokenizer


def _unigram(pieces: Sequence[Any], unknown: int, byte_fallback: bool) -> models.Unigram:
    # sentencepiece gives a user-defined symbol its bytes times a constant - 0.1; ids of 0.2.3 are those of 0.25.
    scores = dict.fromkeys((_CONTROL, _UNUSED, _BYTE), _NEVER)
    scored: list[tuple[str, float]] = [
        (
            one.piece,
            0.25 * len(one.piece.encode()) - 0.1 if one.type == _USER_DEFINED else scores.get(one.type, float(one.score)),
        )
        for one in pieces
    ]
    return models.Unigram(scored, unk_id=unknown, byte_fallback=byte_fallback)


def _bpe(pieces: Sequence[Any], unknown: int, byte_fallback: bool) -> models.BPE:
    """SentencePiece merges the two neighbours that make the piece with the highest score: one merge per way to make a piece."""
    vocabulary = {piece.piece: index for index, piece in enumerate(pieces)}
    mergeable = {piece.piece: piece.score for piece in pieces if piece.type == _NORMAL}
    merges = [
        (-score, vocabulary[left], vocabulary[right], (left, right))
        for piece, score in mergeable.items()
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in mergeable and (right := piece[cut:]) in mergeable
    ]
    ordered = [pair for *_, pair in sorted(merges)]
    model = models.BPE(vocabulary, ordered, unk_token=pieces[unknown].piece, fuse_unk=True, byte_fallback=byte_fallback)
    model.ignore_merges = any(piece.type == _USER_DEFINED for piece in pieces)  # a symbol is a word, and no merge makes it
    return model


def _normalizer(settings: Any, symbols: list[str]) -> normalizers.Normalizer:
    """Symbols, the longest first, are found before anything else and kept as they are: characters of no text replace them."""
    marks = {symbol: chr(_FIRST_MARK + number) for number, symbol in enumerate(symbols)}
    steps: list[normalizers.Normalizer] = [normalizers.Replace(symbol, mark) for symbol, mark in marks.items()]
    if symbols:
        steps.insert(0, normalizers.Replace(Regex(f"[{marks[symbols[0]]}-{marks[symbols[-1]]}]"), "\U0010fffd"))
    if b"nfkc" in settings.name:  # the table alone does not compose everything, since it is looked up by grapheme
        steps.append(normalizers.NFKC())
    if settings.precompiled_charsmap:
        steps.append(normalizers.Precompiled(settings.precompiled_charsmap))
    if settings.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    steps += [normalizers.Replace(mark, symbol) for symbol, mark in marks.items()]
    if settings.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))  # also where a text begins with a space, unlike Metaspace
    return normalizers.Sequence(steps)


def _parsed(path: PurePath) -> Any:
    try:
        model = _Model.FromString(storage.read_bytes(path))
    except DecodeError as error:
        raise DataError(f"not a SentencePiece model ({error})", location=str(path)) from error
    if not model.pieces or not model.HasField("normalizer_spec"):
        raise DataError("not a SentencePiece model: no pieces are in it", location=str(path))
    return model


def _model_class() -> Any:
    file = new_file(_PACKAGE, "proto2")
    trainer = [
        field("model_type", 3, KIND.TYPE_INT32, default="1"),
        field("split_by_whitespace", 22, KIND.TYPE_BOOL, default="true"),
        field("treat_whitespace_as_suffix", 24, KIND.TYPE_BOOL, default="false"),
        field("byte_fallback", 35, KIND.TYPE_BOOL, default="false"),
    ]
    normalizer = [
        field("name", 1, KIND.TYPE_BYTES),
        field("precompiled_charsmap", 2, KIND.TYPE_BYTES),
        field("add_dummy_prefix", 3, KIND.TYPE_BOOL, default="true"),
        field("remove_extra_whitespaces", 4, KIND.TYPE_BOOL, default="true"),
        field("escape_whitespaces", 5, KIND.TYPE_BOOL, default="true"),
    ]
    piece = [
        field("piece", 1, KIND.TYPE_STRING),
        field("score", 2, KIND.TYPE_FLOAT),
        field("type", 3, KIND.TYPE_INT32, default="1"),
    ]
    for name, fields in (("Piece", piece), ("Trainer", trainer), ("Normalizer", normalizer)):
        file.message_type.add(name=name).field.extend(fields)
    parts = [
        field("pieces", 1, "Piece", package=_PACKAGE, many=True),
        field("trainer_spec", 2, "Trainer", package=_PACKAGE),
        field("normalizer_spec", 3, "Normalizer", package=_PACKAGE),
    ]
    file.message_type.add(name="Model").field.extend(parts)
    return message_class(file, "Model")


_Model: Final = _model_class()

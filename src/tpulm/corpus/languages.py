"""Which language a document is in, by py3langid (Lui and Baldwin 2012; Barbaresi), for `cleaning.languages`.

A document is left out when it is recognised as something else: what is too short to say, or holds no words, stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tpulm.errors import ConfigError, MissingExtra, installing, suggest

_CHARACTERS: Final = 1_000  # of a document are looked at: enough to tell, and 97 languages are compared
_CERTAIN: Final = 0.5  # of the probability


class Recognised(NamedTuple):
    language: str  # ISO 639
    probability: float


class LanguageFilter:
    """Raises ConfigError for a language that cannot be recognised, MissingExtra without the package."""

    def __init__(self, languages: Sequence[str]):
        self._wanted = frozenset(languages)
        _package()
        self._identifier = _load()
        known = self._identifier.labels
        for language in languages:
            if language not in known:
                raise ConfigError(
                    f"corpus.cleaning.languages: '{language}' is not among the {len(known)} languages that can be "
                    f"recognised.{suggest(language, known)} They go by codes of ISO 639, such as 'en', 'ko', 'ja'."
                )

    def other(self, document: str) -> Recognised | None:
        """What it is, if it is none of those that are wanted."""
        found = Recognised(*self._identifier.classify(document[:_CHARACTERS]))
        return found if found.language not in self._wanted and found.probability >= _CERTAIN else None


def version() -> str:
    """Of what decides: another one may decide otherwise."""
    return f"py3langid {_package().__version__}"


@lru_cache(maxsize=1)
def _load() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _package() -> Any:
    try:
        import py3langid
    except ImportError as error:
        raise MissingExtra(f"corpus.cleaning.languages needs a package more: {installing('languages')}") from error
    return py3langid

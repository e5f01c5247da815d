"""Money, durations, fractions, sizes and text for people; rounding never turns little into zero, or almost all into all."""

from __future__ import annotations

import re
import time
import unicodedata

_JOINER = "\u200d"  # joins the parts of one emoji; other invisible characters are shown by number


def dollars(amount: float | None) -> str:
    """ "$0", "less than a cent", "$1.50", "$1,234"; "?" if the price is unknown."""
    if amount is None:
        return "?"
    if amount < 0.01:
        return "less than a cent" if amount > 0 else "$0"
    return f"${amount:,.2f}" if amount < 999.995 else f"${amount:,.0f}"


def duration(seconds: float) -> str:
    """ "42 s", "12 min", "3.4 h", "5.2 days"."""
    if seconds < 1:
        return "less than a second" if seconds > 0 else "0 s"
    if seconds < 119.5:  # which rounds to 120
        return f"{seconds:.0f} s"
    if seconds < 119.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 72 * 3600 else f"{seconds / 86_400:,.1f} days"


def percent(share: float, digits: int = 3) -> str:
    """ "99.128%", and ">99.999%" or "<0.001%" where rounding would say all or nothing."""
    least = 0.5 * 10 ** -(digits + 2)
    if 0 < share < least:
        return f"<{10**-digits:.{digits}f}%"
    return f">{100 - 10**-digits:.{digits}f}%" if 1 - least <= share < 1 else f"{share:.{digits}%}"


def decimals(value: float, deviation: float | None = None, *, places: int = 4) -> str:
    """ "0.8254", "0.8254 ± 0.0012"; "1.23e-07" where so many decimals would leave hardly a digit."""
    largest = max(abs(value), deviation or 0.0)
    form = f".{places}f" if not largest or largest >= 10.0 ** (1 - places) else ".3g"
    return f"{value:{form}}" + ("" if deviation is None else f" ± {deviation:{form}}")


def utc(seconds: float) -> str:
    """ "2026-11-24 14:05 UTC", from seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def size(text_bytes: int) -> str:
    return f"{text_bytes / 1e6:,.1f} MB" if text_bytes >= 100_000 else f"{text_bytes:,} bytes"


def amount(count: float) -> str:
    """ "950", "37k", "4.2M"."""
    if count < 999.5:
        return f"{count:.0f}"
    return f"{count / 1e3:,.0f}k" if count < 999_500 else f"{count / 1e6:,.1f}M"


def plural(count: int, noun: str) -> str:
    """ "1 row", "2,000 rows"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def visible(text: str) -> str:
    """Displayable text: invisible characters as pictures or by number."""
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    kind = unicodedata.category(character)
    if character == _JOINER or kind[0] not in "CZ" or character == " ":
        return character
    return " " if kind == "Zs" else f"⟨U+{code:04X}⟩"


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def escaped(text: str) -> str:
    """Control characters, which might move the cursor or change the terminal, as text, in JSON's way: \\u001b."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def pasteable(text: str) -> str:
    """Text in which names of files that are not UTF-8 are as bash and zsh read them: $'d_\\xc7/run.toml'."""
    return re.sub(r"[^\s:;,'\"()]+", _shell_word, text) if re.search("[\udc80-\udcff]", text) else text


def _shell_word(match: re.Match[str]) -> str:
    try:
        return match[0].encode("utf-8", "surrogateescape").decode()  # UTF-8, which this locale does not decode
    except UnicodeDecodeError as error:
        return "$'" + error.object.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace") + "'"
    except UnicodeEncodeError:  # other surrogates
        return match[0]

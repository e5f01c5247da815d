"""Money, durations and shares as a person reads them; small ones do not become zero, nor almost all of it all."""

from __future__ import annotations


def dollars(amount: float | None) -> str:
    """ "$0", "less than a cent", "$1.50", "$1,234"; "?" where the price is not known."""
    if amount is None:
        return "?"
    if amount < 0.01:
        return "less than a cent" if amount > 0 else "$0"
    return f"${amount:,.2f}" if amount < 1000 else f"${amount:,.0f}"


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

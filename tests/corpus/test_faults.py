import pytest

from tpulm.corpus.documents import Faults
from tpulm.errors import DataError, shorten


def test_a_fault_stops_or_is_counted():
    faults = Faults("stop", "a.txt")
    with pytest.raises(
        DataError, match=r'^a\.txt, line 3: it is wrong\. With on_error = "skip" such records are left out and counted\.$'
    ):
        faults.add("not_json", "it is wrong.", "line 3")
    faults = Faults("skip", "a.txt")
    faults.add("not_json", "it is wrong.", "line 3")
    assert faults.skipped == {"not_json": 1}


def test_long_values_are_shortened():
    assert shorten("x" * 100, 5) == "'xxxxx'…"
    assert shorten("short") == "'short'"
    assert shorten("short", quoted=False) == "short"

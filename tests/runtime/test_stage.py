from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tpulm.errors import StorageError
from tpulm.runtime import stage
from tpulm.runtime.hosts import Hosts
from tpulm.runtime.workers import run_here


class Square(NamedTuple):
    number: int
    folder: Path
    amount: float = 1.0

    @property
    def files(self) -> list[Path]:
        return [self.folder / f"{self.number}.txt"]

    def finished(self) -> str | None:
        return self.files[0].read_text() if self.files[0].exists() else None

    def build(self) -> str:
        with self.files[0].open("x") as file:  # fails for a unit that is finished
            file.write(str(self.number**2))
        return str(self.number**2)


def test_hosts_share_units_and_nothing_is_done_twice(tmp_path: Path):
    units = [Square(number, tmp_path) for number in range(5)]
    first, second = Hosts(0, 2), Hosts(1, 2)
    stage.sweep(units)
    own = stage.run(units, "squares", "square", runner=run_here, hosts=second)
    assert own == {1: "1", 3: "9"}
    with pytest.raises(StorageError, match=r"0\.txt"):
        stage.gather(units, own)
    assert stage.run(units, "squares", "square", runner=run_here, hosts=first) == {0: "0", 2: "4", 4: "16"}
    (tmp_path / "leftover").touch()
    stage.sweep(units)
    again = stage.run(units, "squares", "square", runner=run_here)
    assert stage.gather(units, again) == stage.gather(units, own) == ["0", "1", "4", "9", "16"]
    assert {path.name for path in tmp_path.iterdir()} == {f"{number}.txt" for number in range(5)}

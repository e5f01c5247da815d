from pathlib import Path

import pytest

from tpulm.config import SourceConfig
from tpulm.corpus import read_texts
from tpulm.corpus.readers import python_text
from tpulm.corpus.readers.python_text import PythonFile, hash_python_files, list_python_files

SOURCE = """
"Module."
class A:
    "A."
    def f(self):
        "f."
    if True:
        def g(self):
            "g."
    else:
        def h(self):
            "h."
def i():
    "i."
    def j():
        "j."
"""


def test_the_files_are_those_of_the_library_in_order():
    files = list_python_files()
    names = [file.name for file in files]
    assert names == sorted(names) and len(set(names)) == len(names)
    assert {"json/decoder.py", "argparse.py"} <= set(names)
    assert not any("test" in name.split("/") or "site-packages" in name for name in names)
    assert hash_python_files(files) == hash_python_files(list_python_files())


def test_docstrings_come_in_the_order_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.py").write_text(SOURCE)
    monkeypatch.setattr(python_text, "list_python_files", lambda: [PythonFile("a.py", tmp_path / "a.py")])
    assert list(read_texts([SourceConfig(format="python")])) == [["Module.", "A.", "f.", "g.", "h.", "i.", "j."]]

import ast
from collections.abc import Callable

from tpulm.config import SourceConfig
from tpulm.corpus.readers.python_text import _docstrings, hash_python_files, list_python_files
from tpulm.corpus.sources import find_files

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


def test_docstrings_come_in_the_order_of_lines():
    tree = ast.parse(SOURCE)
    assert [text for _, text in _docstrings(tree)] == ["Module.", "A.", "f.", "g.", "h.", "i.", "j."]


def test_it_is_a_corpus_of_its_own(scattered: Callable):
    corpus = scattered([{"format": "python"}])
    assert corpus.manifest.counts.documents > 5000
    assert corpus.manifest.inputs[0].sha256 == find_files([SourceConfig(format="python")])[0].sha256
    assert any("JSON" in document for document in corpus.train())

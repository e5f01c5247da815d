from __future__ import annotations

import pytest

from tpulm.errors import DataError
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import special
from tpulm.tokenization.special import locate

OURS = {name: index for index, name in enumerate(special.TOKENS)}


def test_five_fixed_ids_then_slots_then_text():
    vocabulary = {**OURS, "[unused0]": 5, "[unused1]": 6, "the": 7, "[unused9]": 8}
    found = locate(vocabulary, "v")
    assert found == SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
    assert found == special.TRAINED


def test_googles_order_and_robertas_names():
    google = {"[PAD]": 0, "[unused0]": 1, "[UNK]": 2, "[CLS]": 3, "[SEP]": 4, "[MASK]": 5, "[unused1]": 6, "!": 7}
    assert locate(google, "v") == SpecialTokens(pad=0, unknown=2, cls=3, sep=4, mask=5)
    roberta = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "the": 4, "<mask>": 5}
    assert locate(roberta, "v") == SpecialTokens(pad=1, unknown=3, cls=0, sep=2, mask=5)


def test_declared_names_come_before_the_usual_ones():
    found = locate({**OURS, "@mask@": 9}, "v", {"mask": "@mask@"})
    assert found.mask == 9


def test_what_is_missing_is_listed_with_what_is_there():
    with pytest.raises(DataError, match=r"gpt.json: .*mask \(\[MASK\] or <mask>\).*<\|endoftext\|>"):
        locate({"<|endoftext|>": 0, "a": 1}, "gpt.json")
    with pytest.raises(DataError, match=r"none for: mask \(@@\)\."):
        locate(OURS, "v", {"mask": "@@"})


def test_one_id_for_two_roles_is_refused():
    with pytest.raises(DataError, match="share an id"):
        locate(OURS, "v", {"sep": "[CLS]"})

import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tpulm.corpus import split_sentences

ALPHABET = 'aB1 .!?…\n\t。！？」』”")다요니어 과、とU.S。．।'


@given(st.one_of(st.text(st.sampled_from(ALPHABET)), st.text()))
def test_nothing_but_white_space_is_lost_and_order_is_kept(text: str):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() and sentence in text for sentence in sentences)


@pytest.mark.parametrize(
    "text",
    [
        "Mr. Smith went to Washington. | He arrived at 3.15 p.m. and left. | J. K. Rowling did not.",
        '"Go!" she said. | "Now?" he asked. | (Nobody moved.) | Then it was over!',
        "The U.S. Army paid $3.50, e.g. for No. 5 and Fig. 2. | He said no. | See example.com. | Done",
        "Wait... what? | Yes... | It ended",
        "He was born on Jan. 5 in St. Louis vs. Chicago. | Prof. Jones, Ph.D., agrees.",
        "1. First things first. | 2. Second things second.",
        "Café is good. | Él dijo que sí. | ¿Qué? | Ça va. | Ähnlich ist es.",
        "Это хорошо. | Да, т. е. нет. | Пришёл и я. | Это написал А. С. Пушкин. | Или А.С. Пушкин?",
        "Bunu Ö. Seyfettin yazdı. | Ο Κ. Καβάφης ήταν ποιητής. | Τι κάνεις; | Είμαι καλά.",
        "i saw LOL on tv. | it was fun. | then we left! | so what? | ok",
        "Soft! take me with you. | He did.",
        "Napsal např. články, mj. české, tzv. řády. | Ústí je město. | Jest np. łatwo.",
        "Nó đi. | Ông ấy v.v. ở đó. | Він сказав, напр. її, тощо. | Так.",
        'მან თქვა: "მოვდივარ." | შემდეგ წავიდა. | ის დაბრუნდა... | მერე დაჯდა.',
        'it is good. | we saw mr. smith, dr. who, etc. and the u.s. army! | "so?" she said. | wait... what? | (it ended.) | ok',
        "정말 재미있게 봤습니다. | 3.1운동 이야기도 나오고요! | 별점은 9.5점.",
        "너무 좋아요 | 또 볼게요 | 추천합니다 | 그럼 이만",
        "배우들의 연기가 훌륭했다^^",
    ],
)
def test_languages_with_spaces(text: str):
    assert split_sentences(text.replace(" | ", " ")) == text.split(" | ")


def test_korean_headings_quotations_and_missing_spaces():
    assert split_sentences("제1장.\n바다 이야기\n끝") == ["제1장.", "바다 이야기", "끝"]
    assert split_sentences('그는 "싫어요." 라고 말했다. 그리고 갔다.')[-1] == "그리고 갔다."
    assert split_sentences("재밌어요.진짜 최고!최고라고요.") == ["재밌어요.", "진짜 최고!", "최고라고요."]
    assert split_sentences("가.나.라는 3.5점") == ["가.나.라는 3.5점"]


@pytest.mark.parametrize(
    "text",
    [
        "吾輩は猫である。|名前はまだ無い。",
        "「行こう。」と彼は言った。|そして帰った。",
        "「もう、だめだ。」|彼は泣いた。|本当？！|そうだ",
        "とても寒い。|とにかく行こう！|３．１４である．|次だ．",
        "今天天气很好。|我们去公园吧！|“好的。”|他笑了……",
        "すごい!|また行きたい?|はい。|「本当?」と彼は言った。",
        "你好!|我来了。|你是谁?|我是他。",
    ],
)
def test_japanese_and_chinese(text: str):
    assert split_sentences(text.replace("|", "")) == text.split("|")


def test_other_scripts():
    assert split_sentences("यह है। वह था॥ अंत") == ["यह है।", "वह था॥", "अंत"]
    assert split_sentences("هل هذا؟ نعم") == ["هل هذا؟", "نعم"]
    assert split_sentences("ምን ነው፧ ደህና ነኝ።") == ["ምን ነው፧", "ደህና ነኝ።"]
    assert split_sentences("ខ្ញុំទៅផ្សារ៕ គាត់មកហើយ៕") == ["ខ្ញុំទៅផ្សារ៕", "គាត់មកហើយ៕"]


def test_line_ends_part_sentences_unless_the_line_was_wrapped():
    text = "A Title\nthat was wrapped. Second one\nis wrapped too.\n- item one\n- Item two\n\nnew paragraph\n제목\n본문"
    first = ["A Title\nthat was wrapped.", "Second one\nis wrapped too."]
    assert split_sentences(text) == [*first, "- item one", "- Item two", "new paragraph", "제목", "본문"]


@pytest.mark.parametrize("text", ["", " \n\t ", "no marks at all " * 1000, "마침표없는긴글" * 5000, "...", "。。。"])
def test_texts_without_sentences(text: str):
    assert split_sentences(text) == ([text.strip()] if text.strip() else [])


@pytest.mark.parametrize(
    "text",
    ["a. " * 100_000, "." * 300_000, "\n" * 300_000, "x" * 300_000 + ". Y", "U.S." * 50_000, "요 " * 100_000, "。" * 300_000],
)
def test_odd_texts_take_no_longer(text: str):
    begin = time.process_time()
    split_sentences(text)
    assert time.process_time() - begin < 2.0


def test_a_novel(real_data: Path):
    text = (real_data / "ja/wagahaiwa_nekodearu.txt").read_text(encoding="utf-8")
    sentences = split_sentences(text)
    assert 5000 < len(sentences) < 12_000
    assert sum(len(sentence) for sentence in sentences) / len(sentences) < 80

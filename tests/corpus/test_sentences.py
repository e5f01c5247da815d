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
        "Mr. Smith went to Washington. |He arrived at 3.15 p.m. and left. |J. K. Rowling did not.",
        '"Go!" she said. |"Now?" he asked. |(Nobody moved.) |Then it was over!',
        "The U.S. Army paid $3.50, e.g. for No. 5 and Fig. 2. |He said no. |See example.com. |Done",
        "Wait... what? |Yes... |It ended",
        "He was born on Jan. 5 in St. Louis vs. Chicago. |Prof. Jones, Ph.D., agrees.",
        "1. First things first. |2. Second things second.",
        "Café is good. |Él dijo que sí. |¿Qué? |Ça va. |Ähnlich ist es.",
        "Это хорошо. |Да, т. е. нет. |Пришёл и я. |Это написал А. С. Пушкин. |Или А.С. Пушкин?",
        "Bunu Ö. Seyfettin yazdı. |Ο Κ. Καβάφης ήταν ποιητής. |Τι κάνεις; |Είμαι καλά.",
        "i saw LOL on tv. |it was fun. |then we left! |so what? |ok",
        "Soft! take me with you. |He did.",
        "Napsal např. články, mj. české, tzv. řády. |Ústí je město. |Jest np. łatwo.",
        "Nó đi. |Ông ấy v.v. ở đó. |Він сказав, напр. її, тощо. |Так.",
        'მან თქვა: "მოვდივარ." |შემდეგ წავიდა. |ის დაბრუნდა... |მერე დაჯდა.',
        'it is good. |we saw mr. smith, dr. who, etc. and the u.s. army! |"so?" she said. |wait... what? |(it ended.) |ok',
        "정말 재미있게 봤습니다. |3.1운동 이야기도 나오고요! |별점은 9.5점.",
        "너무 좋아요 |또 볼게요 |추천합니다 |그럼 이만",
        "배우들의 연기가 훌륭했다^^",
        "यह है। |वह था॥ |अंत",
        "هل هذا؟ |نعم",
        "ምን ነው፧ |ደህና ነኝ።",
        "ខ្ញុំទៅផ្សារ៕ |គាត់មកហើយ៕",
        "제1장.\n|바다 이야기\n|끝",
        "재밌어요.|진짜 최고!|최고라고요.",
        "가.나.라는 3.5점",
        "吾輩は猫である。|名前はまだ無い。",
        "「行こう。」と彼は言った。|そして帰った。",
        "「もう、だめだ。」|彼は泣いた。|本当？！|そうだ",
        "とても寒い。|とにかく行こう！|３．１４である．|次だ．",
        "今天天气很好。|我们去公园吧！|“好的。”|他笑了……",
        "すごい!|また行きたい?|はい。|「本当?」と彼は言った。",
        "你好!|我来了。|你是谁?|我是他。",
        # The end of a line is that of a sentence, unless the line was wrapped.
        "A Title\nthat was wrapped. |Second one\nis wrapped too.\n|- item one\n|- Item two\n\n|new paragraph\n|제목\n|본문",
    ],
)
def test_sentences_end_where_they_should(text: str):
    assert split_sentences(text.replace("|", "")) == [sentence.strip() for sentence in text.split("|")]


def test_a_sentence_after_a_quotation():
    assert split_sentences('그는 "싫어요." 라고 말했다. 그리고 갔다.')[-1] == "그리고 갔다."


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


def test_a_long_line_of_initials_takes_no_longer_by_the_character():
    def seconds(count: int) -> float:
        begun = time.perf_counter()
        assert len(split_sentences("J. K. Smith, " * count)) == 1
        return time.perf_counter() - begun

    seconds(100)
    assert seconds(80_000) < 20 * max(seconds(10_000), 0.01), "eight times as long, not 64 times"

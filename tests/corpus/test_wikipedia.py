"""Dumps of wikis: what is kept of a page, what is counted, and large dumps read in stretches."""

from __future__ import annotations

import bz2
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from tpulm.config import SourceConfig
from tpulm.corpus import sources
from tpulm.corpus.readers.wikitext import plain_text
from tpulm.errors import DataError

REAL = "en/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
HIDDEN = {"file", "image", "category", "datei"}
MARKUP = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|'''|''|^[*#:;|!=]|</?(?:ref|br|sub|sup|small|div|math|table|gallery)\b|<!--|&(?:nbsp|lt|amp);"
    r"|\b(?:thumb|right|left|upright)\||\b(?:bgcolor|colspan|align|style)=|\b(?:Category|File|Image):|__[A-Z]+__|\[https?:",
    re.MULTILINE,
)
HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="de">
  <siteinfo><namespaces><namespace key="0" /><namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace>
  </namespaces></siteinfo>
"""


def page(title: str, text: str, *, ns: int = 0, redirect: bool = False, model: str = "wikitext") -> str:
    to = '<redirect title="x" />' if redirect else ""
    revision = f"<revision><id>1</id><model>{model}</model><text>{escape(text)}</text></revision>"
    return f"  <page><title>{title}</title><ns>{ns}</ns>{to}{revision}</page>\n"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Bern''' is the [[capital city|capital]] of [[Switzerland]]s.", "Bern is the capital of Switzerlands."),
        ("A.<ref name=a>x</ref> B.<ref name=a/> C.<REF>[http://x y]\n{{cite}}</REF>", "A. B. C."),
        ("one<!-- two\nthree --> four", "one four"),
        ("{{Infobox\n| a = {{b|c}}\n}}\nText here.", "Text here."),
        ("== Heading ==\nText.\n* a list\n# another\n; term : meaning\n:: an answer", "Text."),
        ('a\n{| class="x"\n! head\n| cell\n{|\n| inner\n|}\n|}\nb', "a\nb"),
        ("!Kung has many clicks.", "!Kung has many clicks."),
        ("[[File:x.jpg|thumb|a [[link]] in a caption]]Text [[Datei:y.png|mini|z]]here. [[Category:C]]", "Text here."),
        ("[[Category:C|key]]\nSee [[:Category:C]].", "See Category:C."),
        ("Achilles ({{IPAc-en|ə}}; Greek: {{lang|grc|Ἀχιλλεύς}}) was", "Achilles (Greek: Ἀχιλλεύς) was"),
        ("It ({{pron}}) is {{nowrap|12 km}} long.", "It is 12 km long."),
        ("x<sub>2</sub> &amp; y&nbsp;z <br/>w", "x2 & y z w"),
        ("see [https://a.org the site] and [https://b.org]", "see the site and"),
        ("[[fr:Berne]]\n[[de:Bern]]\n[[fr:Berne|Berne]]Text. [[:fr:Berne|Berne]], [[doi:10.1/x]]", "Text. Berne, doi:10.1/x"),
        ("a <math>x_{1}^{{2}}</math> b", "a b"),
        ("Text with {{an open template\nand a next line.", "Text with\nand a next line."),
        ("Text with [[an open link\nand a next line.", "Text with an open link\nand a next line."),
        ("{| a table without an end\n| x\n== Next ==\nText.", "Text."),
        ("Stray }} and ]] here.", "Stray  and  here."),
        ("__NOTOC__ 서울은 [[대한민국]]의 수도이다. {{출처}}", "서울은 대한민국의 수도이다."),
        # A | within a link or a template is none of the template around it (MediaWiki, Preprocessor_Hash).
        ("A {{small|[[Bern|the city]]}} b", "A the city b"),
        ("A {{nowrap|{{lang|de|[[Bern|Stadt]]}}}} b", "A Stadt b"),
        ("A {{nowrap|[[Bern]] (see [[Ort|place]])}} b", "A Bern (see place) b"),
        ("A {{nowrap|1=x=y}} {{abbr|[[A|b=c]]|d}} e", "A x=y b=c e"),
        # Elements that break a line (HTML).
        ("eins<br>zwei<BR/>drei<br clear=all />vier", "eins zwei drei vier"),
        ("<center>one</center>two<hr>three<p>four</p>", "one\ntwo\nthree\nfour"),
        ("a<dd>one</dd><dt>two</dt>three{{pb}}four{{br}}five{{-}}six", "a\none\ntwo\nthree\nfour five six"),
        ("""a<br style="b > c" />d <span title='e > f'>g</span><ref name="h>i">j</ref>.""", "a d g."),
        # Apostrophes (MediaWiki, Parser::doQuotes).
        ("''Hamlet'''s ghost", "Hamlet's ghost"),
        ("d''''amore''' e d'''Oro''", "d'amore e d'Oro"),
        ("a '''''b''''' ''c'' '''d''' it's", "a b c d it's"),
        ("'''Eagle''' flew. ''Hamlet'''s ghost came.", "'Eagle flew. Hamlets ghost came."),
        ("''ab'''b '''b ''''", "abb b ''"),
        ("ab'''c''' é'''d''", "ab'c éd"),
        # Pictures under the aliases of namespaces, and under a name that no table has.
        ("[[그림:a.jpg|섬네일|탑]]본문", "본문"),
        ("[[Bild:a|mini|der Turm]]Text", "Text"),
        ("[[Plik:a.png|x [[y]] [http://a.b c]]]Text", "Text"),
        ("[[Kép:a.stl|bélyegkép|b]]A [[Soubor:a|náhled|b]]B", "A B"),
        ("[[Media:a.ogg|Listen]] or [[メディア:a.ogg|聞く]]", "Listen or 聞く"),
        ("[[Star Trek: Picard|the series]] x", "the series x"),
        # <nowiki>: nothing in it is markup, but entities are decoded.
        ("a <nowiki>[[b|c]] ''d'' &lt;br></nowiki> e", "a [[b|c]] ''d'' <br> e"),
        ("a <nowiki>{{</nowiki> b {{nowrap|<nowiki>|</nowiki>}}<nowiki /> c", "a {{ b | c"),
        ("<nowiki>#</nowiki>1 hit\n<nowiki>;</nowiki> a\n<nowiki />* b", "#1 hit\n; a\n* b"),
        ("[[A|#2]] c\nl'<nowiki/>''d''", "#2 c\nl'd"),
        # Chinese, Serbian and other variants (ConverterRule).
        ("-{zh-hant:電腦;zh-hans:计算机;}-是-{机器}-。-{T|zh-hans:甲;zh-hant:乙}-", "计算机是机器。"),
        ("[[A|-{zh-tw:甲;zh-cn:乙}-]]{{lang|ja|-{R|東京}-}}-{A|zh-hans:{{lang|en|a}}-{b}-;zh-hant:c}-", "乙東京ab"),
        ("-{sr-el:b;sr-ec:а}- -{zh-hans;zh-hant|字}- <nowiki>-{</nowiki>c}- -{H|a=>zh:b}- -{d:e}-", "а 字 -{c}- d:e"),
        # Templates whose first argument is a language.
        ("a {{IPA|/x/}} b {{IPA|de|bɛrn}} {{transliteration|ru|Moskva}} {{script|Cyrl|Москва}}", "a /x/ b bɛrn Moskva Москва"),
        ("{{langx|fr|Berne}}, {{lang-it|Berna}}, {{llang|en|Bern}}", "Berne, Berna, Bern"),
        ("{{IPA|/ˈroma/|it}} {{IPA|en|tim|a.ogg}} {{IPA|de-AT|x.}}", "/ˈroma/ tim x."),
        # Words of a sentence.
        ("それは{{仮リンク|塔|en|Tower}}と{{ルビ|山|やま}}。", "それは塔と山。"),
        ("{{임시_링크|탑|en|Tower}}은 {{lang|en|tower}}이다.", "탑은 tower이다."),
        ("{{Lien|langue=en|trad=Tower|fr=Tour}} de {{unité|5|km}} au {{s|XIX|e}}", "Tour de 5 km au XIXe siècle"),
        ("from {{convert|5|to|6|km|mi}} in {{frac|2|1|2}} days{{snd}}{{'s}}", "from 5 to 6 km in 2 1⁄2 days – 's"),
        ("{{convert|5|ft|6|in|m}} {{convert|5|x|6|x|7|m}}", "5 ft 6 in 5 x 6 x 7 m"),
        ("{{cvt|5|ft|0}} {{convert|8|st|6+1/2|lb|kg|1}}", "5 ft 8 st 6+1/2 lb"),
        ("{{val|5.2|0.3|u=m}} {{val|12|3|e=5}}", "5.2±0.3 m (12±3)×105"),
        ("{{val|12|+3|-4|ul=m|up=s}} {{val|12|(3)|s=%}}", "12+3−4 m/s 12(3)%"),
        ("{{unité|5|km|2}} {{unité|12|km||h|-1}} {{unité|5|à|6|m}} {{unidad|5|km}}", "5 km2 12 km⋅h-1 5 à 6 m 5 km"),
        ("{{US$|5 million}} {{INR|5}} {{RMS|Titanic}}", "US$5 million ₹5 RMS Titanic"),
        ("{{gloss|dog}} {{circa|1900}}", "'dog' c. 1900"),
        ("{{as of|2010}}, {{As of|2013|June|8|lc=y}}, {{as of|2015|since=y}}", "As of 2010, as of 8 June 2013, Since 2015"),
        ("{{USS|Enterprise|CV-6}}, {{SMS|Emden|1908|6}}, {{HMS|Hood}}", "USS Enterprise (CV-6), SMS Emden, HMS Hood"),
        ("{{As of|2009|alt=By 2009}} {{circa|1850|1900}}", "By 2009 c. 1850 – c. 1900"),
        ("{{harvtxt|Boolos|Jeffrey|1974|p=5}}, {{Harvtxt|Kim|2001}}", "Boolos & Jeffrey (1974, p. 5), Kim (2001)"),
        ("{{nihongo|Manga|漫画||lit. whimsical pictures}}", "Manga (漫画, lit. whimsical pictures)"),
        ("{{link-en|约翰|John}}{{tsl|en|John|约翰}} {{нп5|А|Б|en|C}} {{нп5|А|||C}}", "约翰约翰 Б А"),
        ("to {{sortname|Ingmar|Bergman}} with {{nts|1200}} {{sort|b|votes}}", "to Ingmar Bergman with 1200 votes"),
        ("{{Zitat|Es ist gut.|Kant}} {{ill|Ort|de|lt=Dorf}}", "Es ist gut. Dorf"),
        # Spaces are cleaned only where something was taken out.
        ("Quoi ? Non ! f() ( x ) , y", "Quoi ? Non ! f() ( x ) , y"),
        ("Quoi <ref>a</ref> ? Non {{x}} ! Si <ref>b</ref>&nbsp;? What <ref>c</ref>?", "Quoi ? Non ! Si ? What?"),
        ("Il dit{{réf}} : oui {{x}}, ({{y}}; z{{w}}) {{v}}.", "Il dit : oui, (z)."),
        # Ruby without its reading, hidden elements, parts of templates.
        ("<ruby><rb>山</rb><rp>(</rp><rt>やま</rt><rp>)</rp></ruby>に", "山に"),
        ("前<ruby>漢<rt>かん<rp>)</ruby>に<ruby><rb>字<rtc><rt>じ</ruby>後", "前漢に字後"),
        ("a <em style='display:none'>b</em> c <RUBY class=noprint>d</RUBY> e<br style='display:none'>", "a c e"),
        ("a <div style='color:red; DISPLAY: none'>b <span>c</span></div> d <span class=noprint>e</span>", "a d"),
        ("<noinclude>a</noinclude><includeonly>b</includeonly><onlyinclude>c</onlyinclude>", "ac"),
        ("C has <stdio.h>; 1 &lt; 2 &nolt; &#91;", "C has <stdio.h>; 1 < 2 &nolt; ["),
    ],
)
def test_running_text_is_what_is_left(markup: str, text: str):
    """As MediaWiki renders it, or the template's documentation says, but without readings, markup and second units."""
    assert plain_text(markup, HIDDEN) == text


def test_what_is_taken_out_of_sentences_is_counted_by_name(write: Callable, scattered: Callable):
    text = "{{Infobox|a}}\nIt {{Foo_bar|x}} is {{foo bar}} <math>x</math>{{cn}} {{my link|A|B}}.<ref>{{cite}}</ref>"
    path = write("a.xml", HEAD + page("A", text) + page("B", "A {{cn}}{{lang|de}} b.") + "</mediawiki>\n")
    found = scattered([SourceConfig(path=str(path), templates={"My_link": "{2} of {1}"})])
    assert found.documents() == ["A b.", "It is B of A."]
    assert found.manifest.counts.removed_templates == {"{{foo bar}}": 2, "<math>": 1, "{{cn}}": 2, "{{lang}}": 1}


def test_templates_of_a_run_file_are_checked():
    for settings, message in (({"templates": {"a": "{1"}}, "braces"), ({"templates": {"a": "1"}, "format": "csv"}, "csv")):
        with pytest.raises(ValueError, match=message):
            SourceConfig.model_validate({"path": "a.xml", **settings})


ENDLESS = [
    *("{{", "[[", "<ref>", "{|\n", "<!--", "}}", "{{a|", "[[File:", "'''", "<div>", "== ", "[http://a ", "|", "{{a|[[b}}"),
    *("<nowiki>", "<br", "&", "__", "<span style=display:none>", "(", "{{{", "]}", "-{zh:", "<p a='b>\" "),
    "{{convert|" + "1|to|" * 5,
]


@pytest.mark.parametrize("unit", ENDLESS)
def test_markup_that_is_nested_without_end_takes_no_longer_than_it_must(unit: str):
    plain_text(unit * 5_000 + "text", HIDDEN)
    plain_text(unit * 5_000 + "text" + "}}]]" * 5_000, HIDDEN)


def test_pages_that_are_no_articles_are_counted(write: Callable, scattered: Callable):
    pages = [page("A", "An '''article'''.\n[[Kategorie:X]]"), page("B", "#REDIRECT [[A]]", redirect=True)]
    pages += [page("Diskussion:A", "Talk.", ns=1), page("M", "return {}", model="Scribunto"), page("L", "* only a list")]
    found = scattered(write("dewiki.xml", HEAD + "".join(pages) + "</mediawiki>\n"))
    assert found.manifest.counts.skipped == {"redirect": 1, "other_namespace": 1, "no_wikitext": 1, "empty": 1}
    assert found.documents() == ["An article."]


def test_what_is_no_dump(write: Callable, scattered: Callable):
    for content, message in (
        *(("<html><body/></html>", "<html>"), ("no xml at all", "<mediawiki>"), ("", "<mediawiki>")),
        (HEAD + page("A", "text") + "<page>", "broken"),
    ):
        with pytest.raises(DataError, match=rf"a\.xml.*{message}"):
            scattered(write("a.xml", content))


def test_a_large_dump_is_read_in_stretches(write: Callable, scattered: Callable, monkeypatch: pytest.MonkeyPatch):
    """Each begins with a stream's first page; together they are what the whole file is."""
    texts = [f"Article {number} says {number * 7919}.\n[[Datei:bild.jpg|mini|caption]]" for number in range(400)]
    streams = ["".join(page(f"T{n}", texts[n]) for n in range(first, first + 10)) for first in range(0, 400, 10)]
    dump = b"".join(bz2.compress(part.encode()) for part in [HEAD, *streams, "</mediawiki>\n"])
    path = write("dewiki-pages-articles-multistream.xml.bz2", dump)
    whole = scattered(path)
    monkeypatch.setattr(sources, "_RANGE_BYTES", 2_000)
    found = scattered(path)
    inputs = found.manifest.inputs
    assert 4 < len(inputs) < 40 and sum(item.bytes for item in inputs) == len(dump)
    assert found.documents() == whole.documents() and len(whole.documents()) == 400
    assert scattered(path, workdir=found.workdir).manifest == found.manifest


def test_a_dump_of_one_stream_is_one_file(write: Callable, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "_RANGE_BYTES", 500)
    dump = HEAD + "".join(page(f"T{n}", f"{n * 7919}") for n in range(300)) + "</mediawiki>"
    assert len(sources.find_files([SourceConfig(path=str(write("a.xml.bz2", bz2.compress(dump.encode()))))])) == 1


def test_sentences_of_four_languages():
    """50 each of ja, ko, de and fr, with what MediaWiki shows by the documentation of their templates; few lose a word."""
    lost: Counter[str] = Counter()
    for line in (Path(__file__).parent / "wikipedia_sentences.tsv").read_text("utf-8").splitlines():
        language, markup, shown = line.split("\t")
        left = iter(plain_text(markup, {"file", "image", "datei", "fichier", "ファイル", "파일"}))
        if not all(character in left for character in re.sub(r"\s|(?<=\d)[,.](?=\d{3})", "", shown)):
            lost[language] += 1
    assert lost == {"ja": 3, "ko": 2, "de": 4, "fr": 2}  # codes of countries, dates of eras and by hyphens, formulas


@pytest.mark.slow
def test_a_real_dump(real_data: Path, scattered: Callable):
    found = scattered(real_data / REAL, part_bytes=1 << 30)
    counts, text = found.manifest.counts, "\n".join(found.documents())
    assert counts.skipped == {"redirect": 99, "other_namespace": 1, "empty": 1}
    assert counts.documents + sum(counts.skipped.values()) == 206 and len(text) > 2_000_000
    left = [text[max(0, mark.start() - 30) : mark.end() + 30] for mark in MARKUP.finditer(text)]
    assert len(left) <= 3, left  # a caption that its author never closed

"""The caption cleaner: results of the published one (language/t5.py of FoundationVision/LlamaGen) for hard texts."""

from __future__ import annotations

import pytest

from mmspec.vision.llamagen.captions import clean_caption

CLEANED = {
    "A kangaroo wearing an orange hoodie!": "a kangaroo wearing an orange hoodie!",
    "  A  Red\tCircle \n above a star  ": "a red circle above a star",
    "a \"quoted\" word and 'another'": 'a "quoted" word and \'another',
    "“Curly” ‘quotes’ «guillemets»": "curly\" 'quotes' \"guillemets",
    '"wholly quoted"': "wholly quoted",
    "em — dash, en–dash, minus −, wave 〜": "em - dash, en-dash, minus −, wave",
    "one-two-three-four-five and six_seven": "one two three four five and six seven",
    "a-b c_d": "a-b c_d",
    "see https://example.com/a_b?c=1 for more": "see ?c=1 for more",
    "visit www.example.com/foo-bar now": "visit now",
    "mail me@example.com, by @some_one": "mail me , by",
    "<b>bold</b> &amp; <i>italic</i> &quot;text&quot;": 'bold italic "text"',
    "a <person> on a <br/> bike": "a person on a bike",
    "&lt;script&gt; tags &#65;&#66;": "",
    "红色的圆 a red circle 東京": "a red circle",
    "カタカナ ㍿ text": "カタカナ text",
    "Größe, café, naïve, Ångström": "größe, café, naïve, ångström",
    "broken Ã© encoding â€™s": "broken ã encoding †s",
    "photo #12 #1234 #12345 of 1234567 things": "photo 1234 of things",
    "IMG_1234.JPG and shot.png, png images": "and",
    "127.0.0.1 is home, 3:45 ": "is home, 3:45",
    "wait..... what?  yes . no": "wait what? yes no",
    "***SALE*** [50%] {off} (now) | a/b\\c ~ ½ ©": "sale 50% off now a b c",
    "free shipping worldwide, worldwide free shipping": "worldwide",
    "free download or download free": "or",
    "click for more, click on this": "",
    "jc6640 jc6640vc 6640vc231 j2d1a2a": "",
    "page 12, 10x20 and 3.5×4": "and",
    "a : b, c:d,e.f": "a: b, c:d, e. f",
    ".hidden": "",
    "-lead and trail-": "lead and trail",
    "50%25+off%20now": "50% off now",
    "😀 a smiling face": "😀 a smiling face",
    "a\xa0non-breaking\u200bspace": "a non-breaking\u200bspace",
    "I'm a Blue Porsche 356, don't you know": "i'm a blue porsche 356, don't you know",
    "line\\nbreak": "line break",
    "#123": "",
    '\'\'two\'\' """three"""': 'two" "three',
}


@pytest.mark.parametrize("caption", CLEANED)
def test_captions_are_cleaned_as_published(caption: str) -> None:
    assert clean_caption(caption) == CLEANED[caption]

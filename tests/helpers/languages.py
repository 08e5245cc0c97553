"""Sentences of languages that speech models speak, each in the marks of its script."""

from __future__ import annotations

LANGUAGES: dict[str, list[str]] = {
    "English": [
        "Dr. Lee met Mrs. Kay on Jan. 5 at 7 p.m.", "He said No. 5 is best!",
        "It costs 3.50 dollars, e.g. for tea.",
    ],
    "small letters": ["hey there.", "i was thinking about my sister's car.", "then we go?"],
    "German": ["Am 3. Oktober kam Dr. Meier, z.B. per Zug.", "„Geh!“", "Dann ging er nach Köln."],
    "French": ["M. Dupont a dit « Allons-y ! »", "Puis il est parti vers 15 h 30.", "C’est vrai ?"],
    "Spanish": ["¿Dónde está el Sr. García?", "¡No lo sé!", "Quizás mañana vuelva."],
    "Russian": ["Проф. Иванов живёт в г. Москве.", "А. С. Пушкин писал стихи!", "Ты знаешь?"],
    "Greek": ["Πού είναι ο κ. Παπαδόπουλος;", "Δεν ξέρω.", "Ίσως αύριο!"],
    "Georgian": ["გამარჯობა მეგობარო.", "როგორ ხარ?", "კარგად ვარ."],
    "Armenian": ["Բարեւ ձեզ։", "Ինչպես եք, բարեկամ։", "Շատ լավ եմ։"],
    "Hebrew": ["שלום חבר יקר.", "מה שלומך היום?", "הכול בסדר!"],
    "Arabic": ["ثم أكتب قصة قصيرة كل يوم.", "هل تعرف د. أحمد؟", "نعم، أعرفه جيدا؛", "هذا صحيح!"],
    "Urdu": ["میں ہر روز کہانی لکھتا ہوں۔", "کیا آپ جانتے ہیں؟", "جی ہاں، ضرور۔"],
    "Hindi": ["वह जल्दी उठ गया।", "बाहर मौसम बहुत अच्छा था।", "क्या डॉ. शर्मा आए?"],
    "Bengali": ["আমি ভাত খাই।", "তুমি কেমন আছ?", "সে আজ স্কুলে গেছে।"],
    "Amharic": ["ሰላም ነው።", "እንዴት ነህ፧", "ዛሬ ወደ ገበያ ሄድኩ።"],
    "Burmese": ["မင်္ဂလာပါ။", "နေကောင်းလား။", "ဈေးသို့ ယနေ့ သွားသည်။"],
    "Khmer": ["សួស្តី។", "តើអ្នកសុខសប្បាយទេ?", "ខ្ញុំទៅផ្សារ។"],
    "Tibetan": ["བཀྲ་ཤིས་བདེ་ལེགས།", "ཁྱེད་རང་སྐུ་གཟུགས་བདེ་པོ་ཡིན་པས།", "ང་བདེ་པོ་ཡིན།"],
    "Thai": ["สวัสดีครับเพื่อน", "วันนี้อากาศดีมาก", "เราไปตลาดกันไหม?"],
    "Korean": ["안녕하세요.", "오늘 날씨가 좋네요!", "어디 가세요?"],
    "Chinese": ["今天天气很好。", "我们去公园吧！", "你觉得怎么样？"],
    "Japanese": ["これはペンです。", "あれは「本」です！", "そうですか？"],
    "half-width Japanese": ["ｺﾚﾊﾍﾟﾝﾃﾞｽ｡", "ｱﾚﾊﾎﾝﾃﾞｽ｡", "ｿｳﾃﾞｽｶ?"],
    "lines": ["A first heading", "the second line of it", "Chapter 3"],
    "list": ["1. First item", "2. Second item", "- tea and coffee", "* cake, for Sunday"],
}  # fmt: skip
_JOINED = {
    "Burmese": "", "Khmer": "", "Chinese": "", "Japanese": "", "half-width Japanese": "", "lines": "\n", "list": "\n",
}  # fmt: skip


def joined(language: str, times: int) -> str:
    """The sentences of a language, several times, as they are written one after the other."""
    between = _JOINED.get(language, " ")
    return between.join(LANGUAGES[language] * times)

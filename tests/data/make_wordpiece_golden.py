"""Writes wordpiece_golden.jsonl: short texts of every kind with their ids and offsets under a small vocabulary.

Ids and offsets come from tests/text/google_tokenizer.py, plain Python; with --check it is compared with Google's ids:

    PYTHONPATH=tests/text python tests/data/make_wordpiece_golden.py
    PYTHONPATH=tests/text python tests/data/make_wordpiece_golden.py --check GOLDEN VOCABULARIES

GOLDEN has lines {"vocabulary", "text", "ids"}, VOCABULARIES is the folder of the vocabulary files that they name. The
texts have no characters newer than Unicode 13, which not every version of Python knows.
"""

import argparse
import json
import random
from collections import Counter
from pathlib import Path

from google_tokenizer import decoded, tokenized, words

HERE = Path(__file__).parent
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UNCASED = ("bert-base-uncased", "bert-base-chinese")

PLAIN = """
The quick brown fox jumps over the lazy dog.
It is a truth universally acknowledged, that a single man must be in want of a wife.
"Don't!" she said -- and didn't. 'Twas the o'clock's fault; wasn't it?
Call me Ishmael. Some years ago (never mind how long) I went to sea.
He paid $3.50 for 2 lbs. @ 50% off & left #1 at 10:45 a.m.
e-mail: someone_else@example.com, http://www.example.com/a/b?c=d&e=f#g
x = y**2 + [1, 2, 3][0] / {4: 5}[4] - ~6 ^ 7 | 8 < 9 > `10`
THE CAPITALS, tHe MiXeD, iPhone, McDonald, NASA, U.S.A.
A tokenizer's unaffable unbelievably antidisestablishmentarianism.
1,234,567.89 and 0x1F and 3rd and 4x4 and 1990s and B2B
""".strip().split("\n")
LANGUAGES = """
Die Größe der Straße überrascht den süßen Bären nicht.
ÄRGER, Öl und Übermut; STRASSE, STRAẞE und Maß.
L'été dernier, j'ai mangé une crème brûlée à Noël. Ça va?
El niño comió piñas; ¿qué pasó? ¡Nada! Señor Muñoz
Zażółć gęślą jaźń. ŁÓDŹ leży w Polsce.
Příliš žluťoučký kůň úpěl ďábelské ódy.
İstanbul'da ılık bir gün; IŞIK ve ışık, İĞNE.
Þetta er íslenska; ÆÐI og öxl.
Århus og Ærø, smørrebrød på Østerbro.
Tiếng Việt có nhiều dấu: Nguyễn, Đà Nẵng, phở.
Ő és Ű: árvíztűrő tükörfúrógép.
Съешь же ещё этих мягких французских булок, да выпей чаю.
МОСКВА — столица России. Йод, Ёлка, й, ё.
Київ, Їжак, ґанок і щастя.
Ο Οδυσσέας ΚΑΙ Ο ΣΊΣΥΦΟΣ. ΌΣΟΣ ὁ λόγος, ἐν ἀρχῇ ἦν.
ΣΑΣ ΑΣ. Σ σ ς ΑΣΑ Α.Σ. ΑΣ' ΑΣ'Α ΑΣ­Α
هذا نص عربي قصير، مع تشكيلٍ قليلٍ؛ أليس كذلك؟
זוהי שורה בעברית: שָׁלוֹם, עולם!
यह हिन्दी में एक छोटा वाक्य है। क्या?
এটি একটি বাংলা বাক্য।
இது தமிழ் வாக்கியம்.
ภาษาไทยไม่มีช่องว่างระหว่างคำ
ខ្ញុំស្រលាញ់ភាសាខ្មែរ។
မြန်မာဘာသာ စကား။
これは日本語の短い文です。カタカナもガギグゲゴ、パピプペポ。
東京タワーは333mです。「はい」と言った。
我喜欢学习自然语言处理。你呢？
DECnet是由Digital创造的，用于连接PDP-11。
한국어 문장입니다. 값이 얼마예요?
ქართული ენა, Ⴀ Ⴁ და ᲐᲑ
Հայերեն լեզու, ԲԱՐԵՒ ևս։
አማርኛ ቋንቋ፡ሰላም።
ᎣᏏᏲ ᏣᎳᎩ ꭰꭱ
ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ᠌
བོད་ཡིག། བཀྲ་ཤིས།
Ⲁⲗⲫⲁ ⲃⲏⲧⲁ
""".strip("\n").split("\n")
CODES = r"""
\u00e9 e\u0301 E\u0301 \u00c9 cafe\u0301s cafe\u0301\u0302\u0303!
\u0301 \u0301\u0302 a \u0301b -\u0301- \u0301
o\u0308\u0323 o\u0323\u0308 \u1ed9 \u1e69 s\u0323\u0307 s\u0307\u0323
\u212b \u212a \u2126 \u1fef \u037e \u0387 \u2329\u232a \u0340 \u0344x
\u01c5 \u01c4 \u01c6 \ufb00 \ufb01ne of\ufb01ce \ufb03 \u0149 \u1e9e\u00df
\u0130 i\u0307 I\u0307 \u0131 \u1e9b\u0323 \u03b0 \u0390
a\u00adb soft\u00adhyphen a\u200bb a\u200cb a\u200db a\u2060b a\ufeffb
\ufeffstart of text \ufeff
a\u0000b a\u0001b \u0002 a\u0007\u0008b a\u000bb a\u000cb a\u001cb a\u001fb a\u007fb
a\u0080b a\u0085b a\u009fb \u0090\u0091
a\tb a\nb a\rb a\r\nb \t\n\r  a  b\x20
a\u00a0b a\u1680b a\u2000b a\u2003b a\u2009b a\u200ab a\u202fb a\u205fb a\u3000b
a\u2028b a\u2029b \u2028 \u2029
a\u180eb a\u061cb a\u200eb a\u202ab a\u2066b a\u06ddb
a\ufffdb \ufffd\ufffd x\ufffd
\u2018single\u2019 \u201cdouble\u201d \u2013 \u2014 \u2026 it\u2019s rock\u2019n\u2019roll
\u00ab guillemets \u00bb \u2039x\u203a \u00bfq? \u00a1w! \u00a7 5 \u00b6 \u00b7 mid\u00b7dot
3\u00d74 \u00f7 5\u00b12 \u00b0C \u00b5m \u00b2 \u00bd \u00a9 \u00ae \u2122 \u20ac5 \u00a35 \u00a55 \u00a2
a\u2044b a\u2052b a\u203fb a\u2040b a\u2054b a\u2212b a\u2215b a\u223cb
\u2460\u2461 \u24b6\u24d0 \u2474 \u2488 \u2776 \u3220 \u32a3 \u2160\u2170 \u216b
\uff21\uff22\uff23 \uff41\uff42 \uff11\uff12 \uff01\uff0c\uff1f \uff04\uff0b\uff1c\uff1d\uff5e
\uff76\uff9e\uff77\uff9f \uff61\uff62\uff63 \u30f4\u304c\u304b\u3099 \u309b \u30fb \u30fc
\u4e2d\u6587abc\u4e2d x\u4e00y \u9fa5\u9fff\u3400\u4dbf \u3007 \u3005 \u3006
\uf900\uf901a\ufa0e \ufad9b \U0002f800c \U0002fa1dd
a\U00020000b \U0002a6d6c \U0002a700d \U0002b740e \U0002b820f \U0002ceb0g \U00030000h
\u2e80\u2e99 \u2f00\u2fd5 \u31c0 \u3021 \u3031 \u303d \u3030
\uac00\uac01\ud7a3 \u1100\u1161\u11a8 \u3131\u314f \uffa1\uffc2
\ue000\uf8ff private \U000f0000 \U0010fffd use\ue001d
\ufdd0 \uffff\ufffe \U0001ffff non\uffffchar
a\u0378b \u0380 \U000e0100 \ufe0f \U000e0001x a\U000e0041b
\U0001f600 smile\U0001f642s \u2764\ufe0f \u2603 \u263a\ufe0e \U0001f44d\U0001f3fd
\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1eb\U0001f1f7 1\ufe0f\u20e3
\U0001d400\U0001d41a \U0001d7d8 \U00010400\U00010428 \U0001e900\U0001e922 \U000104b0\U000104d8
\U00012000\U00013000 \U0001d15e \U0001d165\U0001d16d \U0001d1bb
\u0e01\u0e33 \u0eb3 \u0f73 \u0f43 \u0958 \u09cb \u0b4b \u0d4a
\u1b06 \u1b44\u1b35 \u302e\u302f a\u302fb\u302e \U00011131\U00011127
\u0600 \u06d4 \u066a\u066b\u066c \u061b\u061f \u064b\u0651 \ufef5 \ufdf2 \ufc5e
\u05be \u05c0 \u05f3 \ufb2a \ufb4b \u0591\u05b0
\u1f80\u1f88\u1fb3 \u1ffc \u1f71\u03ac \u03c2\u03c3 \u03f4 \u03d2\u03d3
\u10a0\u2d00 \u1c90 \u13a0\uab70 \ua640 \u2c00 \u0526
\u1d2c \u02b0 \u02bc x\u02bcy \u02d0 \u0374 \u037a \u1fbd \u00a8 \u00b4 \u00b8 \u02dc
\u0e5a \u0f04 \u1360 \u166e \u1800 \u2cf9 \u2e00 \ua673 \ua92e \U00010100 \U00010a50
\u0022\u0023\u0024\u0025\u005c\u005e\u005f\u0060\u007c\u007e a_b a$b a+b a=b a<b a>b a^b a|b a~b a`b
""".strip("\n").split("\n")
SPECIAL = [
    "", " ", "   ", "\t\n\r", "a", "A", "é", "中", ".", "\u0301", "\u00ad", "\0", "\ufffd",
    "Paris is the [MASK] of France.", "[CLS] a [SEP] b [SEP]", "[PAD][UNK][MASK]", "[mask] [MaSk]", "[unused1]",
    "##ing", "## ing", "a##b", "# #", "-" * 300, "'" * 9, "!?" * 150, "a." * 150, "中" * 250, "é" * 200,
    "é" * 201, "a" * 199, "a" * 200, "a" * 201, "b" * 200 + " " + "b" * 201 + " end",
    "x" * 250 + "!" + "a" * 200, "a" * 201 + "中a", "İ" * 200, "İ" * 201, "한" * 67, "한" * 66 + "하",
    "ก" * 201 + " ก", "e\u0301" * 200, "e\u0301" * 201, "😀" * 200, "😀" * 201, "a\u200d" * 200,
    "a\u00ad" * 201, "ab" * 100 + "\u0301", "a" * 150 + "\u00a0" + "b" * 150, "a" * 150 + "\u2014" + "b" * 150,
    "a" * 150 + "\u2044" + "b" * 150, "a" * 150 + "$" + "b" * 150, "ﬁ" * 201, "1" * 201, "\ue000" * 201,
]  # fmt: skip
UNDECODABLE = [
    b"\xff", b"\xfe\xff", b"a\xffb", b"a \xff b", b"\x80abc", b"abc\x80", b"caf\xe9 au lait", b"na\xc3 ve",
    b"na\xc3", b"\xe4\xb8\xad\xe6\x96", b"\xe4\xb8 \xe4\xb8\xad", b"\xe4A\xb8\xad", b"\xf0\x9f\x98",
    b"\xf0\x9f\x98\x80\xf0\x9f", b"\xf0\x9fX\x98\x80", b"\xc0\xaf", b"x\xc1\xbfy", b"\xe0\x80\xafz",
    b"\xed\xa0\x80a", b"\xed\xa0\xbd\xed\xb8\x80", b"\xed\xbf\xbfend", b"\xf4\x90\x80\x80q",
    b"\xf5\x80\x80\x80q", b"\xf8\x88\x80\x80\x80q", b"\xef\xbf\xbdq", b"\xef\xbfq", b"e\xcc\x81\xff\xcc\x82!",
    b"e\xff\xcc\x81s", b"\xffCaf\xc3\xa9\xfe cafe\xcc\x81s\xfd", b"a" * 100 + b"\xff" + b"a" * 100,
    b"a" * 100 + b"\xff" + b"a" * 101, b"\xc3\xa9\xe9" * 4, b"\xce\x91\xce\xa3\xff",
    b"\xce\x91\xce\xa3\xff\xce\x91",
]  # fmt: skip
FUZZ_BLOCKS = [
    (0x00, 0x7F), (0x20, 0x7E), (0x20, 0x7E), (0x61, 0x7A), (0x61, 0x7A), (0x80, 0xFF), (0x100, 0x24F), (0x300, 0x36F),
    (0x370, 0x3FF), (0x400, 0x45F), (0x590, 0x5F4), (0x600, 0x65F), (0x900, 0x96F), (0x1100, 0x11FF), (0x1E00, 0x1EFF),
    (0x1F00, 0x1FFE), (0x2000, 0x206F), (0x20A0, 0x20BF), (0x2100, 0x218B), (0x2460, 0x24FF), (0x3000, 0x303F),
    (0x3040, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xACFF), (0xE000, 0xE0FF), (0xF900, 0xFA6D), (0xFB00, 0xFB06),
    (0xFF01, 0xFF9F), (0x1F300, 0x1F5FF), (0x20000, 0x200FF), (0x2F800, 0x2FA1D),
]  # fmt: skip


def fuzz(number: int) -> list[str | bytes]:
    """Texts of a few runs of characters from random blocks, every fifth with random bytes put in."""
    draw, found = random.Random(1), []
    for which in range(number):
        runs = [draw.choice(FUZZ_BLOCKS) for _ in range(draw.randint(1, 7))]
        text = "".join(chr(draw.randint(*run)) for run in runs for _ in range(draw.randint(1, 5)))
        if which % 5 == 0:
            text = bytearray(text.encode())
            for _ in range(draw.randint(1, 4)):
                text.insert(draw.randint(0, len(text)), draw.randint(0x80, 0xFF))
            text = bytes(text)
        found.append(text)
    return found


def texts() -> list[str | bytes]:
    codes = [line.encode("ascii").decode("unicode_escape") for line in CODES]
    return [*PLAIN, *LANGUAGES, *codes, *SPECIAL, *UNDECODABLE, *fuzz(130)]


def small_vocabulary() -> list[str]:
    """Most letters that the texts have, alone and as continuations, and their most frequent groups of letters."""
    groups, characters = Counter(), set()
    for text in texts():
        for lower_case in (True, False):
            for word in words(decoded(text)[0], lower_case):
                word = "".join(character for character, _ in word)
                characters.update(word[:1], ("##" + character for character in word[1:]))
                for start in range(len(word)):
                    for end in range(start + 2, min(len(word), start + 6) + 1):
                        groups["##" * bool(start) + word[start:end]] += 1
    frequent = sorted(groups, key=lambda group: (-groups[group] * len(group), group))[:250]
    # Some characters have no piece, so that [UNK] occurs.
    some = [piece for piece in sorted(characters) if ord(piece[-1]) % 5 or piece.isascii()]
    return list(
        dict.fromkeys(
            [*SPECIAL_TOKENS, *some, *frequent, "istanbul", "strasse", "##s", "[MASK]x", "two words", "\u2028"]
        )
    )


def write() -> None:
    vocabulary = small_vocabulary()
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    lines = [{"vocabulary": vocabulary}]
    for text in dict.fromkeys(texts()):
        line = {"hex": text.hex()} if isinstance(text, bytes) else {"text": text}
        for lower_case in (True, False):
            found, places = tokenized(text, ids, lower_case)
            lines.append({**line, "lower_case": lower_case, "ids": found, "offsets": places})
    with open(HERE / "wordpiece_golden.jsonl", "w", encoding="ascii") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    print(f"{len(vocabulary)} pieces, {(len(lines) - 1) // 2} texts, cased and lower-cased")


def check(golden: str, folder: str) -> None:
    vocabularies, equal, number = {}, 0, 0
    with open(golden, encoding="utf-8") as file:
        for line in map(json.loads, file):
            name = line["vocabulary"]
            if name not in vocabularies:
                pieces = (Path(folder) / f"{name}.txt").read_bytes().decode().split("\n")[:-1]
                vocabularies[name] = {piece: number for number, piece in enumerate(pieces)}
            lower_case = name in UNCASED
            equal += tokenized(line["text"], vocabularies[name], lower_case)[0] == line["ids"]
            number += 1
    print(f"{equal} of {number} equal to Google's ids")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", nargs=2, metavar=("GOLDEN", "FOLDER"))
    arguments = parser.parse_args()
    check(*arguments.check) if arguments.check else write()

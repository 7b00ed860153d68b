"""Prints common/data/unicode_tables.inc: Unicode as Hugging Face's `tokenizers` (PyPI) has it.

    deploy/test-venv.sh build/venv && build/venv/bin/python THIS > THAT

Its parts use different versions of Unicode: the classes of patterns are new, NFC is that of Unicode 9.  The tables
of the C library (Unicode 15) are corrected by the lists here."""
from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def matching(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    return [c for c in POINTS if not split.pre_tokenize_str(chr(c))]


def young_marks():
    """Marks of Unicode 15 that the reference's NFC does not reorder."""
    nfc, young = normalizers.NFC(), [0x11930]  # the second half of U+11938
    for line in open("/usr/share/unicode/UnicodeData.txt", encoding="ascii"):
        c, ccc = int(line.split(";")[0], 16), int(line.split(";")[3])
        first = 0x301 if ccc < 230 else 0x345  # a mark that c would go before
        text = "q" + chr(first) + chr(c) if ccc not in (230, 240) else "q\u035d" + chr(c)
        if ccc and ccc != 240 and nfc.normalize_str(text) == text:
            young.append(c)
    return sorted(young)


def ranges(points):
    out = []
    for c in points:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def table(name, points, comment):
    print(f"\n/* {comment} */\nstatic const struct range {name}[] = {{")
    line = "   "
    for a, b in ranges(points):
        item = f" {{{a:#x}, {b:#x}}},"
        if len(line) + len(item) > 98:
            print(line)
            line = "   "
        line += item
    print(f"{line}\n}};")


print("/* Written by tests/tools/common/data/unicode_tables.py with Hugging Face's tokenizers. */")
print("/* clang-format off */")
table("letters", matching(r"\p{L}"), "The general category L of Unicode 16.")
table("numbers", matching(r"\p{N}"), "The general category N of Unicode 16.")
table("young_marks", young_marks(), "Combining marks that came after Unicode 9, whose NFC is the reference.")
print("/* clang-format on */")

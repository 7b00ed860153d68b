"""Prints tests/unit/common/data/tokenizer_vectors.h: the output of Hugging Face's `tokenizers` (PyPI).

    python3 -m venv v && v/bin/pip install tokenizers && v/bin/python THIS > THAT

One small BPE, trained here on the texts themselves, under each known split pattern."""
import json

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
PATTERNS = [("gpt2", None), ("cl100k", CL100K), ("digit", CL100K.replace("{1,3}", ""))]
TEXTS = [
    "Hello world, hello again: it's what they'll do, isn't it?",
    "IT'S WHAT THEY'LL DO, I'VE SEEN 12345 OF 67 '\u017f",
    "  two  spaces\tand\ttabs   \n\n  lines \r\n\r\n end   ",
    "Die Größe der Übung: 3½ Meter, naïve façade, Ångström",
    "日本語の文字 한국어 العربية हिन्दी \u0301combining",
    "\U0001f642\U0001f44d\U0001f3fd emoji\u00a0nbsp\u3000wide\u2028line\u0085next \u2167 \u00b2",
    "a1b22c333d4444 ...!!!\n??\n(x)[y]{z} foo_bar--baz <|endoftext|> end",
    " ",
    "\n",
    "x",
]


def train(pattern):
    t = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    t.pre_tokenizer = pre_tokenizers.Sequence(split + [byte_level]) if split else byte_level
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return t


def c_string(text):
    """A C literal; every byte that is not printable ASCII is three octal digits, which end by themselves."""
    lines = [""]
    for b in text.encode():
        lines[-1] += chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}"
        if len(lines[-1]) > 88:
            lines.append("")
    return "\n    ".join(f'"{line}"' for line in lines if line)


def wrap(name, items, kind):
    print(f"static const {kind} {name}[] = {{")
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 98:
            print(line)
            line = "   "
        line += f" {item},"
    print(f"{line}\n}};")


print("""/* Written by tests/tools/common/data/tokenizer_vectors.py with Hugging Face's tokenizers. */
#ifndef TESTS_UNIT_BASE_TOKENIZER_VECTORS_H
#define TESTS_UNIT_BASE_TOKENIZER_VECTORS_H

#include <stdint.h>

/* clang-format off */
struct vector {
    const uint32_t *ids;
    unsigned n;
};
""")
wrap("vector_texts", [c_string(t) for t in TEXTS], "char *const")
alphabet = None
for name, pattern in PATTERNS:
    t = train(pattern)
    model = json.loads(t.to_str())["model"]
    in_order = sorted(model["vocab"], key=model["vocab"].get)
    assert alphabet in (None, in_order[:256])
    alphabet = in_order[:256]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    wrap(f"{name}_merges", [c_string(m) for m in merges], "char *const")
    t.add_special_tokens(["<|endoftext|>"])
    for plain in (True, False):
        kind = "plain" if plain else "special"
        every = []
        for text in TEXTS:
            # Plain: the special token's text is encoded like any other.
            u = Tokenizer.from_str(t.to_str())
            if plain:
                spec = json.loads(t.to_str())
                spec["added_tokens"] = []
                u = Tokenizer.from_str(json.dumps(spec))
            every.append(u.encode(text).ids)
        for i, ids in enumerate(every):
            wrap(f"{name}_{kind}_{i}", [str(x) for x in ids], "uint32_t")
        wrap(f"{name}_{kind}", [f"{{{name}_{kind}_{i}, {len(ids)}}}" for i, ids in enumerate(every)],
             "struct vector")
wrap("vector_alphabet", [c_string(a) for a in alphabet], "char *const")
print("/* clang-format on */\n\n#endif")

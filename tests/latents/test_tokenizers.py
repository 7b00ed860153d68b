"""Token ids against transformers, tokenizers and sentencepiece (PyPI): CLIP with its real merges, T5 and BPE models
trained here.  Run by `make check-latents`.

Seeds are drawn anew each run and printed; SKERRY_SEED repeats one."""
import gzip
import io
import json
import os
import pathlib
import random
import subprocess

import pytest
import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)
from transformers import CLIPTokenizer, LlamaTokenizer, Qwen2Tokenizer, T5Tokenizer

BUILD = pathlib.Path(os.environ.get("SKERRY_BUILD", "build"))
PROBE = BUILD / "release/tests/tools/common/data/token_probe"
SEED = int(os.environ.get("SKERRY_SEED", random.SystemRandom().randrange(10**9)))
STRINGS = 10_000

CORPUS = [
    "a photo of a red boot on a wooden table, 35mm film, highly detailed",
    "two cats' tails; it's raining and they'll stay inside because we're late",
    "Der Fluß fließt über die Brücke, naïve façade, Ångström, ŒUVRE, ſtraße",
    "日本語の文字 と 漢字 한국어 텍스트 العربية हिन्दी ภาษาไทย Ελληνικά русский текст",
    "emoji 🙂 👍🏽 👩‍👩‍👧 flags 🇫🇷 1234567890 3½ ² ﬁ ℌ №",
] * 50
SPECIALS = ["<|endoftext|>", "<|startoftext|>", "<|ENDOFTEXT|>", "</s>", "<pad>", "<unk>", "<s>", "<extra_id_0>",
            "<extra_id_99>", " <extra_id_7> ", "</w>", "<0x41>", "▁", "!"]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u200b",
          "\u202f", "\u3000", "\ufeff"]
MARKS = list("\u0301\u0308\u0323\u0327\u0345\u20dd\ufe0f\u200d\u093c\u05b0\u0e48\u1ace\u0897\u3099")
BASES = list("aeosAEOS²ªµﬁǆſßİıΣςṩ가ㄱ각ᄀ\u1161\u11a8がハ\u0344\u212b\u2126")
BLOCKS = [(0x20, 0x7f), (0x80, 0x250), (0x300, 0x370), (0x370, 0x590), (0x590, 0x900), (0x900, 0x1100),
          (0x1100, 0x1200), (0x1e00, 0x2000), (0x2000, 0x2800), (0x3000, 0x3400), (0xa000, 0xac00), (0xac00, 0xd800),
          (0xf900, 0x10000), (0x10000, 0x12000), (0x1d000, 0x20000), (0xe0000, 0xe01f0)]


def any_character(r):
    while True:
        low, high = r.choice(BLOCKS) if r.random() < 0.7 else (0, 0x110000)
        c = r.randrange(low, high)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def words(r):
    text = r.choice(CORPUS)
    a = r.randrange(len(text))
    return text[a:a + r.randrange(1, 40)]


def piece(r):
    return r.choice([
        lambda: words(r), lambda: words(r).upper(), lambda: r.choice(SPACES), lambda: r.choice(SPECIALS),
        lambda: r.choice(BASES) + "".join(r.choices(MARKS, k=r.randrange(4))), lambda: any_character(r),
        lambda: "".join(any_character(r) for _ in range(r.randrange(8))),
        lambda: chr(r.randrange(0x20)), lambda: r.choice(["'s", "'LL", "''re", "1234", "...", "😀", "ﷺ"])])()


def strings(seed, n=STRINGS):
    r = random.Random(seed)
    out = ["", " ", "a", "\n", "x" * 5000, "日" * 3000, " ".join(CORPUS[:30]), "\u0301" * 500, "▁" * 9, " ▁ a"]
    while len(out) < n:
        out.append("".join(piece(r) for _ in range(r.randrange(1, 12))))
    return out


def probe(arguments, texts):
    lines = "".join(t.encode().hex() + "\n" for t in texts)
    done = subprocess.run([PROBE, *map(str, arguments)], input=lines, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [[int(x) if x.lstrip("-").isdigit() else x for x in line.split()] for line in done.stdout.splitlines()]


def compare_captions(folder, theirs, texts, most=77):
    """The strings for which the tokenizer of a folder and that of transformers differ."""
    head, *ours = probe(["captions", folder, most], texts)
    assert head[1] == len(theirs) and head[3] == theirs.pad_token_id
    assert len(ours) == len(texts)
    want = theirs(texts, padding="max_length", truncation=True, max_length=most)
    bad = [(text, a, sum(mask), b) for text, a, b, mask in
           zip(texts, ours, want["input_ids"], want["attention_mask"]) if a != [sum(mask), *b]]
    for text, a, n, b in bad[:5]:
        k = next(i for i, (x, y) in enumerate(zip(a[1:], b)) if x != y) if a[1:] != b else 0
        print(ascii(text), "at", k, "ours", a[0], a[1 + k:9 + k], "theirs", n, b[k:8 + k],
              theirs.convert_ids_to_tokens(b[max(k - 2, 0):4 + k]))
    print(f"token_mismatches {type(theirs).__name__} {folder.name}: {len(bad)} of {len(texts)} (seed {SEED})")
    return len(bad)


# ---- CLIP ----

PATTERN = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def clip_files(folder):
    """Makes vocab.json and merges.txt from open-clip-torch's list of merges."""
    import importlib.util
    package = pathlib.Path(importlib.util.find_spec("open_clip").submodule_search_locations[0])
    lines = gzip.open(package / "bpe_simple_vocab_16e6.txt.gz").read().decode().split("\n")
    merges = [tuple(line.split()) for line in lines[1:49152 - 256 - 2 + 1]]
    alphabet = list(range(ord("!"), ord("~") + 1)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    symbols = [chr(c) for c in alphabet] + [chr(256 + i) for i in range(256 - len(alphabet))]
    vocab = symbols + [s + "</w>" for s in symbols] + ["".join(m) for m in merges]
    vocab += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({v: i for i, v in enumerate(vocab)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, merges)) + "\n", encoding="utf-8")
    return vocab


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip") / "plain"
    clip_files(folder)
    return folder


def test_clip_merges(clip):
    assert compare_captions(clip, CLIPTokenizer.from_pretrained(clip), strings(SEED)) == 0


def test_clip_json(clip, tmp_path):
    theirs = CLIPTokenizer.from_pretrained(clip)
    folder = tmp_path / "saved"
    theirs.save_pretrained(folder)
    assert (folder / "tokenizer.json").exists()
    assert compare_captions(folder, theirs, strings(SEED + 1)) == 0
    for most in (2, 3, 16, 300):
        assert compare_captions(folder, theirs, strings(SEED + most, 200), most) == 0


@pytest.mark.parametrize("pad", ["!", "<|endoftext|>"])
def test_clip_config_of_pipelines(clip, tmp_path, pad):
    """The configuration of Stable Diffusion's folders: special tokens are matched in lower case; another padding token."""
    token = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "__type": "AddedToken"}
    folder = tmp_path / "sd"
    folder.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_bytes((clip / name).read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": token | {"content": "<|startoftext|>"}, "eos_token": token | {"content": "<|endoftext|>"},
        "unk_token": token | {"content": "<|endoftext|>"}, "pad_token": pad, "model_max_length": 77,
        "tokenizer_class": "CLIPTokenizer", "do_lower_case": True, "errors": "replace"}))
    theirs = CLIPTokenizer.from_pretrained(folder)
    assert compare_captions(folder, theirs, strings(SEED + 2, 3000)) == 0
    assert probe(["captions", folder, 77], [])[0][:3] == ["CLIP", 49408, 77]


def test_clip_small_vocabulary(tmp_path):
    """A vocabulary trained here, without the whole alphabet: missing characters become the unknown token."""
    t = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<|endoftext|>"))
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                         normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "removed", True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.train_from_iterator(CORPUS[:2], trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|startoftext|>", "<|endoftext|>"], end_of_word_suffix="</w>",
        show_progress=False))
    t.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0), False, False)
    t.save(str(tmp_path / "tokenizer.json"))
    texts = strings(SEED + 3, 3000)
    want = [e.ids for e in t.encode_batch(texts)]
    ours = probe(["captions", tmp_path, 4000], texts)[1:]
    assert sum(a[1:a[0] + 1] != b for a, b in zip(ours, want) if len(b) <= 4000) == 0


# ---- T5 ----

def train(folder, kind, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=out, model_type=kind, hard_vocab_limit=False,
        minloglevel=2, **options)
    folder.mkdir(exist_ok=True)
    return out.getvalue()


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5") / "spiece"
    model = train(folder, "unigram", vocab_size=400, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(model)
    return folder


def test_t5_spiece(t5):
    assert compare_captions(t5, T5Tokenizer.from_pretrained(t5), strings(SEED), 120) == 0


def test_t5_json(t5, tmp_path):
    theirs = T5Tokenizer.from_pretrained(t5)
    folder = tmp_path / "saved"
    theirs.save_pretrained(folder)
    assert (folder / "tokenizer.json").exists()
    assert compare_captions(folder, theirs, strings(SEED + 1), 120) == 0
    for most in (2, 5, 512):
        assert compare_captions(folder, theirs, strings(SEED + most, 200), most) == 0


def test_t5_extra_ids_take_spaces(t5, tmp_path):
    """The setting of folders of older releases."""
    token = {"lstrip": True, "normalized": False, "rstrip": True, "single_word": False, "special": True}
    plain = token | {"lstrip": False, "rstrip": False}
    n = sentencepiece.SentencePieceProcessor(model_file=str(t5 / "spiece.model")).get_piece_size()
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "spiece.model").write_bytes((t5 / "spiece.model").read_bytes())
    decoder = {str(i): plain | {"content": c} for i, c in enumerate(["<pad>", "</s>", "<unk>"])}
    decoder |= {str(n + 99 - i): token | {"content": f"<extra_id_{i}>"} for i in range(100)}
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "added_tokens_decoder": decoder, "additional_special_tokens": [f"<extra_id_{i}>" for i in range(100)],
        "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "extra_ids": 100,
        "model_max_length": 512, "tokenizer_class": "T5Tokenizer", "legacy": True, "sp_model_kwargs": {}}))
    assert compare_captions(folder, T5Tokenizer.from_pretrained(folder), strings(SEED + 2, 3000), 120) == 0


# ---- models of texts ----

def compare_texts(path, texts, want):
    """The ids of whole texts, special tokens in them recognised."""
    ours = probe(["text", path], texts)
    bad = [(t, a, b) for t, a, b in zip(texts, ours, want) if a != b]
    for t, a, b in bad[:5]:
        print(ascii(t), a[:12], b[:12])
    assert not bad and len(ours) == len(texts) > 500


@pytest.mark.parametrize("tidy", [False, True])
def test_sentencepiece_bpe(tmp_path, tidy):
    """tokenizer.model as in Llama 2, and with SentencePiece's own normalization."""
    name = "nmt_nfkc" if tidy else "identity"
    model = train(tmp_path, "bpe", vocab_size=700, byte_fallback=True, normalization_rule_name=name,
                  remove_extra_whitespaces=tidy, split_digits=True)
    (tmp_path / "tokenizer.model").write_bytes(model)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    texts = [t for t in strings(SEED) if not any(s in t for s in ("<s>", "</s>", "<unk>"))]
    if tidy:  # it looks for the longest match of its map anywhere, tokenizers for the shortest in a grapheme
        texts = [t for t in texts if t.isascii()]
    compare_texts(tmp_path / "tokenizer.model", texts, theirs.encode(texts))


@pytest.mark.parametrize("legacy", [False, True])
def test_llama_json(tmp_path, legacy):
    (tmp_path / "tokenizer.model").write_bytes(
        train(tmp_path, "bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
              remove_extra_whitespaces=False))
    theirs = LlamaTokenizer.from_pretrained(tmp_path)
    backend = theirs.backend_tokenizer
    if legacy:
        backend.pre_tokenizer = None
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    path = tmp_path / "tokenizer.json"
    backend.save(str(path))
    texts = strings(SEED)
    want = Tokenizer.from_file(str(path)).encode_batch(texts, add_special_tokens=False)
    compare_texts(path, texts, [e.ids for e in want])


def test_qwen2_json(tmp_path):
    """As Qwen2.5 has it: NFC, single digits, and added tokens of which only some are special; but merges across words too,
    which only the pattern prevents."""
    theirs = Qwen2Tokenizer().backend_tokenizer
    pattern, theirs.pre_tokenizer = theirs.pre_tokenizer, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.train_from_iterator(CORPUS[:5] + strings(SEED + 4, 2000), trainers.BpeTrainer(
        vocab_size=1500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"]))
    theirs.pre_tokenizer = pattern
    theirs.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    theirs.add_tokens([AddedToken(name, normalized=False) for name in ("<tool_call>", "</tool_call>", "<|fim_prefix|>")])
    path = tmp_path / "tokenizer.json"
    theirs.save(str(path))
    added = ["<|im_end|>", "<tool_call>", " </tool_call>\n", "<|fim_prefix|>x", "\n\n", "12345", "e\u0301"]
    r = random.Random(SEED)
    texts = [r.choice(added) * r.randrange(3) + t + r.choice(added) for t in strings(SEED)]
    want = Tokenizer.from_file(str(path)).encode_batch(texts, add_special_tokens=False)
    compare_texts(path, texts, [e.ids for e in want])

"""Texts of four unlike kinds that a Debian machine has: C headers, Python modules, licences
and package histories.  Writes train.jsonl and valid.jsonl into the folder given."""
import glob
import gzip
import hashlib
import json
import os
import sys

KINDS = {
    "c": ["/usr/include/*.h", "/usr/include/*/*.h", "/usr/include/x86_64-linux-gnu/*/*.h"],
    "python": ["/usr/lib/python3*/*.py", "/usr/lib/python3*/*/*.py"],
    "licences": ["/usr/share/common-licenses/*", "/usr/share/doc/*/copyright"],
    "history": ["/usr/share/doc/*/changelog*.gz"],
}
PER_KIND = 2 << 20  # bytes


def texts(patterns):
    seen = set()
    for pattern in patterns:
        for path in sorted(glob.glob(pattern)):
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            try:
                raw = gzip.open(path).read(65536) if path.endswith(".gz") else open(path, "rb").read(65536)
                text = raw.decode("utf-8", "ignore")
            except (OSError, EOFError):
                continue
            mark = hashlib.sha256(text.encode()).digest()
            if len(text) >= 512 and mark not in seen:
                seen.add(mark)
                yield text


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    counts = {}
    with open(os.path.join(out, "train.jsonl"), "w", encoding="utf-8") as train, \
            open(os.path.join(out, "valid.jsonl"), "w", encoding="utf-8") as valid:
        for kind, patterns in KINDS.items():
            taken = n = 0
            for text in texts(patterns):
                if taken >= PER_KIND:
                    break
                taken += len(text)
                n += 1
                (valid if n % 20 == 0 else train).write(json.dumps({"text": text, "domain": kind}) + "\n")
            counts[kind] = taken
    if min(counts.values()) == 0:
        sys.exit(f"text-data: nothing found for {[k for k, v in counts.items() if v == 0]}; this wants a Debian machine "
                 "with Python and C headers")
    print("text-data: " + ", ".join(f"{k} {v >> 10} KiB" for k, v in counts.items()))


main()

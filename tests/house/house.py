"""Print the figures about the source code, and write them to build/figures/house.json.

    house.py [--root ROOT] [--why NAME]     --why: the parts of a figure, one per line

Rows of house.json: name, value, unit, bound, holds.  Outside tests unless said otherwise."""
import argparse
import collections
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tools"))
import check_calls  # noqa: E402
import check_names  # noqa: E402
from sources import SUFFIXES, files, functions, in_tests, includes, layers, read, split, upward  # noqa: E402

LINES_BEFORE = 83198  # at commit a1f3d3e, with the bodies (*.inc) that sources include
LONG = 60

# A task kind, three that came after the first release.  A file names KIND when its code holds the
# constant (TASK_SCORE, TASK_KIND_SCORE), the word as a string, the message (ScoreTask), a function
# of it (work_score_run, add_score, score_plan), or has the name (work_score.c).  Code is C, the
# schema with its baseline, and the page.
KINDS = ("score", "split", "velocity")
# A model family: files other than its own (llama*.c) with its constant (JOB_MODEL_LLAMA, MODEL_LLAMA)
# or its name as a string.
FAMILIES = ("llama", "dit")
# A codec: files with its constant (CODEC_E3M0, JOB_CODEC_E3M0, ENCODE_E3M0) or its name as a string.
CODECS = ("e3m0", "int8")
# Where the word of a kind of task is another thing's: texts are split into tokens, and a pipeline's
# order is "split".
ANOTHER_THING = {"split": ("common/data/tokenizer_split.c", "common/data/tokenizer_steps.c", "common/job/job_keys.c",
                           "coordinator/http/http_metrics.c", "worker/pipe/schedule.c")}


def code_of(root, path):
    text = read(root, path)
    return split(text)[0] if path.endswith((".c", ".h", ".cu", ".cuh", ".proto", ".js")) else text


def stem_has(path, word):
    return word in re.split(r"[_.]", os.path.basename(path))


def kind_files(code, kind):
    up, cap = kind.upper(), kind.capitalize()
    name = re.compile(rf'\bTASK_(KIND_)?{up}\b|KIND__TASK_KIND_{up}\b|"({kind}|{up})"|{cap}Task\b|'
                      rf"\bwork_{kind}(_\w+)?\b|\b{kind}_(plan|run|check)\b|"
                      rf"\b(add|apply|plan|run|check|task_check)_{kind}\b")
    return [f for f, text in code.items() if (stem_has(f, kind) or name.search(text)) and f not in ANOTHER_THING.get(kind, ())]


def family_files(code, family):
    name = re.compile(rf'\b\w*MODEL_{family.upper()}\b|"{family}"')
    return [f for f, text in code.items() if not stem_has(f, family) and name.search(text)]


def codec_files(code, codec):
    name = re.compile(rf'\b\w*(CODEC|ENCODE)\w*_{codec.upper()}\b|"{codec}"')
    return [f for f, text in code.items() if name.search(text)]


def most(found):
    """The name that occurs in most files: (their number, [name: file])."""
    name = max(found, key=lambda n: len(found[n]))
    return len(found[name]), [f"{name}: {f}" for f in found[name]]


def upward_includes(root):
    table, out = layers(root), []
    for path in files(root):
        if in_tests(path):
            continue
        for n, to in includes(root, path):
            there = "proto" if to.endswith(".pb-c.h") else os.path.dirname(to)
            if upward(table, os.path.dirname(path), there):
                out.append(f"{path}:{n}: {to}")
    return out


def figures(root):
    """{name: (value, unit, bound, [its parts])}; a value of None: not measured."""
    tree = files(root)
    own = [f for f in tree if not in_tests(f)]
    folders = collections.Counter(os.path.dirname(f) for f in tree)
    lengths = sorted(((n, f"{f}:{line}: {n} lines") for f in own if f.endswith((".c", ".cu", ".h", ".cuh"))
                      for line, n in functions(read(root, f).split("\n"))), reverse=True)
    code = {f: code_of(root, f) for f in own}
    wide = code | {f: code_of(root, f) for f in files(root, (".proto", ".js", "baseline.txt"))
                   if not in_tests(f)}
    up, circles = None, None
    objects = os.path.join(root, "build/release")
    if os.path.isdir(objects):
        up, circles = check_calls.findings(root, objects)
    includes_up = upward_includes(root)
    lines = {f: read(root, f).count("\n") for f in files(root, SUFFIXES + (".inc",)) if not in_tests(f)}
    long = [text for n, text in lengths if n > LONG]
    bits = os.path.join(root, "build/figures/bits.json")
    changed = None
    if os.path.exists(bits):
        with open(bits, encoding="utf-8") as f:
            changed = [r for r in json.load(f) if r["name"] == "bits_changed"][0]["value"]
    rows = {
        "files_in_largest_folder": (max(folders.values()), "files, tests included", 45,
                                    [f"{f}/: {n}" for f, n in folders.most_common()]),
        "upward_includes": (len(includes_up), "includes", 0, includes_up),
        "upward_calls": (None if up is None else len(up), "calls", 0, up or []),
        "circles": (None if circles is None else len(circles), "circles", 0, circles or []),
        "longest_function": (lengths[0][0] if lengths else 0, "lines", 85, [t for _, t in lengths[:20]]),
        "functions_over_60": (len(long), "functions", 0, long),
        "lines": (sum(lines.values()), "lines", int(0.92 * LINES_BEFORE),
                  [f"{n} {f}" for f, n in sorted(lines.items(), key=lambda i: -i[1])]),
    }
    for name, bound, count, of, where in (
            ("files_for_a_task_kind", 12, kind_files, KINDS, wide),
            ("files_for_a_model_family", 8, family_files, FAMILIES, code),
            ("files_for_a_codec", 6, codec_files, CODECS, code)):
        value, why = most({one: count(where, one) for one in of})
        rows[name] = (value, "files", bound, why)
    names = check_names.findings(root, ("undocumented", "gone"))
    rows["undocumented_names"] = (len(names["undocumented"]), "names", 0, names["undocumented"])
    rows["names_in_comments_that_do_not_exist"] = (len(names["gone"]), "names", 0, names["gone"])
    rows["bits_changed"] = (changed, "jobs of six", 0, [])
    return rows


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--root", default=".")
    args.add_argument("--why", metavar="NAME")
    a = args.parse_args()
    rows = figures(a.root)
    if a.why:
        print("\n".join(rows[a.why][3]))
        return
    out = [{"name": name, "value": "not measured" if value is None else value, "unit": unit,
            "bound": bound, "holds": value is not None and value <= bound}
           for name, (value, unit, bound, _) in rows.items()]
    for r in out:
        print(f"{r['name']:40} {r['value']!s:>12}  at most {r['bound']:<6} "
              f"{'holds' if r['holds'] else 'NOT YET':8} {r['unit']}")
    os.makedirs(os.path.join(a.root, "build/figures"), exist_ok=True)
    with open(os.path.join(a.root, "build/figures/house.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()

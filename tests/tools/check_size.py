"""Fail on functions over 100 lines, files over 900 lines, lines over 100 columns.

A function is what stands between a `{` and a `}` in the first column."""
import os
import re
import sys

FOLDERS = ["common", "kernels", "coordinator", "worker", "cli", "deploy", "tests"]
MAX_FUNCTION, MAX_FILE, MAX_COLUMNS = 100, 900, 100
bad = 0


def complain(where, text):
    global bad
    bad = 1
    print(f"{where}: {text}")


def check(path):
    lines = open(path, encoding="utf-8").read().split("\n")
    if len(lines) > MAX_FILE:
        complain(path, f"{len(lines)} lines, at most {MAX_FILE}: it holds more than one concept")
    start = None
    for n, line in enumerate(lines, 1):
        if len(line.expandtabs(8)) > MAX_COLUMNS:
            complain(f"{path}:{n}", f"{len(line)} columns, at most {MAX_COLUMNS}")
        if line == "{":
            start = n
        elif line == "}" and start:
            if n - start - 1 > MAX_FUNCTION:
                complain(f"{path}:{start}", f"function of {n - start - 1} lines, at most {MAX_FUNCTION}")
            start = None
        elif re.search(r"[ \t]+$", line):
            complain(f"{path}:{n}", "white space at the end of the line")


for folder in FOLDERS:
    for where, _, names in os.walk(folder):
        for name in sorted(names):
            if name.endswith((".c", ".h", ".cu", ".cuh")):
                check(os.path.join(where, name))
sys.exit(bad)

"""Fail on functions over MAX_FUNCTION lines, files over 900 lines, lines over 100 columns, and
folders of more than MAX_FOLDER files.

    check_size.py [ROOT]

A function is what stands between a `{` and a `}` in the first column."""
import collections
import os
import re
import sys

from sources import SUFFIXES, files, functions, read

MAX_FUNCTION, MAX_FILE, MAX_COLUMNS, MAX_FOLDER = 60, 900, 100, 45
bad = 0


def complain(where, text):
    global bad
    bad = 1
    print(f"{where}: {text}")


def check(root, path):
    lines = read(root, path).split("\n")
    if len(lines) > MAX_FILE:
        complain(path, f"{len(lines)} lines, at most {MAX_FILE}: it holds more than one concept")
    for n, line in enumerate(lines, 1):
        if len(line.expandtabs(8)) > MAX_COLUMNS:
            complain(f"{path}:{n}", f"{len(line)} columns, at most {MAX_COLUMNS}")
        if re.search(r"[ \t]+$", line):
            complain(f"{path}:{n}", "white space at the end of the line")
    for n, length in functions(lines):
        if length > MAX_FUNCTION:
            complain(f"{path}:{n}", f"function of {length} lines, at most {MAX_FUNCTION}")


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    for path in files(root, SUFFIXES + (".inc",)):
        check(root, path)
    for folder, n in collections.Counter(map(os.path.dirname, files(root))).items():
        if n > MAX_FOLDER:
            complain(f"{folder}/", f"{n} files, at most {MAX_FOLDER}: it is more than one room")
    return bad


if __name__ == "__main__":
    sys.exit(main())

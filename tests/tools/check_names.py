"""Fail on names without a manual, manuals without a name, and functions without a caller.

    check_names.py [--root ROOT] [undocumented] [gone] [unused]      without a word: all three

undocumented  A function, struct or enum that a header outside tests shows to others.  It counts as
              documented when a comment ends on the line above it, or above its template or #define, stands beside it or within it; when it follows, without an empty line, one that is; when it is in the
              first block after a comment that stands alone; when the header's comments say its name; or
              when it is one of new, free, init, release, open and close, whose meaning is CONTRIBUTING's,
              of a header that opens with its manual.  Between functions with a body an empty line is none.
gone          A name in a comment, or in a code span of the documentation, that is nowhere: `word()`,
              struct word, enum word, a file, and what is written with_underscores.  A name exists when
              it is in the code of any file of ours, a word of a string of it, or a file's name.
unused        A function that a header shows and nobody calls, or its own file alone, or tests alone unless
              its comment says that it is for tests; one that is declared and never defined; an include that is there twice."""
import argparse
import collections
import os
import re
import sys

from sources import files, in_tests, read, split

CODE = (".c", ".h", ".cu", ".cuh", ".inc")
OTHER = (".py", ".sh", ".mk", ".proto", ".js", ".html", ".css", ".yaml", ".yml", ".json", "Makefile",
         ".txt", ".service")
# What belongs to others and is not in our code: CPUs, C, POSIX, libuv, vips, CUDA, PyTorch, Unicode.
THEIRS = set("""AVX512_BF16 RLIMIT_AS RLIMIT_DATA uv_async vips_thumbnail_buffer orc_code_free
CUDA_VISIBLE_DEVICES cublasLtReductionScheme_t nvmlReturn_t gelu_tanh timestep_embedding White_Space kat_vectors""".split())
THEIR_FILES = set("llm.c nccl.h".split())
PUBLIC = "libskerry/skerry.h"  # its functions are called by the programs of users
EXAMPLES = set("quorum_verb".split())  # CONTRIBUTING shows with them how names are made
# x_t, max_k, u_ij, theta_start: mathematics, a thing with an index.
MATHS = re.compile(r"\w+_[A-Za-z]|[A-Za-z]_[a-z]{2}|score_ik|theta_\w+")

LIFE = re.compile(r"_(new|free|init|release|open|close)$")
DECLARED = re.compile(
    r"^(?P<tag>struct|enum)(?: (?P<name>\w+))? ?\{|"
    r"^(?!typedef|extern \"C\"|return|else|static_assert|_Static_assert)"
    r"(?:[A-Za-z_][\w ]*?[ *]+)(?P<fn>[a-z_]\w*)\((?!\*)", re.M)


class Header:
    """The declarations of a header: (first line, last line, kind, name), lines counted from 1."""

    def __init__(self, text):
        self.code, self.comments, _ = split(text)
        self.lines, self.raw = self.code.split("\n"), text.split("\n")
        self.declared = list(self.find())
        self.ends, self.begins = {}, {}
        for line, comment in self.comments:
            self.begins[line] = self.ends[line + comment.count("\n")] = comment

    def find(self):
        plain = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', self.code)
        plain = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), plain,
                       flags=re.M)
        at = 0
        while m := DECLARED.search(plain, at):
            first = plain.count("\n", 0, m.start()) + 1
            at = self.end(plain, m.start())
            yield (first, plain.count("\n", 0, at) + 1, m.group("tag") or "function",
                   m.group("name") or m.group("fn") or "")

    @staticmethod
    def end(text, at):
        """The offset behind the `;` or the closing brace of the declaration at `at`."""
        depth = 0
        for m in re.compile(r"[{};()]").finditer(text, at):
            depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(m.group(0), 0)
            if depth == 0 and (m.group(0) == ";" or
                               m.group(0) == "}" and not re.match(r"\s*\w*(\s*=|;)", text[m.end():])):
                return m.end()
        return len(text)

    def undocumented(self):
        words = set(re.findall(r"\w+", " ".join(c for _, c in self.comments)))
        known = 0  # the last line of the block that a comment covers
        for first, last, kind, name in self.declared:
            while first > 1 and re.match(r"template\b|#define|#if", self.raw[first - 2]):
                first -= 1
            lone = first - 1
            while lone > 0 and not self.raw[lone - 1].strip():
                lone -= 1
            above = first - 1 in self.ends or (lone in self.ends and self.code_free(lone))
            beside = any(n in self.begins for n in range(first, last + 1))
            if above or beside or name in words or (known and self.joined(known, first)):
                known = last
            else:
                known = 0
                if not (self.manual() and LIFE.search(name)):
                    yield first, kind, name

    def manual(self):
        return self.raw[0].startswith(("/*", "//"))

    def said(self, first):
        """The comment of a declaration, or of the run of declarations around it; else empty."""
        here = [c for n, c in self.begins.items() if n == first]
        while first > 1 and self.raw[first - 2].strip() and first - 1 not in self.ends:
            first -= 1
        return " ".join(here + [self.ends.get(first - 1, "")]).lower()

    def code_free(self, line):
        return not self.lines[line - 1].strip()

    def joined(self, last, first):
        """True if no empty line is between two declarations, or one between two functions with a body."""
        if self.raw[last - 1].startswith("}") and self.lines[last - 1].rstrip() == "}":
            last += not self.raw[last].strip()
        return all(self.raw[n - 1].strip() for n in range(last + 1, first))


def undocumented(tree):
    return [f"{path}:{line}: {kind} {name or '(without a name)'} has no comment"
            for path, text in tree.items() if path.endswith((".h", ".cuh")) and not in_tests(path)
            for line, kind, name in Header(text).undocumented()]


WORD = re.compile(r"[A-Za-z_]\w*")
CALL = re.compile(r"(?<![\w.*{}>/-])([a-zA-Z_]\w*)\(\)")
TAG = re.compile(r"\b(?:struct|enum) ([a-z]\w*)\b")
FILE = re.compile(r"(?<![\w*/.<>{}-])((?:[\w-]+/)*[\w-]+\.(?:c|h|cu|cuh|py|sh|mk|proto))\b(?![\w*(])")
SNAKE = re.compile(r"(?<![\w*/%$<{}-])([A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+)\b(?![\w*/<{}-]|\.\w)")
SPAN = re.compile(r"`([^`\n]+)`")


def vocabulary(root, tree):
    """(names, paths): all words of our code outside comments; all files, also by the ends of
    their paths, and all headers that are included."""
    names, paths = set(), set(THEIR_FILES)
    for text in tree.values():
        code = split(text)[0]
        names.update(WORD.findall(code))
        for header in re.findall(r"#\s*include\s+[<\"]([^>\"]+)", code):
            paths |= {header, os.path.basename(header)}
    for path in files(root, OTHER):
        names.update(WORD.findall(read(root, path)))
    for path in files(root, ("",)):
        paths |= {path[i:] for i in [0] + [m.end() for m in re.finditer("/", path)]}
        names.add(os.path.splitext(os.path.basename(path))[0])
    return names | THEIRS | EXAMPLES, paths


def missing(text, names, paths):
    """(offset, name) of each name in a comment, or in a code span, that does not exist."""
    for m in FILE.finditer(text):
        if m.group(1) not in paths and len(m.group(1)) > 3:
            yield m.start(), m.group(1)
    text = FILE.sub(lambda m: " " * len(m.group(0)), text)
    seen = {}
    for pattern in (CALL, TAG, SNAKE):
        for m in pattern.finditer(text):
            if m.group(1) not in names and not (pattern is SNAKE and MATHS.fullmatch(m.group(1))):
                seen[m.start(1)] = m.group(1)
    yield from seen.items()


def gone(root, tree):
    """True for the name of a metric: the code has its prefix, skerry_, in only one place."""
    names, paths = vocabulary(root, tree)
    out = []
    for path, text in tree.items():
        for line, comment in split(text)[1]:
            out += [f"{path}:{line + comment.count(chr(10), 0, at)}: the comment names {name}, "
                    f"which is nowhere" for at, name in missing(comment, names, paths)]
    for path in files(root, (".md",)):
        for n, line in enumerate(read(root, path).split("\n"), 1):
            for span in SPAN.findall(line):
                out += [f"{path}:{n}: names {name}, which is nowhere"
                        for _, name in missing(span, names, paths)
                        if name.removeprefix("skerry_") not in names]
    return out


def unused(tree):
    code = {p: split(t)[0] for p, t in tree.items()}
    words = {p: collections.Counter(WORD.findall(t)) for p, t in code.items()}
    ours, tests = collections.defaultdict(dict), collections.Counter()
    for path, count in words.items():
        for w, n in count.items():
            if in_tests(path):
                tests[w] += n
            else:
                ours[w][path] = n
    out = []
    for path in sorted(p for p in code if p.endswith((".h", ".cuh")) and not in_tests(p) and p != PUBLIC):
        header = Header(tree[path])
        for line, last, kind, name in header.declared:
            text = "\n".join(code[path].split("\n")[line - 1:last])
            if kind != "function" or (text.startswith("static") and "{" not in text):
                continue
            where = f"{path}:{line}"
            if "{" in text:
                if sum(ours[name].values()) == 1 and "test" not in header.said(line):
                    out.append(f"{where}: nobody calls {name}" + (" but tests" if tests[name] else ""))
                continue
            own = [p for p in ours[name] if p.endswith((".c", ".cu")) and defines(code[p], name)]
            if not own:
                out.append(f"{where}: {name} is declared and never defined")
            elif set(ours[name]) - {path, *own} or ours[name][path] > 1:  # a macro of the header
                continue
            elif sum(ours[name].values()) <= 1 + len(own):
                if not tests[name]:
                    out.append(f"{where}: nobody calls {name}")
                elif "test" not in header.said(line):
                    out.append(f"{where}: nobody calls {name} but tests, and its comment does not say so")
            elif not tests[name]:
                out.append(f"{where}: nobody outside {own[0]} calls {name}: it is static")
    for path, text in tree.items():
        seen = collections.Counter(re.findall(r'^\s*#\s*include\s+(["<][^">]+[">])', text, re.M))
        out += [f"{path}: includes {name} twice" for name, n in seen.items()
                if n > 1 and not name.endswith('.inc"')]
    return out


def defines(code, name):
    """True if a function is defined, by its body or by a macro with which bodies are written."""
    return re.search(rf"^[A-Za-z_][^;={{}}()]*\b{name}\((?:[^;{{}}]*)\)\s*\{{|"
                     rf"^#define \w+ {name}$", code, re.M)


CHECKS = {"undocumented": lambda root, tree: undocumented(tree), "gone": gone,
          "unused": lambda root, tree: unused(tree)}


def findings(root, which=tuple(CHECKS)):
    """{check: [a sentence for each fault]}"""
    tree = {f: read(root, f) for f in files(root, CODE)}
    return {name: CHECKS[name](root, tree) for name in which}


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("which", nargs="*", metavar="|".join(CHECKS))
    args.add_argument("--root", default=".")
    a = args.parse_args()
    found = findings(a.root, a.which or tuple(CHECKS))
    for lines in found.values():
        for line in lines:
            print(line)
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

"""The checks of `make lint` find their faults: a small clean tree passes, and each fault fails."""
import os
import shlex
import subprocess
import sys
import tempfile
import unittest

TOOLS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, TOOLS)
import check_calls  # noqa: E402
import check_tests  # noqa: E402

CLEAN = {
    "worker/net/low.h": "/* Sums.  low_add() is all there is. */\nint low_add(int a, int b);\n",
    "worker/net/low.c": '#include "worker/net/low.h"\n\nint low_add(int a, int b)\n{\n    return a + b;\n}\n',
    "worker/kinds/high.h": "/* One more than its argument. */\nint high_next(int a);\n",
    "worker/kinds/high.c": '#include "worker/kinds/high.h"\n#include "worker/net/low.h"\n\n'
                           "int high_next(int a)\n{\n    return low_add(a, 1);\n}\n",
    "worker/main.c": '#include "worker/kinds/high.h"\n\nint main(void)\n{\n    return high_next(-1);\n}\n',
    "docs/page.md": "The worker adds with `low_add()` of `worker/net/low.c`.\n",
}
# A file beside low.c that calls it, and is called by it.
BESIDE = {
    "worker/net/beside.h": "/* Twice its argument. */\nint beside_twice(int a);\n",
    "worker/net/beside.c": '#include "worker/net/beside.h"\n#include "worker/net/low.h"\n\n'
                           "int beside_twice(int a)\n{\n    return low_add(a, a);\n}\n",
    "worker/net/low.c": '#include "worker/net/low.h"\n#include "worker/net/beside.h"\n\n'
                        "int low_add(int a, int b)\n{\n    return b ? a + b : beside_twice(a);\n}\n",
}


class Lint(unittest.TestCase):
    def setUp(self):
        self.tree = tempfile.TemporaryDirectory()
        self.root = self.tree.name
        self.addCleanup(self.tree.cleanup)
        self.write(CLEAN)

    def write(self, more):
        for path, text in more.items():
            full = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(text)

    def change(self, path, old, new):
        with open(os.path.join(self.root, path), encoding="utf-8") as f:
            text = f.read()
        self.assertIn(old, text)
        self.write({path: text.replace(old, new)})

    def build(self):
        objects = os.path.join(self.root, "build/release")
        for where, _, names in os.walk(self.root):
            for name in names:
                if name.endswith(".c"):
                    source = os.path.relpath(os.path.join(where, name), self.root)
                    made = os.path.join(objects, source[:-2] + ".o")
                    os.makedirs(os.path.dirname(made), exist_ok=True)
                    subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-I.", "-c", source, "-o", made],
                                   cwd=self.root, check=True)
        return objects

    def run_check(self, check, *args):
        """(exit status, what it printed)"""
        if check == "calls":
            self.build()
        done = subprocess.run([sys.executable, os.path.join(TOOLS, f"check_{check}.py"), *args],
                              cwd=self.root, capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def passes(self, check, *args):
        self.assertEqual(self.run_check(check, *args), (0, ""))

    def fails(self, check, text, *args):
        status, out = self.run_check(check, *args)
        self.assertEqual(status, 1, out)
        self.assertIn(text, out)

    def test_clean(self):
        for check in ("layers", "calls", "names", "size", "links"):
            with self.subTest(check):
                self.passes(check)

    def test_include_up(self):
        self.change("worker/net/low.c", "\n\n", '\n#include "worker/kinds/high.h"\n\n')
        self.fails("layers", "worker/net/low.c:2: worker/net/ may not include worker/kinds/high.h")

    def test_plain_include(self):
        for header in ("<string.h>", '"common/base/err.h"'):
            with self.subTest(header):
                self.write({"worker/net/low.c": CLEAN["worker/net/low.c"] + f"#include {header}\n"})
                self.fails("layers", "common/base/base.h has it")

    def test_call_up(self):
        self.change("worker/net/low.c", "\n\nint", "\n\nint high_next(int a);\n\nint")
        self.change("worker/net/low.c", "a + b", "b ? high_next(a) : a")
        self.fails("calls", "calls high_next of worker/kinds/high.c; worker/net/ may not call worker/kinds/")

    def test_pointer_up_is_no_call(self):
        self.change("worker/net/low.h", "int b);", "int b, int (*up)(int));")
        self.change("worker/net/low.c", "int b)\n", "int b, int (*up)(int))\n")
        self.change("worker/net/low.c", "a + b", "up(a) + b")
        self.change("worker/kinds/high.c", "low_add(a, 1)", "low_add(a, 1, high_next)")
        self.passes("calls")

    def test_circle(self):
        self.write(BESIDE)
        self.fails("calls", "worker/net/beside.c calls low_add of worker/net/low.c; "
                            "worker/net/low.c calls beside_twice of worker/net/beside.c")

    def test_circle_of_pieces(self):
        self.write(BESIDE)
        low = {"low": ("one object", ("worker/net/low.c", "worker/net/beside.c"))}
        self.assertEqual(check_calls.findings(self.root, self.build(), low), ([], []))
        self.write(CLEAN)
        self.assertIn("needs no 'low'", check_calls.findings(self.root, self.build(), low)[1][0])

    def test_circle_of_headers(self):
        self.write(BESIDE | {"worker/net/low.c": CLEAN["worker/net/low.c"]})
        self.change("worker/net/low.h", "/* Sums", '#pragma once\n#include "worker/net/beside.h"\n/* Sums')
        self.change("worker/net/beside.h", "/* Twice", '#pragma once\n#include "worker/net/low.h"\n/* Twice')
        self.fails("calls", "headers in a circle")

    def test_name_that_is_gone(self):
        for text in ("low_subtract()", "struct lower", "worker/net/lower.c", "low_subtract"):
            with self.subTest(text):
                self.write({"worker/net/low.c": f"/* See {text}. */\n" + CLEAN["worker/net/low.c"]})
                self.fails("names", f"worker/net/low.c:1: the comment names {text.split()[-1].rstrip('()')}")

    def test_name_that_is_gone_from_the_documentation(self):
        self.change("docs/page.md", "low_add", "low_plus")
        self.fails("names", "docs/page.md:1: names low_plus", "gone")

    def test_undocumented(self):
        self.change("worker/kinds/high.h", "/* One more than its argument. */", "")
        self.fails("names", "worker/kinds/high.h:2: function high_next has no comment", "undocumented")

    def test_unused(self):
        self.change("worker/net/low.h", "is. */", "is. */\nint low_old(int a);")
        self.fails("names", "low_old is declared and never defined")
        self.change("worker/net/low.c", "\n\n", "\n\nint low_old(int a)\n{\n    return a;\n}\n\n")
        self.fails("names", "nobody calls low_old")
        self.write({"tests/unit/worker/net/test_low.c": "int x = low_old(1);\n"})
        self.fails("names", "nobody calls low_old but tests")
        self.change("worker/net/low.h", "int low_old(int a);", "/* For tests. */\nint low_old(int a);")
        self.passes("names")

    def test_long_function(self):
        self.change("worker/net/low.c", "{\n", "{\n" + "    a++;\n" * 100)
        self.fails("size", "function of 101 lines")

    def test_dead_links(self):
        self.write({"docs/a.md": "# One `word`\n\n[to](b.md#two-words) [here](#one-word) [out](https://example.org)\n",
                    "docs/b.md": "## Two words\n"})
        self.passes("links")
        self.change("docs/b.md", "Two", "Three")
        self.fails("links", "docs/a.md:3: b.md#two-words: docs/b.md has no such heading")
        self.change("docs/a.md", "b.md#", "c.md#")
        self.fails("links", "c.md#two-words: there is no such file")

    def test_file_without_a_test(self):
        rows = {"worker/main.c": "daemons", "worker/kinds/": "daemons"}
        self.assertIn("worker/net/low.c: no test", check_tests.findings(self.root, rows)[0])
        self.write({"tests/unit/worker/net/test_low.c": "", "worker/net/low_piece.c": ""})
        self.assertEqual(check_tests.findings(self.root, rows), [])
        self.write({"tests/unit/worker/test_high.c": ""})
        self.assertIn("needs no row 'worker/kinds/'", check_tests.findings(self.root, rows)[0])

    def test_large_folder(self):
        self.write({f"worker/net/n{i}.h": "\n" for i in range(45)})
        self.fails("size", "worker/net/: 4")


class Make(unittest.TestCase):
    def test_no_lld(self):
        """Who has not installed what tests need is told of it in a sentence, before anything is compiled."""
        with tempfile.TemporaryDirectory() as out:
            cc = os.path.join(out, "cc")
            with open(cc, "w", encoding="utf-8") as f:
                f.write("#!/bin/sh\necho \"collect2: fatal error: cannot find 'ld'\" >&2\nexit 1\n")
            os.chmod(cc, 0o755)
            env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
            made = subprocess.run(["make", "-C", os.path.dirname(os.path.dirname(TOOLS)), "BUILD_DIR=" + out, "CC=" + cc, "CUDA=0",
                                   out + "/release/tests/unit/common/base/test_err.o"],
                                  env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(made.returncode, 2, made.stdout)
        self.assertIn("need cmocka, oneDNN, libgomp and lld: install what is missing with `make deps`", made.stdout)


if __name__ == "__main__":
    unittest.main()

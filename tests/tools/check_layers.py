"""Fail when a file includes a header that its layer may not know.

The picture is in docs/architecture.md, section "Layers": arrows point down."""
import os
import re
import sys

BASE, NET, OUTER = "common/base", "common/net", "common/outer"
ALLOW = {  # folder: folders it may include from
    BASE: {BASE},
    OUTER: {OUTER, BASE},
    NET: {NET, "proto", BASE},
    "kernels": {"kernels", BASE},
    "coordinator": {"coordinator", NET, OUTER, "proto", BASE},
    "worker": {"worker", NET, OUTER, "kernels", "proto", BASE},
    "cli": {"cli", NET, "proto", BASE},
}
UV = r"<(uv|protobuf-c|curl|microhttpd)"
NO_SYSTEM = {  # folder: system headers it may not see
    BASE: UV + r"|<cuda|<dnnl",
    OUTER: UV + r"|<cuda|<dnnl",
    NET: r"<cuda|<dnnl|<vips",
    "kernels": UV,
    "coordinator": r"<cuda|<dnnl|<vips",
    "worker": r"<microhttpd|<sqlite3|<cuda|<dnnl",
    "cli": r"<cuda|<dnnl|<sqlite3",
}
# common/base/recipe.c is the only file that may know what a recipe's name means;
# the table of a job file's keys holds the default.
RECIPE = re.compile(r'"(diloco|ddm|dipaco|distill)"')
KNOWS_RECIPES = ("common/base/recipe.c", "common/base/job_keys.c")

bad = 0


def complain(path, n, text):
    global bad
    bad = 1
    print(f"{path}:{n}: {text}")


def target_layer(target):
    if target.endswith(".pb-c.h"):
        return "proto"
    return os.path.dirname(target)


def check(layer, path):
    for n, line in enumerate(open(path, encoding="utf-8"), 1):
        if RECIPE.search(line) and path not in KNOWS_RECIPES:
            complain(path, n, "names a recipe; only common/base/recipe.c may")
        m = re.match(r'\s*#\s*include\s+(["<])([^">]+)', line)
        if not m:
            continue
        if m.group(1) == '"':
            seen = target_layer(m.group(2))
            if not any(seen == a or seen.startswith(a + "/") for a in ALLOW[layer]):
                complain(path, n, f"{layer}/ may not include {m.group(2)}")
        elif layer in NO_SYSTEM and re.match(NO_SYSTEM[layer], m.group(1) + m.group(2)):
            complain(path, n, f"{layer}/ may not include <{m.group(2)}>")


for layer in ALLOW:
    for folder, _, names in os.walk(layer):
        for name in sorted(names):
            if name.endswith((".c", ".h", ".cu", ".cuh")):
                check(layer, os.path.join(folder, name))
sys.exit(bad)

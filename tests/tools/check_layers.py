"""Fail when a file includes a header that its layer may not know.

The picture is in docs/architecture.md, section "Layers": arrows point down."""
import os
import re
import sys

# The rooms of a program, top to bottom: a room includes from the lines below its own, and
# from what its program may know.  What stands on one line does not know its neighbours.
ROOMS = [
    [["coordinator"],
     ["coordinator/http", "coordinator/rpc"],
     ["coordinator/view", "coordinator/kinds"],
     ["coordinator/job", "coordinator/ship"],
     ["coordinator/work"],
     ["coordinator/state"],
     ["coordinator/outer", "coordinator/decide"]],
    [["worker"],
     ["worker/kinds"],
     ["worker/engine"],
     ["worker/link"],
     ["worker/order"],
     ["worker/train", "worker/fit", "worker/data"],
     ["worker/frozen"],
     ["worker/net", "worker/pipe", "worker/external"],
     ["worker/model"]],
    [["cli"],
     ["cli/job", "cli/show"],
     ["cli/base"]],
    [["common/net/s3"],
     ["common/net/http"],
     ["common/net"]],
    [["kernels/device"],
     ["kernels/cpu", "kernels/cuda"],
     ["kernels/cuda/lib"],
     ["kernels"]],
]
BASE, ST, COMPONENT, JOB, DATA, NET, HTTP, S3, OUTER, TRAINER = (
    f"common/{name}" for name in "base st component job data net net/http net/s3 outer trainer".split())
PROGRAMS = {  # a folder, with its rooms: the folders beside its own that it may include from
    BASE: set(),
    ST: {BASE},
    COMPONENT: {ST, BASE},
    JOB: {BASE},
    DATA: {BASE},
    OUTER: {ST, BASE},
    NET: {"proto", BASE},
    TRAINER: {"proto", BASE},
    "libskerry": {TRAINER, "proto", BASE},
    "kernels": {BASE},
    "coordinator": {S3, HTTP, NET, OUTER, "proto", DATA, JOB, ST, BASE},
    "worker": {HTTP, NET, OUTER, TRAINER, "kernels/device", "kernels", "proto", DATA, JOB, COMPONENT, ST, BASE},
    "cli": {HTTP, NET, "proto", DATA, JOB, COMPONENT, ST, BASE},
}


def rooms_below(folder):
    """The folders of its own program from which a folder may include headers, with itself."""
    for lines in ROOMS:
        for n, line in enumerate(lines):
            if folder in line:
                return {folder}.union(*lines[n + 1:])
    return {folder, program_of(folder)}


def program_of(folder):
    """The row of PROGRAMS for a folder; None: the table does not have it."""
    while folder and folder not in PROGRAMS:
        folder = os.path.dirname(folder)
    return folder or None


def allowed(folder):
    """All folders from which a file of this folder may include headers."""
    return rooms_below(folder) | PROGRAMS[program_of(folder)]


UV = r"<(uv|protobuf-c|curl|microhttpd)"
NO_SYSTEM = {  # folder: system headers it may not see
    BASE: UV + r"|<cuda|<vips",
    ST: UV + r"|<cuda|<vips",
    COMPONENT: UV + r"|<cuda|<vips",
    JOB: UV + r"|<cuda|<vips",
    DATA: UV + r"|<cuda",
    OUTER: UV + r"|<cuda",
    NET: r"<cuda|<vips",
    "kernels": UV,
    "coordinator": r"<cuda|<vips",
    "worker": r"<microhttpd|<sqlite3|<cuda",
    "cli": r"<cuda|<sqlite3",
}
# common/job/recipe.c is the only file that may know what a recipe's name means;
# the table of a job file's keys holds the default.
RECIPE = re.compile(r'"(diloco|ddm|dipaco|distill)"')
KNOWS_RECIPES = ("common/job/recipe.c", "common/job/job_keys.c")

# What common/base/base.h has, no file includes by itself; kernels' headers go to nvcc, too.
HAS_BASE = re.compile(r'<(errno|inttypes|limits|math|stdarg|stdbool|stddef|stdint|stdio|stdlib|string)\.h$'
                      r'|"common/base/(err|mem|str)\.h$')
WITHOUT_BASE = re.compile(r"libskerry/skerry\.h$|common/base/(base|err|mem|str)\.h$|kernels/.*\.(h|cu|cuh)$")

bad = 0


def complain(path, n, text):
    global bad
    bad = 1
    print(f"{path}:{n}: {text}")


def target_layer(target):
    if target.endswith(".pb-c.h"):
        return "proto"
    return os.path.dirname(target)


def check(folder, path):
    program, may = program_of(folder), allowed(folder)
    for n, line in enumerate(open(path, encoding="utf-8"), 1):
        if RECIPE.search(line) and path not in KNOWS_RECIPES:
            complain(path, n, f"names a recipe; only {KNOWS_RECIPES[0]} may")
        m = re.match(r'\s*#\s*include\s+(["<])([^">]+)', line)
        if not m:
            continue
        if HAS_BASE.match(m.group(1) + m.group(2)) and not WITHOUT_BASE.match(path):
            complain(path, n, f"includes {m.group(2)}; common/base/base.h has it")
        if m.group(1) == '"':
            if target_layer(m.group(2)) not in may:
                complain(path, n, f"{folder}/ may not include {m.group(2)}")
        elif program in NO_SYSTEM and re.match(NO_SYSTEM[program], m.group(1) + m.group(2)):
            complain(path, n, f"{folder}/ may not include <{m.group(2)}>")


def main():
    for program in PROGRAMS:
        for folder, _, names in os.walk(program):
            for name in sorted(names):
                if name.endswith((".c", ".h", ".cu", ".cuh")):
                    check(folder, os.path.join(folder, name))
    return bad


if __name__ == "__main__":
    sys.exit(main())

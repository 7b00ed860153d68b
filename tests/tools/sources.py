"""The common parts of the checks: the tree's C files, its table of folders, circles in a graph."""
import collections
import functools
import os
import re
import subprocess

SUFFIXES = (".c", ".h", ".cu", ".cuh")


def files(root, suffixes=SUFFIXES):
    """Paths relative to root: the files that git tracks, or without git all files; never build/."""
    if os.path.exists(os.path.join(root, ".git")):
        out = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"],
                             capture_output=True, text=True, check=True).stdout.split("\n")
        names = [n for n in out if n and os.path.exists(os.path.join(root, n))]
    else:
        names = [os.path.relpath(os.path.join(where, n), root)
                 for where, _, found in os.walk(root) for n in found]
    return sorted(n for n in names if n.endswith(suffixes) and not n.startswith("build/"))


def in_tests(path):
    return path.startswith("tests/")


@functools.lru_cache(maxsize=None)
def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def includes(root, path):
    """(line, file) of each of our headers that path includes."""
    for n, line in enumerate(read(root, path).split("\n"), 1):
        m = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if m:
            yield n, m.group(1)


def layers(root):
    """The table of check_layers.py in the tree at root, else in the folder of this file."""
    space = {"__name__": "check_layers"}
    for folder in (os.path.join(root, "tests/tools"), os.path.dirname(os.path.abspath(__file__))):
        path = os.path.join(folder, "check_layers.py")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                text = f.read()
            here = os.getcwd()
            os.chdir(root)
            try:
                exec(compile(text, path, "exec"), space)
            except SystemExit:
                pass
            finally:
                os.chdir(here)
            break
    return space


def upward(table, source, target):
    """True if a file of the folder source may not include from the folder target."""
    if source == target:
        return False
    if "allowed" in table:
        return bool(table["program_of"](source)) and target not in table["allowed"](source)
    rows = table["ALLOW"]  # a tree from before there were rooms
    layer = next((f for f in (source, os.path.dirname(source)) if f in rows), None)
    return layer is not None and not any(target == f or target.startswith(f + "/") for f in rows[layer])


def components(graph):
    """Strongly connected components of more than one node, the largest first (Tarjan)."""
    index, low, stack, on, out = {}, {}, [], set(), []
    for start in sorted(graph):
        if start in index:
            continue
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on.add(start)
        while work:
            node, rest = work[-1]
            for to in rest:
                if to not in index:
                    index[to] = low[to] = len(index)
                    stack.append(to)
                    on.add(to)
                    work.append((to, iter(sorted(graph.get(to, ())))))
                    break
                if to in on:
                    low[node] = min(low[node], index[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    part = stack[stack.index(node):]
                    del stack[stack.index(node):]
                    on.difference_update(part)
                    if len(part) > 1:
                        out.append(sorted(part))
    return sorted(out, key=lambda part: (-len(part), part))


def shortest_cycle(graph, part):
    """The nodes of a shortest way around within a component."""
    best = None
    for start in part:
        before, queue = {}, collections.deque([start])
        while queue:
            node = queue.popleft()
            for to in sorted(graph[node]):
                if to == start:
                    cycle = [node]
                    while cycle[-1] != start:
                        cycle.append(before[cycle[-1]])
                    if best is None or len(cycle) < len(best):
                        best = cycle[::-1]
                    queue.clear()
                    break
                if to in part and to not in before:
                    before[to] = node
                    queue.append(to)
        if best and len(best) == 2:
            break
    return best


TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)


@functools.lru_cache(maxsize=None)
def split(text):
    """(code, [(line, comment)], [string]): the code has blanks where comments were."""
    comments, strings = [], []

    def take(m):
        token = m.group(0)
        if token[0] != "/":
            strings.append(token)
            return token
        comments.append((text.count("\n", 0, m.start()) + 1, token))
        return re.sub(r"[^\n]", " ", token)

    return TOKEN.sub(take, text), comments, strings


def functions(lines):
    """(line, length) of each function: what stands between a `{` and a `}` in the first column."""
    start = None
    for n, line in enumerate(lines, 1):
        if line == "{":
            start = n
        elif line == "}" and start:
            yield start, n - start - 1
            start = None

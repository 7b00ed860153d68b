"""Fail when a file calls up, or when files call each other in a circle.

    check_calls.py [OBJECTS] [--root ROOT]      OBJECTS: the folder of a built tree, build/release

The graph comes from the objects' symbols: an edge leads from the file that uses a function or
data to the file that defines it.  What goes through a pointer does not show, and shall not.

- An upward call: the folder of the caller may not include the folder of the called
  (the table of check_layers.py).
- A circle: files that call each other, or headers that include each other, in a ring.  PIECES
  names the few that are one object cut in pieces.  Printed: every two that call each other, or
  else the shortest ring."""
import argparse
import collections
import os
import re
import subprocess
import sys

from sources import components, files, in_tests, includes, layers, read, shortest_cycle, upward

# name of the object: (why it is one and in pieces, its files).  The files count as one.
PIECES = {}


class Calls:
    """uses[a][b]: the names of file b that file a uses."""

    def __init__(self, root, objects):
        self.root, self.uses = root, collections.defaultdict(lambda: collections.defaultdict(set))
        self.defined, self.wanted = collections.defaultdict(list), []
        for path, names in symbols(root, objects):
            for kind, name in names:
                if kind == "U":
                    self.wanted.append((path, name))
                else:
                    self.defined[name].append(path)
        for path, name in self.wanted:
            to = self.definer(path, name)
            if to and to != path:
                self.uses[path][to].add(name)

    def definer(self, path, name):
        """The file that defines a name; of two programs with a function of that name the caller's own."""
        found = self.defined.get(name, [])
        program = path.split("/")[0]
        own = [f for f in found if f.split("/")[0] == program]
        return (own or found or [None])[0]


def built(root, objects):
    """{object: source} of each object whose source still exists; objects of CUDA are in a folder beside."""
    out = {}
    for top, under, end in ((objects, "", ".c"),
                            (os.path.join(os.path.dirname(objects), "cuda"), "kernels/cuda", "")):
        for where, _, names in os.walk(top):
            for name in names:
                path = os.path.join(where, name)
                source = os.path.join(under, os.path.relpath(path, top)[:-2] + end)
                if name.endswith(".o") and not source.startswith(("tests/", "gen/", "fuzz/")) and \
                   os.path.exists(os.path.join(root, source)):
                    out[path] = source
    return out


def symbols(root, objects):
    """(source, [(kind, name)]) of each object."""
    of, sources = collections.defaultdict(list), built(root, objects.rstrip("/"))
    if not sources:
        sys.exit(f"check_calls: no objects in {objects}: run `make` first")
    out = subprocess.run(["nm", "-g", "-A", "-P", *sorted(sources)],
                         capture_output=True, text=True, check=True).stdout
    for line in out.split("\n"):
        m = re.match(r"(.*\.o): (\S+) ([A-Za-z])", line)
        if m and m.group(3).upper() in "UTDBRCWVGS":
            of[sources[m.group(1)]].append((m.group(3).upper(), m.group(2)))
    return sorted(of.items())


def where(root, path, name):
    """path:line of the first use of a name."""
    for n, line in enumerate(read(root, path).split("\n"), 1):
        if re.search(rf"\b{re.escape(name)}\b", re.sub(r"/\*.*?(\*/|$)|//.*", "", line)):
            return f"{path}:{n}"
    return path


def listed(names):
    names = sorted(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def upward_calls(calls, table):
    out = []
    for path in sorted(calls.uses):
        for to, names in sorted(calls.uses[path].items()):
            here, there = os.path.dirname(path), os.path.dirname(to)
            if upward(table, here, there):
                out += [f"{where(calls.root, path, name)}: calls {name} of {to}; "
                        f"{here}/ may not call {there}/" for name in sorted(names)]
    return out


def call_circles(calls, pieces):
    """Circles between files, those of one object counted as one file."""
    of = {f: name for name, (_, members) in pieces.items() for f in members}
    graph, uses = collections.defaultdict(set), {}
    for path in calls.uses:
        for to, names in calls.uses[path].items():
            a, b = of.get(path, path), of.get(to, to)
            if a != b:
                graph[a].add(b)
                uses.setdefault((a, b), (path, to, names))
    out = []
    for part in components(graph):
        cycles = [[a, b] for a in part for b in part if a < b and b in graph[a] and a in graph[b]]
        text = f"circle of {len(part)} files: {', '.join(part)}"
        for cycle in cycles or [shortest_cycle(graph, part)]:
            steps = []
            for a, b in zip(cycle, cycle[1:] + cycle[:1]):
                path, to, names = uses[a, b]
                steps.append(f"{path} calls {listed(names)} of {to}")
            text += "\n    " + "; ".join(steps)
        out.append(text)
    for name, (_, members) in pieces.items():
        gone = [f for f in members if not os.path.exists(os.path.join(calls.root, f))]
        if gone:
            out.append(f"PIECES names {gone[0]} in '{name}', which is not there")
        elif not components({f: set(calls.uses[f]) & set(members) for f in members}):
            out.append(f"PIECES needs no '{name}': its files do not call in a circle")
    return out


def header_circles(root):
    graph = {h: {i for _, i in includes(root, h)}
             for h in files(root, (".h", ".cuh")) if not in_tests(h)}
    graph = {h: {i for i in to if i in graph} for h, to in graph.items()}
    out = []
    for part in components(graph):
        cycle = shortest_cycle(graph, part)
        out.append("headers in a circle: " + " includes ".join(cycle + cycle[:1]))
    return out


def findings(root, objects, pieces=None):
    """(upward calls, circles), a sentence each."""
    calls = Calls(root, objects)
    return (upward_calls(calls, layers(root)),
            call_circles(calls, PIECES if pieces is None else pieces) + header_circles(root))


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("objects", nargs="?")
    args.add_argument("--root", default=".")
    a = args.parse_args()
    found = findings(a.root, a.objects or os.path.join(a.root, "build/release"))
    for line in found[0] + found[1]:
        print(line)
    return 1 if found[0] or found[1] else 0


if __name__ == "__main__":
    sys.exit(main())

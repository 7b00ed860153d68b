"""Fail on links between documents that lead nowhere: to a file that is not there, or a heading that its file lacks.

    check_links.py [ROOT]

Looks at relative links in *.md; the anchor of a heading is made as GitHub makes it."""
import os
import re
import sys

from sources import files, read


def anchors(text):
    """The anchors of the headings outside code; equal ones get numbers."""
    found = []
    for heading in re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")
        found.append(name)
        found.append(f"{name}-{found.count(name) - 1}")
    return found


def dead(root):
    for path in files(root, (".md",)):
        for n, line in enumerate(read(root, path).split("\n"), 1):
            for to in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"[a-z]+:", to):
                    continue
                name, _, anchor = to.partition("#")
                target = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
                if not os.path.exists(os.path.join(root, target)):
                    yield f"{path}:{n}: {to}: there is no such file"
                elif anchor and target.endswith(".md") and anchor not in anchors(read(root, target)):
                    yield f"{path}:{n}: {to}: {target} has no such heading"


def main():
    found = list(dead(sys.argv[1] if len(sys.argv) > 1 else "."))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""The common parts of the comparisons with diffusers and transformers."""
import json
import os

import pytest


@pytest.fixture(scope="module")
def worst():
    """worst(name, difference, bound) keeps the largest difference of each name; at the end each becomes a line of JSON, in the
    file SKERRY_FIGURES if that is set."""
    found = {}

    def note(name, value, bound):
        found[name] = (max(value, found.get(name, (0, 0))[0]), bound)

    yield note
    lines = "".join(json.dumps({"name": name, "value": value, "unit": "relative", "bound": bound, "holds": value <= bound})
                    + "\n" for name, (value, bound) in sorted(found.items()))
    print("\n" + lines)
    if "SKERRY_FIGURES" in os.environ:
        with open(os.environ["SKERRY_FIGURES"], "a", encoding="utf-8") as out:
            out.write(lines)

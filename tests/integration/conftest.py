"""Sets the order of files: `make check-int` hands whole files to a few processes, and at the end all would wait for a long file
that comes last.  Tells which waits came nearest to their limits."""
import pytest

from common import WAITS

LONGEST_FIRST = ["failover", "store", "gpu_run", "latents", "faults", "snapshots", "first_hour", "spot", "elastic", "island",
                 "page", "folds_at_workers", "slow_disk", "cascade", "slurm", "bad_paths", "ingest"]


def pytest_collection_modifyitems(items):
    rank = {f"test_{name}.py": i for i, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    report = (yield).get_result()
    report.waits, WAITS[:] = WAITS[:], []


def pytest_terminal_summary(terminalreporter):
    reports = [r for of_kind in terminalreporter.stats.values() for r in of_kind]
    waits = [(waited / limit, f"{waited:.1f} of {limit} s for {what}, {r.nodeid}") for r in reports for waited, limit, what in getattr(r, "waits", ())]
    terminalreporter.section("longest waits")
    for _, line in sorted(waits)[:-11:-1]:
        terminalreporter.line(line)

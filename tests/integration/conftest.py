"""The order of files: `make check-int` hands whole files to a few processes, and a long one that came last would keep the others
waiting at the end."""
LONGEST_FIRST = ["store", "gpu_run", "faults", "page", "cascade", "bad_paths", "island", "snapshots", "ingest", "slurm", "spot"]


def pytest_collection_modifyitems(items):
    rank = {f"test_{name}.py": i for i, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))

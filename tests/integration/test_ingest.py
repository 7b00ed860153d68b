"""Data by URL: workers stream the archives, cut and upload shards."""
import functools
import http.server
import os
import tarfile
import threading

import pytest

from common import make_dataset, wait_until, write_job
from swarm import swarm  # noqa: F401  (fixture)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        if self.path == "/forbidden.tar":
            self.send_error(403)
        else:
            super().do_GET()


@pytest.fixture
def site(tmp_path):
    """A web server with two WebDataset tars of 48 images each."""
    folder = tmp_path / "site"
    os.makedirs(folder)
    make_dataset(tmp_path / "images")
    pairs = [(name, f) for name in ("disc", "square") for f in sorted(os.listdir(tmp_path / "images" / name))]
    for part in (0, 1):
        with tarfile.open(folder / f"part-{part}.tar", "w") as t:
            for name, f in pairs[part::2]:
                t.add(tmp_path / "images" / name / f, arcname=f)
                (tmp_path / "cls").write_text(str(["disc", "square"].index(name)))
                t.add(tmp_path / "cls", arcname=f.replace(".png", ".cls"))
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


def worker(swarm, name):
    swarm.worker(name, "--allow-private-sources")


def url_job(swarm, urls):
    path = write_job(swarm.folder, data=False, rounds=2, steps=4)
    text = open(path).read().replace("path: data", "url: [" + ", ".join(f'"{u}"' for u in urls) + "]")
    with open(path, "w") as f:
        f.write(text)
    return swarm.submit(path)


def test_workers_ingest_archives_by_url(swarm, site):
    base, _ = site
    worker(swarm, "a")
    worker(swarm, "b")
    job = swarm.wait_job(url_job(swarm, [f"{base}/part-0.tar", f"{base}/part-1.tar"]), "done")
    assert job["epochs"][0]["total"] > 70, "96 images less the held-out ones"
    assert [r["round"] for r in job["history"]] == [1, 2]


@pytest.mark.parametrize("damage", ["missing", "forbidden", "truncated"])
def test_a_bad_archive_fails_the_job_with_its_name(swarm, site, damage):
    base, folder = site
    if damage == "truncated":
        whole = (folder / "part-0.tar").read_bytes()
        (folder / "part-0.tar").write_bytes(whole[:len(whole) // 2 - 700])
    name = {"missing": "part-9.tar", "forbidden": "forbidden.tar", "truncated": "part-0.tar"}[damage]
    worker(swarm, "a")
    swarm.worker_token = swarm.skerry("tokens", "--new", "worker", "--name", "other").stdout.strip()
    worker(swarm, "b")
    swarm.joined("a", "b")
    job = url_job(swarm, [f"{base}/{name}"])
    failed = swarm.wait_job(job, "failed", 60)
    assert name in failed["reason"], failed["reason"]


def refused(swarm, url, words, *flags):
    swarm.worker("a", *flags)
    url_job(swarm, [url])
    wait_until(lambda: words in swarm.log("coordinatord"), 60, f"the task to fail with {words!r}")


def test_a_private_source_is_not_fetched(swarm, site):
    """A name or a redirect may lead into the worker's own network, to its cloud's secrets or its neighbours."""
    refused(swarm, f"{site[0]}/part-0.tar", "127.0.0.1 is not a public address")


def test_a_source_has_a_limit(swarm, site):
    refused(swarm, f"{site[0]}/part-0.tar", "more than the 10000 bytes allowed", "--allow-private-sources", "--max-source", "10KB")

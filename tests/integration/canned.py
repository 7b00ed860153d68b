"""A made-up coordinator for the status page: the real files of coordinator/http/web, and made-up answers that follow
docs/openapi.yaml, for jobs that would take long to train.

    with canned.Server(canned.experts()) as s: ...  s.url, s.job"""
import http.server
import json
import math
import os
import random
import re
import struct
import threading
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
WEB = os.path.join(ROOT, "coordinator", "http", "web")
AT = "2026-03-01T12:00:00.000Z"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def png(seed, cells=4, size=16):
    """A grid of smooth blobs, in colours that depend on the seed."""
    rng = random.Random(seed)
    hues = [[rng.random() * 6.3 for _ in range(3)] for _ in range(cells * cells)]
    side, rows = cells * size, bytearray()
    for y in range(side):
        rows.append(0)
        for x in range(side):
            hue = hues[y // size * cells + x // size]
            r = math.hypot(x % size - size / 2, y % size - size / 2) / size
            rows += bytes(int(127 + 120 * math.cos(h + 5 * r)) for h in hue)

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b"")


def plan(devices):
    """The plan of an island's step: a pipeline whose bubbles are filled."""
    return {"schedule": "1f1b", "devices": devices, "copies": 1, "stages": devices, "widest_stage": 1, "micro_batches": 4, "predicted_s": 0.28, "measured_s": 0.27,
            "idle_before": 0.27, "idle": 0.04, "inside": 0.93, "filled_with": "images"}


def sha(n):
    return f"{n:064x}"


class Job:
    """The answer to GET /v1/jobs/1 in self.job, and those that belong to it in .workers and .metrics."""

    def __init__(self, name, recipe, sizes, levels, router=False, text=False, round=4, rounds=10, workers=5, private=False, numbers=False):
        self.numbers = numbers
        self.rng = random.Random(7)
        self.text, self.router, self.round, self.rounds = text, router, round, rounds
        self.n, self.blobs, self.metrics = len(sizes), {}, []
        self.role = "operator"
        self.workers = [self.worker(i + 1) for i in range(workers)]
        self.modules, routes = self.grid(levels, private)
        total = sum(sizes)
        paths = [self.path(p, routes[p], sizes[p]) for p in range(self.n)]
        if router:
            paths.append(self.path(self.n, [self.modules[-1]], total, network="router"))
        self.job = {
            "id": 1, "name": name, "state": "running", "reason": "", "stalled": "", "paused": False, "recipe": recipe, "created_at": AT, "elapsed_ms": 754000,
            "round": round, "rounds": rounds, "step": round * 50, "total_steps": rounds * 50, "loss": 0.412, "eval_loss": 0.436,
            "images_per_s": 812.5, "eta_ms": 1130000, "paths": len(paths), "replicas": 1, "parameters": 4200000, "text": text, "dollars": 3.2,
            "cost": {"work": 2.9, "waiting": 0.3, "egress": 0.0, "total": 3.2, "per_million_samples": 1.4, "per_million_tokens": None, "per_hour": 1.8, "until_end": 0.6, "workers": 3,
                     "workers_without_price": 0}, "swarm": {"priority": 0, "share": 1.0, "budget": None},
            "spec": f"name: {name}\n", "classes": [], "dataset": {"samples": total, "holdout": total // 10, "shards": 40},
            "vocab": 257 if text else None, "input": None, "tokenizer": None, "companions": None, "mixture": router, "bits_per_byte": 2.913 if text else None,
            "generation": 1, "resharded": 0, "reshards": 2 if text else 0, "teacher": None, "trace": None, "network": {"waited_ms": 4200, "waited_share": 0.011, "peak_bytes_per_s": 2345678},
            "stage": {"done": 0, "total": 0},
            "bytes": {"up": 81234567, "down": 71234567, "data_down": 34567890, "per_param_up": 0.51, "per_param_down": 0.52, "ratio": 0.004},
            "bad_samples": {"count": 0, "items": []}, "skipped_steps": 0, "waiting_for": [
                {"job": 1, "task": 7, "worker": 1, "what": "isle-1", "why": "trains; 12 of 50 steps", "until_ms": 42000, "late": False}],
            "phases": [], "modules": self.modules, "history": [], "epochs": [], "samples": [], "path_list": paths, "figures": [],
            "partitions": [{"partition": i, "samples": s, "holdout_samples": s // 10, "tokens": s * 240 if text else 0, "shards": 4,
                            "share": s / total} for i, s in enumerate(sizes)],
        }
        if self.n == 1:
            self.job["partitions"] = []
        self.train()

    def module(self, network, level, index, paths):
        id_ = len(self.modules) + 1
        return {"id": id_, "network": network, "level": level, "index": index, "fragment": 0, "paths": paths, "version": self.round,
                "sha256": sha(id_), "parameters": 2100000, "outer": "idle", "reason": "", "bytes_from_others": 0, "folded": self.round,
                "staleness": None, "staleness_max": 0}

    def grid(self, levels, private):
        self.modules = []
        by_level = []
        for level, k in enumerate(levels + ([self.n] if private else [])):
            by_level.append([])
            for i in range(k):
                m = self.module("main", level, i, self.n // k)
                self.modules.append(m)
                by_level[-1].append(m)
        routes = []
        for p in range(self.n):
            at, route = p, []
            for level in reversed(by_level[:len(levels)]):
                route.insert(0, level[at % len(level)])
                at //= len(level)
            routes.append(route + ([by_level[-1][p]] if private else []))
        if self.router:
            self.modules.append(self.module("router", 0, 0, 1))
        self.modules[0]["outer"] = "running"
        self.modules[-1].update(outer="waiting", reason="1 of 2 contributions is in")
        return self.modules, routes

    def path(self, p, route, samples, network="main"):
        return {"path": p, "network": network, "state": "running", "partition": p if network == "main" and self.n > 1 else None,
                "samples": samples, "tokens": samples * 240 if self.text else 0, "holdout": samples // 10, "batch": 32, "replicas": 1,
                "round": self.round, "rounds": self.rounds, "modules": [m["id"] for m in route], "versions": [self.round] * len(route),
                "loss": 0.40 + 0.01 * p, "eval_loss": 0.42 + 0.012 * p, "eval_round": self.round,
                "bits_per_byte": 2.8 + 0.02 * p if self.text else None, "best_loss": 0.41 + 0.01 * p if self.text else None,
                "best_round": 3 if self.text else None, "best_blobs": []}

    def worker(self, id_):
        counts = {"up": 1 << 20, "down": 3 << 20}
        card = {"name": "cuda:0", "model": "NVIDIA H200", "memory_used": (40 + id_) << 30, "memory_total": 140 << 30,
                "utilization": 97, "temperature": 60 + id_, "power": 640.0, "ecc_errors": 0,
                "throttled": "power cap" if id_ == 2 else "", "trouble": ""}
        devices = [card, dict(card, name="cuda:1", utilization=91)] if id_ == 1 else [card]
        return {"id": id_, "name": f"isle-{id_}", "state": "busy", "reason": "", "device": "cuda:0: NVIDIA H200", "version": "0.3", "token": 1, "has_key": True, "allows_trainers": False, "revoked": False, "address": "10.0.0.1",
                "memory_bytes": 1 << 33, "disk_room_bytes": 1 << 36, "threads": 4, "task": 100 + id_, "task_kind": "train", "activity": "training", "steps_done": 12,
                "steps_total": 50, "path": id_ - 1, "replica": 0, "images_per_s": 162.0 + id_, "loss": 0.41, "grad_norm": 0.7,
                "devices": devices, "flops": 412.5e12, "peak_flops": 698e12, "mfu": 412.5 / 698,
                "plan": plan(len(devices)) if len(devices) > 1 else None,
                "heartbeat_age_ms": 300, "joined_age_ms": 900000, "strikes": 0, "tasks_done": 9, "tasks_failed": 0, "device_failures": 0,
                "quarantine_ms": None,
                "bytes": {"control": counts, "data": counts}}

    def train(self):
        for p in self.job["path_list"]:
            at = p["path"] < len(self.workers)
            self.job["phases"].append({
                "path": p["path"], "replica": 0, "round": self.round + 1, "state": "leased" if at else "pending",
                "task": 101 + p["path"] if at else None, "worker": p["path"] + 1 if at else None,
                "worker_name": f"isle-{p['path'] + 1}" if at else "", "step": self.round * 50 + 12, "steps_done": 12 if at else 0,
                "steps_total": 50, "loss": p["loss"], "images_per_s": 160.0 if at else None, "gone": None})
            base = 2.0 if p["network"] == "router" else 0.38 + 0.015 * p["path"]
            for step in range(0, self.round * 50 + 12, 2):
                loss = base + 0.9 * math.exp(-step / 60) + 0.02 * self.rng.random()
                named = {"numbers": {"accuracy": 1 - loss / 3}} if self.numbers else {}
                self.record("loss", p, step // 50 + 1, replica=0, step=step, loss=loss, lr=1e-3, **named)
            for r in range(1, self.round + 1):
                self.record("eval", p, r, step=r * 50, eval_loss=base + 0.02 + 0.5 / r)
                self.job["history"].append({
                    "path": p["path"], "round": r, "loss": base + 0.5 / r, "eval_loss": base + 0.02 + 0.5 / r, "seconds": 61.0,
                    "contributions": 1, "expected": 1, "samples": 1600, "steps": 50, "bytes_up": 1 << 20, "bytes_down": 1 << 20,
                    "parts": {"worker": 1, "begin": 0.1, "steps": 1.5, "network": 0, "rest": 0.4, "fold": 0.2, "behind": 0.3}, "at": AT})
            if self.n > 1:
                self.job["epochs"].append({"partition": p["partition"], "epoch": 1, "total": p["samples"], "done": p["samples"] // 2,
                                           "leased": p["samples"] // 8, "pending": p["samples"] - p["samples"] // 2 - p["samples"] // 8})

    def record(self, kind, path, round, **more):
        self.metrics.append({"n": len(self.metrics) + 1, "kind": kind, "path": path["path"], "round": round, **more})

    def picture(self, path, round):
        name = sha(1000 + len(self.blobs))
        self.blobs[name] = png(hash((path, round)))
        self.job["samples"].append({"round": round, "task": 50 + len(self.blobs), "blob": name, "size": len(self.blobs[name]), "text": None,
                                    "count": 16, "columns": 4, "path": path, "at": AT})

    def words(self, path, round, text):
        self.job["samples"].append({"round": round, "task": 50 + len(self.job["samples"]), "blob": None, "size": 0, "text": text, "count": 1,
                                    "columns": 1, "path": path, "at": AT})

    def figure(self, kind, name, value, unit="", path=None):
        self.job["figures"].append({"kind": kind, "path": path, "round": self.round, "name": name, "value": value, "unit": unit, "at": AT})


def clustering(job):
    for name, value, unit in (("largest partition over the mean", 1.31, ""), ("smallest partition", 410, "samples"), ("empty partitions", 0, ""),
                              ("empty clusters repaired", 2, ""), ("samples beyond the sizes asked for", 0, ""),
                              ("variance kept by PCA", 0.873, "")):
        job.figure("cluster", name, value, unit)


def experts(k=8):
    """Decentralized diffusion: k experts, their router, grids of the mixture and of each."""
    sizes = [600 + 97 * (i * 5 % k) for i in range(k)]
    j = Job("emoji experts", "ddm", sizes, [k], router=True)
    clustering(j)
    for s, v in (("full", 0.4211), ("top1", 0.4187), ("top2", 0.4179), ("oracle", 0.4102)):
        j.figure("eval", f"loss {s}", v)
    j.figure("eval", "router accuracy", 0.713)
    for i in range(k):
        j.figure("eval", f"routed {i}", sizes[i] / sum(sizes))
    j.figure("eval", "accuracy", 0.702, path=k)
    for r in (2, 4):
        for p in [None, *range(k)]:
            j.picture(p, r)
    return j


def lattice():
    """DiPaCo on texts: 4 x 4 modules, 16 paths with a private level."""
    j = Job("text paths", "dipaco", [900 + 61 * (i * 7 % 16) for i in range(16)], [4, 4], text=True, private=True)
    clustering(j)
    for name, v in (("routed once", 2.931), ("routed every 64 tokens", 2.874), ("best path in hindsight", 2.802), ("best single path", 3.011)):
        j.figure("cluster", name, v, "bits/byte")
    j.figure("cluster", "routed to the best path", 0.412)
    for p in (0, 5):
        for r in (2, 4):
            j.words(p, r, f"The river <b>{p}</b> of round {r}\nwas wide & the wind sang\tunder it.\n\n  And so on, and so on.")
    return j


def wide():
    return Job("sixty-four", "dipaco", [100 + i for i in range(64)], [64], workers=20)


def dense():
    """64 paths over 8 x 8 modules, and more workers than the page lists."""
    return Job("dense grid", "dipaco", [300] * 64, [8, 8], workers=200)


def plain(numbers=False):
    return Job("plain", "diloco", [1000], [1], workers=1, numbers=numbers)


class Server:
    def __init__(self, made):
        self.made, self.job, self.token, self.called = made, made.job, "x", []
        self.log, self.uptime, self.life, self.news = [], 999000, 0, threading.Condition()

    def say(self, text):
        """Sends a sentence to all event streams."""
        with self.news:
            self.log.append({"n": len(self.log) + 1, "at": AT, "job": 1, "task": None, "worker": None, "text": text})
            self.news.notify_all()

    def restart(self):
        """Ends the streams and counts sentences from the start again."""
        with self.news:
            self.log, self.uptime, self.life = [], 1000, self.life + 1
            self.news.notify_all()

    def status(self):
        keys = ("id", "name", "state", "reason", "stalled", "paused", "recipe", "created_at", "elapsed_ms", "round", "rounds", "step", "total_steps", "loss",
                "eval_loss", "images_per_s", "eta_ms", "paths", "replicas", "parameters", "text", "dollars")
        both = {"up": 123456, "down": 654321}
        planes = {"control": both, "data": both}
        return {"version": "0.3", "uptime_ms": self.uptime, "at": AT, "cluster": "ab" * 16, "waiting_for": [], "workers": self.made.workers[:100],
                "workers_count": {"known": len(self.made.workers), "here": len(self.made.workers), "busy": 2, "images_per_s": 321.0, "idle_per_hour": 0.6},
                "jobs": [{k: self.job[k] for k in keys}], "bytes": planes, "bytes_here": planes, "ratio_to_fp32_data_parallel": 0.004,
                "rss_bytes": 64 << 20, "disk_room_bytes": 1 << 38, "tasks": {"pending": 4, "leased": 5}, "outer": {"busy": 1, "queue": 0},
                "store": {"ok": True, "error": "", "commits": 77, "queue": 0, "queue_max": 2, "writing_ms": 0}, "blob_store": None, "role": self.made.role}

    def answer(self, path, query):
        """(type, bytes) of the answer, or None."""
        def text(value):
            return "application/json", json.dumps(value).encode()

        if path == "/v1/status":
            return text(self.status())
        if path == "/v1/jobs/1":
            return text(dict(self.job, samples=[]) if "samples=0" in query else self.job)
        if path == "/v1/jobs/1/metrics":
            after = int(query.partition("after=")[2] or 0)
            return "application/x-ndjson", "".join(json.dumps(m) + "\n" for m in self.made.metrics if m["n"] > after).encode()
        if path == "/v1/log":
            return text({"items": self.log})
        if path in ("/v1/tasks", "/v1/workers"):
            return text({"items": self.made.workers if path == "/v1/workers" else [], "next": None})
        if path.startswith("/v1/blobs/") and path[10:] in self.made.blobs:
            return "image/png", self.made.blobs[path[10:]]
        name = "index.html" if path == "/" else path[5:] if path.startswith("/web/") else None
        if name and re.fullmatch(r"[a-z]+\.[a-z]+", name) and os.path.exists(os.path.join(WEB, name)):
            with open(os.path.join(WEB, name), "rb") as f:
                return TYPES[os.path.splitext(name)[1]] + "; charset=utf-8", f.read()
        return None

    def __enter__(self):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                path, _, query = self.path.partition("?")
                server.called.append(self.path)
                if path == "/v1/events":
                    self.send_response(200)
                    self.send_header("Content-Type", "text/event-stream")
                    self.end_headers()
                    self.wfile.write(b"retry: 50\n\n")
                    with server.news:
                        life, told = server.life, len(server.log)
                        while server.life == life:
                            for e in server.log[told:]:
                                self.wfile.write(f"event: log\ndata: {json.dumps(e)}\n\n".encode())
                            told = len(server.log)
                            server.news.wait()
                    return
                got = server.answer(path, query)
                self.send_response(200 if got else 404)
                self.send_header("Content-Security-Policy", policy())
                self.send_header("Content-Type", got[0] if got else "text/plain")
                self.send_header("Content-Length", str(len(got[1]) if got else 0))
                self.end_headers()
                if got:
                    self.wfile.write(got[1])

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args):
        self.restart()
        self.http.shutdown()
        self.http.server_close()


def policy():
    """The Content-Security-Policy that the coordinator sends with the page."""
    with open(os.path.join(ROOT, "coordinator", "http", "http_api.c"), encoding="utf-8") as f:
        found = re.search(r'"Content-Security-Policy",\s*((?:"[^"]*"\s*)+)', f.read())
    return "".join(re.findall(r'"([^"]*)"', found[1]))

"""The HTTP API of a real coordinator against docs/openapi.yaml."""
import hashlib
import http.client
import json
import os
import re
import signal
import ssl
import subprocess

import pytest
import yaml

import test_ddm
from common import BIN, HANGS, make_dataset, wait_until, write_job
from openapi import OpenApi, registered_routes
from swarm import running, swarm  # noqa: F401 (a fixture)

NOBODY = "0" * 64
TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BOARD = os.path.join(TOP, "deploy", "grafana", "skerry.json")
ALERTS = os.path.join(TOP, "deploy", "prometheus", "alerts.yaml")


@pytest.fixture
def api(swarm):  # noqa: F811
    return OpenApi(swarm)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """The API of a coordinator without workers and jobs, for tests without changes."""
    with running(tmp_path_factory.mktemp("quiet")) as s:
        yield OpenApi(s)


def train(api):
    api.events = api.swarm.events()
    for n, name in enumerate(("one", "two"), 1):  # in this order: ids go by it
        api.swarm.worker(name, device="cpu,cpu", threads=2)  # islands leave traces
        wait_until(lambda: len(api.swarm.get("/v1/workers").json()["items"]) == n, 20, f"worker {name} to join")
    api.job = api.swarm.submit(rounds=3, sample_every=1, eval_every=1)
    api.swarm.wait_job(api.job, "done")
    return api


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The API of a swarm in which a job with samples and evaluations has ended; tests must not change it."""
    with running(tmp_path_factory.mktemp("trained")) as s:
        yield train(OpenApi(s))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The API of a swarm in which experts and their router were trained; .states: the states that the job went through."""
    with running(tmp_path_factory.mktemp("mixed")) as s:
        api = OpenApi(s)
        for name in ("one", "two"):
            s.worker(name)
        folder = os.path.join(s.folder, "experts")
        os.makedirs(folder)
        api.job, api.states = s.submit(test_ddm.write(folder)), []
        watch = subprocess.Popen([f"{BIN}/skerry", "watch", str(api.job)], stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "SKERRY_TOKEN": s.token})

        def over():
            job = api.call("getJob", params={"id": api.job}).json()  # as documented in every state
            api.call("listTasks")
            if job["state"] not in api.states:
                api.states.append(job["state"])
            return job["state"] in ("done", "failed", "cancelled")

        wait_until(over, 120, "the experts")
        api.watched = watch.communicate(timeout=HANGS)[0]
        yield api


def error(answer):
    return answer.json()["error"]["message"]


# ---- the document and the server agree ----

def test_every_route_is_documented_and_every_path_is_routed(quiet):
    documented = {(method.upper(), path) for method, path, _ in quiet.operations().values()}
    assert registered_routes() == documented


def test_every_documented_operation_answers_as_documented(api):
    job = train(api).job
    anybody = {"headers": {"Authorization": ""}}
    api.call("health", **anybody)
    api.call("prometheus")
    api.call("page", **anybody)
    for name in ("pageFile",):
        for file in ("app.js", "app.css", "icon.svg"):
            api.call(name, params={"name": file}, **anybody)
    api.call("login", 303, data={"token": api.swarm.token})
    api.call("logout", 303)
    status = api.call("status").json()
    assert [w["name"] for w in status["workers"]] == ["one", "two"]
    assert [j["id"] for j in api.call("listJobs").json()["items"]] == [job]
    got = api.call("getJob", params={"id": job}).json()
    assert got["state"] == "done" and len(got["history"]) == 3
    for r in got["history"]:
        parts = r["parts"]
        assert abs(sum(parts[k] for k in ("begin", "steps", "network", "rest", "fold")) - r["seconds"]) < 0.05, r
        assert parts["steps"] > 0 and parts["worker"] in (1, 2)
    api.call("jobMetrics", params={"id": job})
    api.call("jobTrace", params={"id": job})
    assert "</svg>" in api.call("jobTracePicture", params={"id": job}).text
    assert got["trace"]["worker_name"] in ("one", "two") and got["trace"]["round"] == 3
    tasks = api.call("listTasks").json()["items"]
    task = api.call("getTask", params={"id": tasks[0]["id"]}).json()
    assert {k: v for k, v in task.items() if k != "age_ms"} == {k: v for k, v in tasks[0].items() if k != "age_ms"}
    api.call("listWorkers")
    modules = api.call("listModules").json()["items"]
    assert modules[0]["versions"][0]["version"] == 3
    api.call("recentLog")
    made = api.call("makeToken", 201, json={"role": "viewer", "name": "eye", "life_s": 60}).json()
    tokens = api.call("listTokens").json()["items"]
    assert [t["name"] for t in tokens] == ["worker.token", "user.token", "eye"]
    api.call("makeToken", 409, json={"role": "viewer", "name": "eye"})
    assert api.call("adjustToken", params={"id": 1}, json={"workers": 9}).json()["workers_max"] == 9
    api.call("adjustToken", 409, params={"id": 2}, json={"jobs": 9})
    api.call("adjustToken", 400, params={"id": made["id"]}, json={"jobs": 9})
    api.call("revokeToken", params={"id": made["id"]})
    api.call("revokeToken", 409, params={"id": made["id"]})
    assert "locked out" in error(api.call("revokeToken", 409, params={"id": tokens[1]["id"]}))
    blob = got["samples"][-1]["blob"]
    png = api.call("getBlob", params={"sha256": blob}).content
    assert png[:4] == b"\x89PNG" and hashlib.sha256(png).hexdigest() == blob
    content = os.urandom(1000)
    name = hashlib.sha256(content).hexdigest()
    ticket = api.call("prepareUpload", json={"sha256": name, "size": len(content)}).json()
    assert not ticket["have"]
    put = api.swarm.stranger().put(api.swarm.url + ticket["url"], data=content, timeout=HANGS)
    assert put.status_code == 201, put.text
    api.check(api.operations()["putBlob"][2], put)
    api.called.add(("putBlob", 201))
    assert api.call("prepareUpload", json={"sha256": name, "size": len(content)}).json() == {"have": True, "url": ""}
    api.call("sampleJob", 202, params={"id": job}, json={"count": 2, "labels": [0, 1], "steps": 2, "guidance": 2.5,
                                                         "seed": 3, "sampler": "heun", "columns": 2, "ema": False})
    api.call("cancelJob", 409, params={"id": job})
    second = submit_again(api)
    api.call("adjustJob", 409, params={"id": job}, json={"share": 2})
    assert api.call("adjustJob", params={"id": second}, json={"share": 2}).json() == {"priority": 0, "share": 2, "budget": None}
    assert api.call("pauseJob", params={"id": second}).json() == {"id": second, "paused": True}
    assert api.call("getJob", params={"id": second}).json()["paused"]
    assert api.call("resumeJob", params={"id": second}).json() == {"id": second, "paused": False}
    api.call("pauseJob", 409, params={"id": job})
    api.call("resumeJob", 404, params={"id": 99})
    api.call("rollBackJob", 409, params={"id": second}, json={"to": 0})
    api.call("cancelJob", params={"id": second})
    third = api.swarm.submit(rounds=1000, steps=400)
    api.swarm.wait_round(third, 1)
    assert api.call("rollBackJob", params={"id": third}, json={"to": 0}).json() == {"id": third, "to": 0}
    api.call("cancelJob", params={"id": third})
    states = {j: [p["state"] for p in api.call("getJob", params={"id": j}).json()["path_list"]] for j in (job, second)}
    assert states == {job: ["done"], second: ["stopped"]}, "the rounds of a path that were not trained are not done"
    for worker in status["workers"]:
        api.call("drainWorker", params={"id": worker["id"]}, json={})
    wait_until(lambda: all(w["state"] == "left" for w in api.call("listWorkers").json()["items"]), 20, "both to leave")
    api.call("cancelTask", 400, params={"id": next(t["id"] for t in tasks if t["kind"] == "train")})
    wanted = api.call("sampleJob", 202, params={"id": job}, json={}).json()["task"]  # which nobody is here to draw
    assert api.call("cancelTask", params={"id": wanted}).json() == {"id": wanted, "state": "cancelled"}
    assert "already" in error(api.call("cancelTask", 409, params={"id": wanted}))
    assert api.call("getTask", params={"id": wanted}).json()["state"] == "cancelled"
    api.call("removeJob", 409, params={"id": submit_again(api)})
    assert api.call("removeJob", params={"id": third}, json={"dry_run": True}).json()["removed"] is False
    assert api.call("removeJob", params={"id": third}).json()["removed"] is True
    api.call("getJob", 404, params={"id": third})
    api.call("revokeWorker", params={"id": status["workers"][0]["id"]})
    with api.swarm.get("/v1/events", stream=True) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        api.called.add(("events", 200))
    succeeded = {name for name, code in api.called if code < 400}
    assert succeeded == set(api.operations()), "an operation was not called"


def submit_again(api):
    """submitJob as a plain HTTP request, with the shards of the job before."""
    spec = api.swarm.job(api.job)["spec"].replace("rounds: 3", "rounds: 1000")
    classes = [c["name"] for c in api.swarm.job(api.job)["classes"]]
    content = os.urandom(64)
    sha = hashlib.sha256(content).hexdigest()
    ticket = api.swarm.post("/v1/uploads", {"sha256": sha, "size": len(content)}).json()
    put = api.swarm.stranger().put(api.swarm.url + ticket["url"], data=content, timeout=HANGS)
    assert put.status_code == 201
    shard = {"sha256": sha, "size": len(content), "samples": 32, "holdout": False}
    body = {"spec": spec, "dataset": {"classes": classes, "counts": [16] * len(classes), "shards": [shard], "bad": []}}
    answer = api.call("submitJob", 201, json=body)
    assert answer.headers["Location"] == f"/v1/jobs/{answer.json()['id']}"
    return answer.json()["id"]


# ---- who may ----

@pytest.mark.parametrize("presented", ["", "Bearer wrong", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer " + "A" * 5000])
def test_without_the_secret_nothing_is_told(quiet, presented):
    for name, (method, path, op) in quiet.operations().items():
        if op.get("security") == [] or method == "put":
            continue
        path = re.sub(r"\{id\}", "1", path).replace("{sha256}", NOBODY)
        answer = quiet.swarm.stranger().request(method, quiet.swarm.url + path, headers={"Authorization": presented} if presented else {},
                                  timeout=HANGS, json={} if method == "post" else None)
        allowed = (401, 403) if name == "getBlob" else (401,)  # there a ticket would do, too
        assert answer.status_code in allowed, f"{name}: {answer.status_code}"
        quiet.check(op, answer)


def test_a_workers_token_is_not_a_users(quiet):
    answer = quiet.swarm.stranger().get(quiet.swarm.url + "/v1/status", headers={"Authorization": f"Bearer {quiet.swarm.worker_token}"},
                          timeout=HANGS)
    assert answer.status_code in (401, 403)


def test_login_sets_a_cookie_that_scripts_cannot_read(quiet):
    browser = quiet.swarm.stranger()
    form = browser.get(quiet.swarm.url + "/", timeout=HANGS)
    assert form.status_code == 200 and 'name="token"' in form.text
    denied = browser.get(quiet.swarm.url + "/?token=wrong", timeout=HANGS)
    assert denied.status_code == 401 and "not the right one" in denied.text
    assert not browser.cookies
    inside = browser.get(quiet.swarm.url + f"/?token={quiet.swarm.token}", timeout=HANGS, allow_redirects=False)
    assert inside.status_code == 303 and inside.headers["Location"] == "/"
    cookie = inside.headers["Set-Cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Secure", "Path=/"))
    page = browser.get(quiet.swarm.url + "/", timeout=HANGS)
    assert 'id="loss-title"' in page.text
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert browser.get(quiet.swarm.url + "/v1/status", timeout=HANGS).status_code == 200
    assert quiet.swarm.token.split(".")[-1] not in cookie, "the cookie is the secret"
    foreign = {"Origin": "https://localhost:1"}
    for path in ("/v1/workers/1/drain", "/logout"):
        assert browser.post(quiet.swarm.url + path, headers=foreign, timeout=HANGS).status_code == 403
    ours = {"Origin": quiet.swarm.url}
    assert browser.post(quiet.swarm.url + "/v1/workers/1/drain", headers=ours, timeout=HANGS).status_code == 404
    browser.post(quiet.swarm.url + "/logout", headers=ours, timeout=HANGS)
    assert browser.get(quiet.swarm.url + "/v1/status", timeout=HANGS).status_code == 401
    bad = browser.post(quiet.swarm.url + "/login", data={"token": "a\r\nSet-Cookie: x=y"}, timeout=HANGS, allow_redirects=False)
    assert bad.status_code == 401 and "Set-Cookie" not in bad.headers


# ---- bad requests ----

def submission(**changes):
    shard = {"sha256": NOBODY, "size": 10, "samples": 8, "holdout": False}
    body = {"spec": "name: x\n", "dataset": {"classes": ["a"], "counts": [8], "shards": [shard]}}
    body.update(changes)
    return body


def with_shard(**changes):
    body = submission()
    body["dataset"]["shards"][0].update(changes)
    return body


@pytest.mark.parametrize("operation,body,status,words", [
    ("submitJob", [], 400, "object"),
    ("submitJob", {}, 400, 'lacks "spec"'),
    ("submitJob", submission(spec=7), 400, '"spec"'),
    ("submitJob", submission(specs="x"), 400, 'did you mean "spec"'),
    ("submitJob", submission(spec="x" * 40000), 400, "a text of 40000 bytes"),
    ("submitJob", submission(spec="name: [1"), 400, "job.yaml:2"),
    ("submitJob", submission(spec="nmae: x\n"), 400, "name"),
    ("submitJob", with_shard(sha256="AB"), 400, "shards[0]"),
    ("submitJob", with_shard(size=0), 400, '"size" of shards[0]'),
    ("submitJob", with_shard(holdout=0), 400, "true or false"),
    ("submitJob", submission(dataset={"classes": ["a"], "counts": [1, 2], "shards": [{}]}), 400, "counts"),
    ("prepareUpload", {"sha256": NOBODY}, 400, 'lacks "size"'),
    ("prepareUpload", {"sha256": NOBODY, "size": -1}, 400, "from 1 to"),
    ("prepareUpload", {"sha256": NOBODY, "size": 1, "sise": 2}, 400, 'did you mean "size"'),
])
def test_bad_bodies_are_refused_with_a_sentence(quiet, operation, body, status, words):
    answer = quiet.call(operation, status, json=body)
    assert words in error(answer), error(answer)
    assert "\n" not in error(answer)


# Of an id, a name or a query, as it stands in a URL.
ODD = ("x", "-1", "+1", "1.5", "0x1", "%ff", "%0d%0a", "99999999999999999999", "9223372036854775808", "a" * 2000)
KINDS = (400, 401, 403, 404, 409, 413, 416, 422, 429)


def plain_path(path):
    return path.replace("{id}", "1").replace("{sha256}", NOBODY).replace("{name}", "app.js")


def ask_oddly(api, name, odd, expected=KINDS, **how):
    """Asks; returns what is wrong with the answer, "" if it is one of those expected and as documented."""
    method, _, op = api.operations()[name]
    answer = api.swarm.session.request(method, api.swarm.url + odd, timeout=HANGS, allow_redirects=False, **how)
    what = f"{method} {odd[:80]} {str(how)[:200]}: {answer.status_code} {answer.text[:200]}"
    if answer.status_code not in expected:
        return f"not one of {expected}: {what}"
    try:
        api.check(op, answer)
    except AssertionError as e:
        return f"{e}: {what}"
    return ""


def assert_all(answers):
    wrong = [a for a in answers if a]
    assert not wrong, f"{len(wrong)} answers:\n" + "\n".join(wrong[:40])


def odd_targets(api):
    for name, (_, path, op) in api.operations().items():
        if name == "events":
            continue
        for p in map(api.deref, (*api.doc["paths"][path].get("parameters", []), *op.get("parameters", []))):
            for value in ODD if p["in"] in ("path", "query") else ():
                yield name, plain_path(path.replace("{%s}" % p["name"], value) if p["in"] == "path" else f"{path}?{p['name']}={value}")
        yield name, plain_path(path) + "?" + "&".join(["a=1"] * 65)


def test_odd_paths_and_queries_are_answered_as_documented(quiet):
    assert_all(ask_oddly(quiet, name, odd, (200, 303, *KINDS)) for name, odd in odd_targets(quiet))


def with_bodies(api):
    return [(name, plain_path(path), api.body(op)) for name, (_, path, op) in api.operations().items() if api.body(op)]


def test_bodies_that_the_schema_forbids_are_refused_as_documented(trained):
    """So no key is taken that is not documented, and no value beyond its documented bounds."""
    bodies = [(name, path, body) for name, path, schema in with_bodies(trained) for body in trained.spoiled(schema) if body is not None]
    assert len(bodies) > 400
    for name, _, body in bodies:
        with pytest.raises(AssertionError):
            trained.validate(body, trained.body(trained.operations()[name][2]))
    assert_all(ask_oddly(trained, name, path, (400,), json=body) for name, path, body in bodies)


def test_odd_bodies_are_refused_as_documented(quiet):
    raw = (b"{", b"[]", b"null", b"\xff\xfe", b'{"a":1,"a":2}', b"[" * 3000, b'{"size": 1e999}', b"{}x", b"\0")
    assert_all(ask_oddly(quiet, name, path, (400,), data=body) for name, path, _ in with_bodies(quiet) for body in raw)


def test_a_viewer_changes_nothing(quiet):
    token = quiet.call("makeToken", 201, json={"role": "viewer"}).json()["token"]
    assert_all(ask_oddly(quiet, name, path, (403,), json={}, headers={"Authorization": f"Bearer {token}"})
               for name, path, _ in with_bodies(quiet))


def test_a_good_spec_without_its_shards_is_refused(quiet, tmp_path):
    spec = open(write_job(tmp_path, data=False), encoding="utf-8").read()
    answer = quiet.swarm.post("/v1/jobs", submission(spec=spec))
    assert 400 <= answer.status_code < 500 and NOBODY[:8] in error(answer), answer.text
    assert quiet.call("listJobs").json() == {"items": []}


def test_broken_json_and_oversized_bodies(quiet):
    broken = quiet.call("submitJob", 400, data=b'{"spec": ', headers={"Content-Type": "application/json"})
    assert "line 1" in error(broken)
    twice = quiet.call("prepareUpload", 400, data=b'{"size":1,"size":2}')
    assert "size" in error(twice)
    for name, path, _ in with_bodies(quiet):
        refused_by_length(quiet, name, path)


def refused_by_length(api, name, path):
    """From its headers alone, before a byte of the body is there."""
    context = ssl.create_default_context(cafile=api.swarm.session.verify)
    context.check_hostname = False
    client = http.client.HTTPSConnection("127.0.0.1", api.swarm.ports["http_port"], context=context, timeout=HANGS)
    client.putrequest("POST", path)
    client.putheader("Authorization", f"Bearer {api.swarm.token}")
    client.putheader("Content-Length", "9000000")
    client.endheaders()
    answer = client.getresponse()
    assert answer.status == 413, path
    api.validate_named(json.load(answer), "Error")
    assert "413" in api.operations()[name][2]["responses"], f"{name} does not document 413"
    client.close()


@pytest.mark.parametrize("path,status", [
    ("/v1/jobs/99", 404), ("/v1/jobs/x", 400), ("/v1/jobs/-1", 400), ("/v1/jobs/99999999999999999999", 400),
    ("/v1/tasks/99", 404), ("/v1/jobs/99/metrics", 404), ("/v1/tasks?state=happy", 400), ("/v1/tasks?job=x", 400),
    ("/v1/modules?job=99", 404), ("/v1/tasks?job=99", 404), ("/v1/nothing", 404), ("/v1/blobs/zz", 400), (f"/v1/blobs/{NOBODY}", 404),
    ("/web/secret.html", 404), ("/web/..%2fapp.js", 404), ("/v1/jobs/", 404)])
def test_bad_paths(quiet, path, status):
    answer = quiet.swarm.get(path)
    assert answer.status_code == status, answer.text
    quiet.validate_named(answer.json(), "Error")


@pytest.mark.parametrize("arguments,status", [(64, 200), (65, 400), (470, 400), (3000, 400)])
def test_a_query_that_is_too_long(quiet, arguments, status):
    """None is left without an answer, however little memory of its connection it leaves."""
    answer = quiet.swarm.get("/v1/jobs?" + "&".join(["a=1"] * arguments))
    assert answer.status_code == status, answer.text
    if status == 400:
        quiet.validate_named(answer.json(), "Error")
        assert "more than 64 arguments" in answer.text


def test_wrong_methods(quiet):
    for method, path in (("DELETE", "/v1/jobs"), ("POST", "/v1/status"), ("PUT", "/healthz")):
        answer = quiet.swarm.session.request(method, quiet.swarm.url + path, timeout=HANGS)
        assert answer.status_code == 405 and answer.headers["Allow"], answer.text
        quiet.validate_named(answer.json(), "Error")
    answer = quiet.swarm.session.delete(quiet.swarm.url + "/v1/jobs", timeout=HANGS)
    assert answer.headers["Allow"] == "GET, HEAD, POST"


def test_a_file_of_the_page_is_sent_once(quiet):
    first = quiet.swarm.get("/web/app.js")
    again = quiet.call("pageFile", 304, params={"name": "app.js"}, headers={"If-None-Match": first.headers["ETag"]})
    assert not again.content and again.headers["Cache-Control"] == "no-cache"
    other = quiet.swarm.get("/web/app.css")
    assert other.headers["ETag"] != first.headers["ETag"]


def test_commands_to_what_is_not_there(quiet):
    for operation in ("cancelJob", "removeJob", "cancelTask", "sampleJob", "drainWorker"):
        assert "99" in error(quiet.call(operation, 404, params={"id": 99}, json={}))
        assert "unknown key" in error(quiet.call(operation, 400, params={"id": 99}, json={"force": True}))


# ---- what is told ----

def test_events_and_their_log(trained):
    api, schemas = trained, trained.doc["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]
    schemas = schemas["text/event-stream"]["x-event-schemas"]
    wait_until(lambda: {e for e, _ in list(api.events.items)} >= set(schemas) - {"text"}, 20, "an event of each kind")
    wait_until(lambda: [e for e in api.events.of("job") if e["state"] == "done"], 20, "the last of them")
    for event, data in list(api.events.items):
        api.validate(data, schemas[event])
    assert [r["round"] for r in api.events.of("round")] == [1, 2, 3]
    assert {s["round"] for s in api.events.of("sample")} == {1, 2, 3}
    assert api.events.of("job")[-1]["state"] == "done"
    points = {(p["replica"], p["step"]) for p in api.events.of("loss")}
    assert len(points) == 2 * 3 * 4
    told = api.call("recentLog").json()["items"]
    for words in ("has joined", "is running", "round 3", "samples were drawn after round 3", "held-out loss", "is done"):
        assert any(words in e["text"] for e in told), words
    assert len({e["text"] for e in told}) == len(told), "something is told twice"
    numbers = [e["n"] for e in told]
    assert numbers == sorted(set(numbers)) and 0 < len(told) <= 200
    assert {e["n"] for e in api.events.of("log")} <= set(numbers) | set(range(1, numbers[0]))


def test_metrics_lines_continue_after_any_record(trained):
    api, path = trained, f"/v1/jobs/{trained.job}/metrics"
    records = [json.loads(line) for line in api.swarm.get(path).text.splitlines()]
    numbers = [r["n"] for r in records]
    assert numbers == sorted(set(numbers))
    assert [r["kind"] for r in records].count("round") == 3
    assert len([r for r in records if r["kind"] == "loss"]) == 2 * 3 * 4
    rounds = [r for r in records if r["kind"] == "round"]
    assert [(r["round"], r["step"]) for r in rounds] == [(1, 4), (2, 8), (3, 12)]
    assert all(r["eval_loss"] > 0 for r in rounds)
    for cut in (0, numbers[0], numbers[len(numbers) // 2], numbers[-1]):
        rest = [json.loads(line) for line in api.swarm.get(f"{path}?after={cut}").text.splitlines()]
        assert rest == [r for r in records if r["n"] > cut]


def test_a_finished_job_is_told_in_full(trained):
    job = trained.swarm.job(trained.job)
    assert job["round"] == job["rounds"] == 3 and job["step"] == 12 and job["total_steps"] == 12
    assert job["loss"] > 0 and job["eval_loss"] > 0 and job["parameters"] > 1000
    assert all(e["total"] == e["done"] + e["leased"] + e["pending"] for e in job["epochs"])
    assert sum(e["done"] for e in job["epochs"]) == 2 * 3 * 4 * 8
    assert job["partitions"] == [] and all(x["partition"] is None for x in job["epochs"] + job["path_list"]), "all the data"
    assert "paths" not in trained.swarm.skerry("status", trained.job).stdout, "there is but one"
    bounded = [trained.swarm.get(f"/v1/jobs/{trained.job}?samples={n}").json()["samples"] for n in (0, 1, 1024)]
    assert bounded == [[], job["samples"][-1:], job["samples"]] and len(job["samples"]) > 1
    assert job["modules"][0]["version"] == 3
    assert job["bytes"]["per_param_up"] > 0 and 0 < job["bytes"]["ratio"] < 1
    versions = trained.call("listModules").json()["items"][0]["versions"]
    assert versions[0]["sha256"] == job["modules"][0]["sha256"] == versions[0]["full"]["sha256"]
    assert versions[0]["provenance"]["contributions"]
    sizes = trained.swarm.session.head(trained.swarm.url + f"/v1/blobs/{versions[0]['ema']['sha256']}", timeout=HANGS)
    assert int(sizes.headers["Content-Length"]) == versions[0]["ema"]["size"]


def test_a_job_with_paths_is_told_in_full(mixed):
    assert mixed.states[-1] == "done"
    assert mixed.states == [x for x in ("pending", "ingesting", "initialising", "features", "clustering", "splitting", "running",
                                        "finishing", "done") if x in mixed.states], "in this order"
    job = mixed.swarm.job(mixed.job)
    assert job["mixture"] and not job["text"] and job["generation"] == 1
    assert [p["network"] for p in job["path_list"]] == ["main"] * 3 + ["router"]
    assert all(p["round"] == 2 and p["versions"] == [2] and p["eval_round"] == 2 for p in job["path_list"])
    assert [p["partition"] for p in job["path_list"]] == [0, 1, 2, None]
    assert sorted(m["id"] for m in job["modules"]) == sorted(i for p in job["path_list"] for i in p["modules"])
    sizes = [p["samples"] for p in job["partitions"]]
    assert [p["samples"] for p in job["path_list"]] == [*sizes, sum(sizes)]
    assert abs(sum(p["share"] for p in job["partitions"]) - 1) < 1e-6
    assert {s["path"] for s in job["samples"]} == {None, 0, 1, 2}
    kinds = {f["kind"] for f in job["figures"]}
    assert kinds == {"cluster", "eval"}
    listed = mixed.call("listModules").json()["items"]
    assert [m["bytes_from_others"] for m in listed] == [0] * 4
    told = [e["text"] for e in mixed.call("recentLog").json()["items"]]
    assert len(set(told)) == len(told), "something is told twice"


def test_a_job_with_paths_on_the_terminal(mixed):
    done = mixed.swarm.skerry("status", mixed.job)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"job {mixed.job}, experts (ddm): done")
    tables = [line for line in lines if line and not line.startswith(" ")]
    assert tables[1:4] == ["paths", "partitions", "figures"]
    assert any(re.match(r"  router +0 +all +157 +2/2 +done", line) for line in lines), done.stdout
    assert any("router accuracy" in line for line in lines)
    assert len([line for line in lines if re.match(r" +[012] .*#", line)]) == 3, "a bar for each partition"
    as_json = json.loads(mixed.swarm.skerry("status", mixed.job, "--json").stdout)
    mixed.validate_named(as_json, "Job")
    tasks = mixed.swarm.skerry("tasks").stdout
    for kind in ("feature", "cluster", "split", "train", "eval", "sample"):
        assert re.search(rf"(?m)^ +\d+ +{mixed.job} +{kind} +done", tasks), f"no {kind} in:\n{tasks}"
    assert "the mixture after round 2" in tasks and "round 2, path 3, replica 0" in tasks
    assert "done after round 2/2" in mixed.watched
    assert mixed.swarm.skerry("tasks", mixed.job).stdout.count("\n") == tasks.count("\n"), "it is the only job"
    assert "--state is 'a b', expected pending, leased" in mixed.swarm.skerry("tasks", "--state", "a b").stderr
    refused = mixed.swarm.skerry("tasks", "x")
    assert refused.returncode == 1 and "there is no job 'x'" in refused.stderr
    refused = mixed.swarm.skerry("tasks", 99)
    assert refused.returncode == 1 and "job 99 does not exist" in refused.stderr and not refused.stdout, refused.stderr
    wrong = mixed.swarm.skerry("status", "x")
    assert wrong.returncode == 1 and "there is no job 'x'" in wrong.stderr
    assert mixed.swarm.skerry("status", "experts").stdout == done.stdout, "by its name"
    missing = mixed.swarm.skerry("status", 99)
    assert missing.returncode == 1 and "99" in missing.stderr, missing.stderr


@pytest.mark.parametrize("name", ["x.jpg", "x.JPEG", "x.webp"])
def test_a_picture_is_not_written_under_another_kinds_name(trained, tmp_path, name):
    done = trained.swarm.skerry("sample", trained.job, "--out", tmp_path / name)
    assert done.returncode != 0 and f"name it {tmp_path}/x.png" in done.stderr, done.stderr
    assert not os.listdir(tmp_path)


def test_a_folder_is_no_file_for_pictures(trained, tmp_path):
    done = trained.swarm.skerry("sample", trained.job, "--out", tmp_path)
    assert done.returncode == 1 and done.stderr == f"skerry: --out {tmp_path} is a directory, expected a file\n"
    assert "task" not in done.stderr and not os.listdir(tmp_path), "nothing was drawn for it"


def test_prometheus_text(trained):
    text = trained.call("prometheus").text
    assert trained.swarm.get("/metrics").headers["Content-Type"].startswith("text/plain; version=0.0.4")
    sample = re.compile(r'^(skerry_[a-z0-9_]+)(\{[a-z_]+="(?:[^"\\]|\\.)*"(?:,[a-z_]+="(?:[^"\\]|\\.)*")*\})? (\S+)$')
    values, family = {}, None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            family = line.split()[2]
        elif not line.startswith("# HELP "):
            got = sample.match(line)
            assert got and got[1] == family, line
            assert (got[1], got[2]) not in values, line
            values[(got[1], got[2])] = float(got[3])
    job = f'{{job="{trained.job}",name="tiny"}}'
    assert values[("skerry_job_round", job)] == 3
    assert values[("skerry_jobs", '{state="done"}')] == 1 and values[("skerry_job_stalled", job)] == 0
    assert values[("skerry_worker_up", '{worker="1",name="one"}')] in (0, 1)
    assert values[("skerry_resident_memory_bytes", None)] > 1 << 20
    assert not any(name == "skerry_worker_images_per_second" for name, _ in values), "nobody trains"
    assert all(w["images_per_s"] is None for w in trained.call("listWorkers").json()["items"])


def asked_for(expression):
    """(name, labels, {label: value}) of each series that an expression of the dashboard or of an alert reads."""
    for name, matchers in re.findall(r"(skerry_[a-z0-9_]+)(?:\{([^}]*)\})?", expression):
        pairs = re.findall(r'([a-z_]+)(=~?|!~)"([^"]*)"', matchers)
        yield name, {k for k, _, _ in pairs}, {k: v for k, how, v in pairs if how == "="}


def check_series(trained, expressions):
    """Every name in the expressions is exported with the labels that they use; names without a value for a finished job on a
    CPU (its speed, a temperature), and those of an object store, need only exist.  Returns ({name: [its labels]}, how many had one)."""
    text, exported, seen = trained.swarm.get("/metrics").text, {}, 0
    for name, labels in re.findall(r"^(skerry_[a-z0-9_]+)(?:\{(.*)\})? ", text, re.M):
        exported.setdefault(name, []).append(dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', labels)))
    source = open(os.path.join(TOP, "coordinator", "http", "http_metrics.c"), encoding="utf-8").read()
    families = set(re.findall(r"^# TYPE (\S+)", text, re.M)) | {f"skerry_{name}" for name in re.findall(r'"(blob_store_\w+)"', source)}
    for name, keys, fixed in (series for e in expressions for series in asked_for(e)):
        assert name in families, f"{name} is not exported"
        for labels in exported.get(name, []):
            assert keys <= set(labels), f"{name} has no labels {keys - set(labels)}"
        if name in exported:
            seen += 1
            assert any(fixed.items() <= labels.items() for labels in exported[name]) or "state" in fixed, (name, fixed)
    return exported, seen


def test_the_alerts_read_what_there_is(trained):
    """And each says in a sentence what has happened, to which of the labels that its series have."""
    rules = [r for g in yaml.safe_load(open(ALERTS, encoding="utf-8"))["groups"] for r in g["rules"]]
    exported, seen = check_series(trained, [r["expr"] for r in rules])
    assert seen >= 12 and len({r["alert"] for r in rules}) == len(rules)
    states = {name: {labels["state"] for labels in exported[name]} for name in ("skerry_jobs", "skerry_workers", "skerry_tasks")}
    states["skerry_job_state"] = states["skerry_jobs"]
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket") and len(rule["annotations"]["summary"]) > 20, rule
        for name, values in re.findall(r'(skerry_\w+)\{state[!=]~?"([^"]*)"\}', rule["expr"]):
            assert set(values.split("|")) <= states[name], f"{rule['alert']}: {name} has no state {values}"
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        of = [labels for name, _, _ in asked_for(rule["expr"]) for labels in exported.get(name, [])]
        assert not used or not of or any(used <= set(labels) for labels in of), f"{rule['alert']}: no labels {used}"


def test_the_grafana_board_reads_what_there_is(trained):
    board = json.load(open(BOARD, encoding="utf-8"))
    variables = {v["name"]: v["query"] for v in board["templating"]["list"]}
    assert variables["job"] == "label_values(skerry_job_round, name)"
    expressions = [t["expr"] for p in board["panels"] for t in p["targets"]]
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"]) >= 18
    assert set(re.findall(r"\$(\w+)", " ".join(expressions))) == {"job", "__rate_interval"}
    exported, seen = check_series(trained, [*expressions, variables["job"]])
    for panel in board["panels"]:
        for target in panel["targets"]:
            by = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            of = [labels for name, _, _ in asked_for(target["expr"]) for labels in exported.get(name, [])]
            assert not of or any(by <= set(labels) for labels in of), f"{panel['title']}: no labels {by}"
    assert seen >= 15


def test_blobs_by_range(trained):
    blob = trained.swarm.job(trained.job)["samples"][0]
    whole = trained.call("getBlob", params={"sha256": blob["blob"]}).content
    part = trained.call("getBlob", 206, params={"sha256": blob["blob"]}, headers={"Range": "bytes=3-9"})
    assert part.content == whole[3:10] and part.headers["Content-Range"] == f"bytes 3-9/{len(whole)}"
    trained.call("getBlob", 416, params={"sha256": blob["blob"]}, headers={"Range": f"bytes={len(whole)}-"})
    etag = trained.call("getBlob", params={"sha256": blob["blob"]}).headers["ETag"]
    trained.call("getBlob", 304, params={"sha256": blob["blob"]}, headers={"If-None-Match": etag})


def test_an_upload_with_another_content_is_refused(quiet):
    content = b"what was promised"
    ticket = quiet.call("prepareUpload", json={"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}).json()
    put = quiet.swarm.stranger().put(quiet.swarm.url + ticket["url"], data=b"what has now come", timeout=HANGS)
    assert put.status_code == 422 and put.json()["error"]["code"] == "hash_mismatch"
    quiet.check(quiet.operations()["putBlob"][2], put)
    forged = ticket["url"][:-4] + "0000"
    assert quiet.swarm.stranger().put(quiet.swarm.url + forged, data=content, timeout=HANGS).status_code in (401, 403)


def test_what_was_acknowledged_survives_a_kill(api):
    trained = train(api)
    before = trained.swarm.job(trained.job)
    trained.swarm.kill("coordinatord", signal.SIGKILL)
    trained.swarm.coordinator()
    after = trained.call("getJob", params={"id": trained.job}).json()
    for module in before["modules"] + after["modules"]:
        del module["reason"]  # of the outer step that was last thought of
    for r in before["history"]:
        r["parts"] = None  # they are in memory only
    for key in ("state", "round", "spec", "history", "modules", "samples", "epochs"):
        assert after[key] == before[key], key
    trained.call("status")


def test_a_stopping_coordinator_ends_its_streams(api):
    events = api.swarm.events()
    wait_until(lambda: events.is_alive(), 5, "the stream")
    assert api.swarm.kill("coordinatord", signal.SIGTERM) == 0
    events.join(HANGS)
    assert not events.is_alive()


def test_an_empty_dataset_class_is_named(quiet, tmp_path):
    make_dataset(tmp_path / "data")
    (tmp_path / "data" / "empty").mkdir()
    done = quiet.swarm.skerry("submit", write_job(tmp_path, data=False))
    assert done.returncode != 0 and "empty" in done.stderr
    assert quiet.call("listJobs").json() == {"items": []}


def test_plain_http_on_loopback(tmp_path):
    with running(tmp_path, "--plain-http") as s:
        assert s.url.startswith("http://")
        inside = s.stranger().get(s.url + f"/?token={s.token}", timeout=HANGS, allow_redirects=False)
        assert inside.status_code == 303 and "Secure" not in inside.headers["Set-Cookie"]
        assert s.get("/v1/status").status_code == 200

"""Checks the deployment files against their schemas and against the programs that they start."""
import copy
import glob
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import warnings

import dockerfile_parse
import hcl2
import kubernetes_validate
import pytest
import yaml

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tests", "integration"))
from common import HANGS  # noqa: E402

DEPLOY = os.path.join(ROOT, "deploy")
BIN = os.path.abspath(os.environ.get("SKERRY_BIN", os.path.join(ROOT, "build", "bin")))
KUBERNETES = "1.33"
LEAVE_S = 8  # that a worker may take (docs/spot.md)


def read(*path):
    return open(os.path.join(DEPLOY, *path), encoding="utf-8").read()


def flags_of(program):
    told = subprocess.run([f"{BIN}/{program}", "--help"], stdout=subprocess.PIPE, text=True, timeout=HANGS, check=True).stdout
    return set(re.findall(r"--[a-z-]+", told))


def starts(argv):
    """A command line of one of our programs uses only flags that it has."""
    assert argv[0] in ("coordinatord", "workerd")
    wrong = {a for a in argv[1:] if a.startswith("--")} - flags_of(argv[0])
    assert not wrong, f"{argv[0]} has no {wrong}"


def keeps_below(container):
    """A cache without a limit may take the node's whole disk, and its pod is evicted again and again."""
    storage = container["resources"]["limits"].get("ephemeral-storage")
    command = container["command"]
    if storage is None:
        return
    assert storage.endswith("Gi") and "--cache-limit" in command
    limit = command[command.index("--cache-limit") + 1]
    assert limit.endswith("GB") and int(limit[:-2]) * 10**9 < 0.9 * int(storage[:-2]) * 2**30


# ---- Kubernetes ----

MANIFESTS = sorted(os.path.basename(p) for p in glob.glob(f"{DEPLOY}/kubernetes/*.yaml"))


def documents(name):
    return list(yaml.safe_load_all(read("kubernetes", name)))


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_are_of_the_schema(name):
    for document in documents(name):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        wrong = copy.deepcopy(document)
        (wrong["spec"] if "spec" in wrong else wrong["metadata"])["replica"] = 1
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


@pytest.mark.parametrize("name, kind", [("coordinator.yaml", "StatefulSet"), ("worker.yaml", "Deployment")])
def test_pods_start_our_programs_without_root(name, kind):
    by_kind = {d["kind"]: d for d in documents(name)}
    template = by_kind[kind]["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"]
    assert pod["terminationGracePeriodSeconds"] >= 2 * LEAVE_S
    ports = set()
    for container in pod["containers"]:
        starts(container["command"])
        keeps_below(container)
        assert container["securityContext"]["readOnlyRootFilesystem"]
        mounted = {m["name"] for m in container["volumeMounts"]}
        there = {v["name"] for v in pod["volumes"]} | {c["metadata"]["name"] for c in by_kind[kind]["spec"].get("volumeClaimTemplates", [])}
        assert mounted == there
        ports |= {p["name"] for p in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            action = container.get(probe, {})
            if "httpGet" in action:
                assert f"\n  {action['httpGet']['path']}:\n" in open(f"{ROOT}/docs/openapi.yaml", encoding="utf-8").read()
            for way in ("httpGet", "tcpSocket"):
                assert way not in action or action[way]["port"] in ports
    assert by_kind[kind]["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    if "Service" in by_kind:
        assert by_kind["Service"]["spec"]["selector"] == labels
        assert {p["targetPort"] for p in by_kind["Service"]["spec"]["ports"]} == ports
        assert {p["port"] for p in by_kind["Service"]["spec"]["ports"]} == {7710, 7711}


# ---- the container ----


def stages(text, tmp_path):
    """[(base, name, [instruction])] of a container file."""
    (tmp_path / "Dockerfile").write_text(text)
    found = []
    for i in dockerfile_parse.DockerfileParser(path=str(tmp_path)).structure:
        if i["instruction"] == "FROM":
            base, _, name = i["value"].partition(" AS ")
            found.append((base, name, []))
        elif found:
            found[-1][2].append(i)
    return found


def test_the_image_is_made_in_stages_and_runs_without_root(tmp_path):
    found = stages(read("container", "Containerfile"), tmp_path)
    names = [name for _, name, _ in found]
    assert names[-1] == "cpu", "what is built when nothing is said"
    for at, (base, name, instructions) in enumerate(found):
        assert base == "${DEBIAN}" or base in names[:at], f"{name}: {base} is no earlier stage"
        for i in instructions:
            if i["instruction"] != "COPY":
                continue
            words = i["value"].split()
            if words[0].startswith("--from="):
                assert words[0][len("--from="):] in names[:at]
            else:
                assert all(os.path.exists(f"{ROOT}/{w}") for w in words[:-1]), i["value"]
    for name in ("cpu", "cuda"):
        user = [i["value"] for i in found[names.index(name)][2] if i["instruction"] == "USER"]
        assert user and user[-1].split(":")[0] not in ("0", "root"), name


def test_the_image_is_built_of_the_tree_alone(tmp_path):
    lines = [line for line in open(f"{ROOT}/.dockerignore", encoding="utf-8").read().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    for line in lines[1:]:
        if line.startswith("!"):
            os.symlink(os.path.abspath(f"{ROOT}/{line[1:]}"), tmp_path / line[1:])
    made = subprocess.run(["make", "-n", "CUDA=0", "all"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANGS)
    assert made.returncode == 0, made.stdout[-2000:]


def test_what_its_head_starts_has_these_flags():
    lines = [line for line in read("container", "Containerfile").splitlines() if line.startswith("#     podman run")]
    assert len(lines) == 2
    for line in lines:
        words = line.split()
        starts(words[[i for i, w in enumerate(words) if w in ("coordinatord", "workerd")][0]:])


# ---- SkyPilot ----


def sky_task(settings):
    with warnings.catch_warnings():  # of what its database's library will drop one day
        warnings.simplefilter("ignore")
        import sky
    return sky.Task.from_yaml_config(settings, secrets_overrides=[("TOKEN", "t")], env_overrides=[("DEB", "https://example.org/skerry.deb")])


def test_skypilot_takes_the_task(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
    settings = yaml.safe_load(read("skypilot", "worker.yaml"))
    task = sky_task(copy.deepcopy(settings))
    assert task.resources and all(r.use_spot for r in task.resources)
    (command,) = [line for line in task.run.splitlines() if "workerd" in line]
    starts(command.partition(" || ")[0].split())
    for part in (task.setup, task.run):
        subprocess.run(["bash", "-n"], input=part, text=True, timeout=HANGS, check=True)
    with pytest.raises(ValueError):
        sky_task({**settings, "resource": {}})


def test_skypilot_sees_a_machine_go_before_its_job_ends(tmp_path):
    """A job is over once its process has ended, with any status; only a job that is cut off begins elsewhere.  So a worker that has left
    because of a notice is started again."""
    for name, text in (("workerd", "rm ~/goes 2>&- && exit 5; exit $STATUS"), ("sleep", "echo slept $1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def run(status):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "TOKEN": "t", "STATUS": str(status)}
        (tmp_path / "goes").touch()
        done = subprocess.run(["bash", "-c", yaml.safe_load(read("skypilot", "worker.yaml"))["run"]], env=env, stdout=subprocess.PIPE, text=True, timeout=HANGS)
        return done.returncode, done.stdout
    assert run(3) == (3, "slept 10\n")
    assert run(0) == (0, "slept 10\n")


# ---- what a machine does at its first boot ----


def served_at_the_second_try(command, text):
    """Runs the command with the address of a server that resets the first connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve():
            server.settimeout(HANGS)
            first, _ = server.accept()
            first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            first.close()
            second, _ = server.accept()
            second.recv(4096)
            second.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
            second.close()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        done = subprocess.run(command(f"http://127.0.0.1:{server.getsockname()[1]}/skerry.deb"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=HANGS, check=False)
        assert done.returncode == 0, done.stdout
        thread.join(HANGS)


@pytest.mark.parametrize("name", ["coordinator.yaml", "worker.yaml"])
def test_a_lost_connection_is_not_the_end_of_a_machine(tmp_path, name):
    fetch = yaml.safe_load(read("cloud-init", name))["runcmd"][0]
    there = {"/run/skerry.deb": str(tmp_path / "skerry.deb")}
    assert set(there) <= set(fetch)
    served_at_the_second_try(lambda url: [there.get(w, w) if w != "DEB" else url for w in fetch], "package")
    assert (tmp_path / "skerry.deb").read_text() == "package"


def test_nor_is_it_where_skypilot_sets_one_up(tmp_path):
    setup = yaml.safe_load(read("skypilot", "worker.yaml"))["setup"]
    (fetch,) = [line for line in setup.splitlines() if line.startswith("fetch() ")]
    served_at_the_second_try(lambda url: ["bash", "-c", f"{fetch}\nfetch {tmp_path}/skerry.deb {url}"], "package")
    assert (tmp_path / "skerry.deb").read_text() == "package"


def test_nor_where_cloud_init_is_still_to_come(tmp_path):
    """Google's first boot tries until apt-get has found it, and only then boots again."""
    startup = re.search(r'startup = "(.*)"', read("terraform", "gcp", "main.tf"))[1].replace("/usr/bin/cloud-init", f"{tmp_path}/none")
    for program, text in (("apt-get", "echo apt $1; [ $1 = update ] || [ -e tried ] || { touch tried; exit 100; }"), ("sleep", ":"), ("reboot", "echo reboot")):
        (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / program).chmod(0o755)
    done = subprocess.run(["sh", "-c", startup], cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, stdout=subprocess.PIPE, text=True, timeout=HANGS)
    assert done.stdout.split("\n")[:-1] == ["apt update", "apt install"] * 2 + ["reboot"]


# ---- Terraform ----

REFERENCE = re.compile(r"(?<![\w.\"])((?:var|local)\.\w+|(?:data\.)?(?:aws|google)_\w+\.\w+)")
REPLACED = re.compile(r'"((?:[^"\\]|\\.)+)", (?:"((?:[^"\\]|\\.)+)"|\w[\w.]+)\)')


def bare(tree):
    """A value that hcl2 read, without the quotes that it keeps around strings."""
    if isinstance(tree, dict):
        return {bare(k): bare(v) for k, v in tree.items() if k not in ("__is_block__", "__comments__")}
    if isinstance(tree, list):
        return [bare(x) for x in tree]
    return tree.strip('"') if isinstance(tree, str) else tree


def undeclared(text):
    """Names that a configuration uses but does not declare, and names that it declares but does not use."""
    tree = bare(hcl2.loads(text))
    there = {f"var.{name}" for block in tree.get("variable", []) for name in block}
    there |= {f"local.{name}" for block in tree.get("locals", []) for name in block}
    variables = set(there)
    for kind, before in (("resource", ""), ("data", "data.")):
        there |= {f"{before}{what}.{name}" for block in tree.get(kind, []) for what, named in block.items() for name in named}
    used = set(REFERENCE.findall("\n".join(line.split("#")[0] for line in text.splitlines())))
    return (used - there) | (variables - used)


@pytest.mark.parametrize("cloud", sorted(os.listdir(f"{DEPLOY}/terraform")))
def test_terraform_names_what_is_there(cloud):
    text = read("terraform", cloud, "main.tf")
    assert undeclared(text) == set()
    assert undeclared(text.replace("var.deb", "var.dep", 1)) == {"var.dep"}


def resource(cloud, what, name):
    tree = bare(hcl2.loads(read("terraform", cloud, "main.tf")))
    (found,) = [block[what][name] for block in tree["resource"] if name in block.get(what, {})]
    return found


@pytest.mark.parametrize("cloud, what", [("aws", "aws_launch_template"), ("gcp", "google_compute_instance_template")])
def test_terraform_makes_no_worker_without_a_token(cloud, what):
    """Else a person who scales the group in another shell would give new machines a token that is not valid."""
    (lifecycle,) = resource(cloud, what, "worker")["lifecycle"]
    assert lifecycle["precondition"][0]["condition"] == '${var.workers == 0 || var.token != "none"}'


def test_terraform_takes_machines_from_any_zone():
    """An even spread, the default, waits for zones that have no such GPUs; any other shape needs redistribution to be off."""
    group = resource("gcp", "google_compute_region_instance_group_manager", "workers")
    assert group["distribution_policy_target_shape"] == "ANY"
    assert group["update_policy"][0]["instance_redistribution_type"] == "NONE"


@pytest.mark.parametrize("cloud", sorted(os.listdir(f"{DEPLOY}/terraform")))
def test_terraform_completes_the_user_data(cloud):
    user_data = {}
    for expression in re.findall(r'file\("\$\{path.module}/([^"]+)"\),(.*?)\n\s*(?:\w+ = .*)?\n', read("terraform", cloud, "main.tf"), re.S):
        text = read("terraform", cloud, expression[0])
        for pair in REPLACED.findall(expression[1]):
            old, new = (x.replace('\\"', '"') for x in pair)
            assert old in text
            text = text.replace(old, new or "IT")
        user_data[os.path.basename(expression[0])] = text
    assert set(user_data) == {"coordinator.yaml", "worker.yaml"}
    for name, text in user_data.items():
        settings = yaml.safe_load(text)
        assert settings["runcmd"][0][-1] == "IT"
        files = {f["path"]: f["content"] for f in settings["write_files"]}
        if name == "worker.yaml":
            assert files["/etc/skerry/join.token"] == "IT\n"
            starts(["workerd", *re.search('"(.*)"', files["/etc/default/workerd"]).group(1).split()])
        else:
            assert yaml.safe_load(files["/etc/skerry/coordinator.yaml"])["host"] == "IT"

"""The deployment: the units' sandboxes, the package, the user data of virtual machines."""
import glob
import os
import re
import subprocess
import time

import pytest
import yaml

from common import BIN, HANGS, wait_until
from swarm import swarm  # noqa: F401  (fixture)

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy")
EXPOSURE_MAX = 20  # tenths of systemd-analyze's score
os.environ.setdefault("DPKG_DEB_COMPRESSOR_LEVEL", "0")  # of packages that nobody downloads


def run(*argv, **kw):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANGS, **kw)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("unit", ["coordinatord", "workerd"])
def test_units_are_sandboxed(unit):
    told = run("systemd-analyze", "security", "--no-pager", "--offline=true", f"--threshold={EXPOSURE_MAX}",
               f"{DEPLOY}/systemd/{unit}.service")
    score = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", told).group(1))
    assert 0 < score <= EXPOSURE_MAX / 10


def test_the_settings_of_the_package_are_known(tmp_path):
    """Also those that its file only shows, as comments: what is refused is what the test adds."""
    shown = re.sub(r"^#(\w+: )", r"\1", open(f"{DEPLOY}/deb/coordinator.yaml", encoding="utf-8").read(), flags=re.M)
    assert "\nstore_state: " in shown
    (tmp_path / "all.yaml").write_text(shown + "last: 1\n")
    done = subprocess.run([f"{BIN}/coordinatord", "--data-dir", "c", "--config", "all.yaml"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
                          timeout=HANGS, check=False)
    assert done.returncode == 2 and "unknown key 'last'" in done.stderr, done.stderr


@pytest.mark.parametrize("unit", ["coordinatord", "workerd"])
def test_units_start_again_however_often_they_fail(unit):
    """systemd allows five starts within ten seconds unless a unit says otherwise: a fault of a minute would end it for good."""
    text = open(f"{DEPLOY}/systemd/{unit}.service", encoding="utf-8").read()
    before_service, _, service = text.partition("[Service]")
    assert re.search(r"^StartLimitIntervalSec=0$", before_service, re.M) or 5 * int(re.search(r"^RestartSec=(\d+)$", service, re.M).group(1)) > 10


def test_cards_are_there_before_the_worker():
    """The unit that may open nvidia-uvm starts after the one that loads the module, as root and outside the sandbox."""
    def read(unit):
        return open(f"{DEPLOY}/systemd/{unit}", encoding="utf-8").read()
    worker = read("workerd.service")
    assert "DeviceAllow=char-nvidia-uvm rw" in worker
    for key in ("Wants", "After"):
        assert "workerd-devices.service" in re.search(rf"^{key}=(.*)$", worker, re.M).group(1).split()
    helper = read("workerd-devices.service")
    program = re.search(r"^ConditionPathExists=(\S+)$", helper, re.M).group(1)
    assert re.search(rf"^ExecStart=-{program} .*-u\b", helper, re.M) and "Type=oneshot" in helper
    assert not re.search(r"^(User|DynamicUser|NoNewPrivileges|DevicePolicy)=", helper, re.M)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package's file, and a folder with its content."""
    out = tmp_path_factory.mktemp("deb")
    deb = run(f"{DEPLOY}/make-deb.sh", BIN, str(out)).splitlines()[-1]
    run("dpkg-deb", "-R", deb, str(out / "tree"))
    return deb, str(out / "tree")


def test_the_package_has_all_of_it(package):
    deb, tree = package
    control = open(f"{tree}/DEBIAN/control", encoding="utf-8").read()
    version = open(os.path.join(DEPLOY, "..", "VERSION"), encoding="utf-8").read().strip()
    assert re.search(rf"^Version: {re.escape(version)}\+\d{{8}}\.\d{{6}}$", control, re.M) and "@" not in control.replace("skerry@localhost", "")
    assert "libgnutls30" in control and "libsqlite3-0" in control
    for name in ("coordinatord", "workerd", "skerry"):
        assert run(f"{tree}/usr/bin/{name}", "--version").strip() == f"{name} {version}"
    for unit in ("coordinatord", "workerd"):
        text = open(f"{tree}/lib/systemd/system/{unit}.service", encoding="utf-8").read()
        program = re.search(r"^ExecStart=(\S+)", text, re.M).group(1)
        assert os.access(tree + program, os.X_OK)
    assert os.path.exists(f"{tree}/lib/systemd/system/workerd-devices.service")
    for conffile in open(f"{tree}/DEBIAN/conffiles", encoding="utf-8").read().split():
        assert os.path.isfile(tree + conffile), conffile
    for script in ("postinst", "prerm", "postrm"):
        run("sh", "-n", f"{tree}/DEBIAN/{script}")
    assert not glob.glob(f"{tree}/**/*.token", recursive=True)


def test_the_same_programs_make_the_same_package(package, tmp_path):
    again = run(f"{DEPLOY}/make-deb.sh", BIN, str(tmp_path)).splitlines()[-1]
    assert open(package[0], "rb").read() == open(again, "rb").read()


def test_a_later_commit_is_a_newer_package(package, tmp_path):
    """apt would not install a package of a version that is already there."""
    def version(deb):
        return run("dpkg-deb", "-f", deb, "Version").strip()
    later = run(f"{DEPLOY}/make-deb.sh", BIN, str(tmp_path), env={**os.environ, "SOURCE_DATE_EPOCH": str(int(time.time()) + 1)}).splitlines()[-1]
    run("dpkg", "--compare-versions", version(package[0]), "lt", version(later))


def test_the_packaged_settings_are_understood(package, swarm):
    swarm.kill("coordinatord")
    swarm.coordinator("--config", f"{package[1]}/etc/skerry/coordinator.yaml")
    assert swarm.get("/v1/status").status_code == 200


def commands_of(config):
    return [" ".join(c) for c in config["runcmd"]]


@pytest.mark.parametrize("name, unit", [("coordinator", "coordinatord"), ("worker", "workerd")])
def test_user_data_starts_the_daemon(name, unit):
    text = open(f"{DEPLOY}/cloud-init/{name}.yaml", encoding="utf-8").read()
    assert text.startswith("#cloud-config\n")
    config = yaml.safe_load(text)
    assert commands_of(config)[-1] == f"systemctl enable --now {unit}.service"
    for command in commands_of(config):
        assert "TOKEN" not in command, "command lines are logged"
    secret = [f for f in config["write_files"] if "TOKEN" in f["content"]]
    assert all(f["permissions"] == "0600" for f in secret)
    paths = {f["path"] for f in config["write_files"]}
    unit_text = open(f"{DEPLOY}/systemd/{unit}.service", encoding="utf-8").read()
    assert all(path in unit_text for path in paths), "the unit reads what is written"


def test_a_worker_of_user_data_joins(swarm, tmp_path):
    """The unit's command line works with the file that the user data writes."""
    config = yaml.safe_load(open(f"{DEPLOY}/cloud-init/worker.yaml", encoding="utf-8").read().replace("TOKEN", swarm.worker_token))
    written = {f["path"]: f["content"] for f in config["write_files"]}
    (tmp_path / "join.token").write_text(written["/etc/skerry/join.token"])
    unit = open(f"{DEPLOY}/systemd/workerd.service", encoding="utf-8").read()
    line = re.search(r"^ExecStart=(.*)$", unit, re.M).group(1)
    line = line.replace("/usr/bin/", BIN + "/").replace("${CREDENTIALS_DIRECTORY}", str(tmp_path)).replace(
        "${STATE_DIRECTORY}", str(tmp_path / "state")).replace("$WORKERD_FLAGS", "--device cpu --threads 1")
    swarm._launch("unit", line.split())
    wait_until(lambda: [w for w in swarm.get("/v1/workers").json()["items"] if w["state"] == "idle" and w["has_key"]], 20, "it to join")

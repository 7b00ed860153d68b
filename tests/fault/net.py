"""Machines on a bridge, each in a network namespace: a process that a test starts `inside` one has only the cable of that machine."""
import contextlib
import ctypes
import os
import subprocess
import sys
import uuid

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
APART = "SKERRY_APART"


def apart():
    """Continues this program in namespaces of its own (user, mounts, network, processes): nothing in them is visible outside, and all
    processes in them end with it.  If the kernel refuses, the program ends with a sentence and status 1, and has tested nothing."""
    if os.environ.get(APART):
        subprocess.run("mount -t tmpfs none /run && ip link set lo up", shell=True, check=True)
        return
    space = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    tried = subprocess.run([*space, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        sys.exit(f"{os.path.basename(sys.argv[0])}: no namespaces can be made here ({tried.stderr.strip()}): "
                 "run it as root, or where user namespaces are allowed")
    os.environ[APART] = "1"
    os.execvp(space[0], [*space, sys.executable, *sys.argv])


class Net:
    """A bridge in a namespace, `hub`, with a cable to one namespace for each name; `rates` limits the cables that it names."""

    def __init__(self, names, rates=None):
        self.made = []
        self.tag = "sk" + uuid.uuid4().hex[:6]
        self.address = {n: f"10.213.77.{i + 1}" for i, n in enumerate(names)}
        try:
            self.hub = self._space("hub")
            self._in(self.hub, "ip link add name hub0 type bridge")
            self._in(self.hub, "ip link set dev hub0 up")
            for n in names:
                self._join(n, (rates or {}).get(n))
        except BaseException:
            self.close()
            raise

    def _run(self, line):
        done = subprocess.run(line.split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20, check=False)
        if done.returncode != 0:
            raise OSError(f"`{line}`: {done.stdout.strip()}")
        return done.stdout

    def _in(self, space, line):
        return self._run(f"ip netns exec {space} {line}")

    def _space(self, name):
        space = f"{self.tag}-{name}"
        self._run(f"ip netns add {space}")
        self.made.append(space)
        self._in(space, "ip link set lo up")
        return space

    def _join(self, name, rate):
        space = self._space(name)
        self._in(self.hub, f"ip link add name to-{name} type veth peer name out netns {space}")
        self._in(self.hub, f"ip link set dev to-{name} master hub0 up")
        self._in(space, f"ip addr add {self.address[name]}/24 dev out")
        self._in(space, "ip link set dev out up")
        if rate:
            self.shape(name, rate)

    def shape(self, name, rate):
        """Limits the rate of a cable in both directions."""
        for where, end in ((f"{self.tag}-{name}", "out"), (self.hub, f"to-{name}")):
            self._in(where, f"tc qdisc add dev {end} root tbf rate {rate} burst 128kb latency 100ms")

    def plug(self, name, there):
        """Plugs or unplugs the cable of a machine."""
        self._in(self.hub, f"ip link set dev to-{name} {'up' if there else 'down'}")

    def plugged(self, name):
        shown = self._in(self.hub, f"ip -o link show to-{name}")
        return ",UP" in shown.split(">")[0]

    @contextlib.contextmanager
    def inside(self, name):
        """Context: sockets and processes that this thread makes are in the namespace."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        space = os.open(f"/run/netns/{self.tag}-{name}", os.O_RDONLY)
        try:
            self._enter(space)
            yield
        finally:
            self._enter(before)
            os.close(before)
            os.close(space)

    @staticmethod
    def _enter(fd):
        if LIBC.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def close(self):
        for space in self.made:  # what is in them goes along
            subprocess.run(["ip", "netns", "del", space], check=False)

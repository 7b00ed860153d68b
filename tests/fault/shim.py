"""Sends orders to shim.c and reads its counters."""
import os
import struct

TURNS, BEFORE = 4096, 32  # BEFORE: the bytes before the turns


class Shim:
    """Daemons that are started with `env` have a disk and a clock that behave as tell() orders."""

    def __init__(self, build, path):
        self.path, self.flush_ms, self.clock_s = path, 0, 0
        self.env = {"SKERRY_SHIM": path, "LD_PRELOAD": os.path.abspath(f"{build}/release/tests/fault/shim.so")}
        with open(path, "wb") as f:
            f.truncate(BEFORE + 8 * TURNS)

    def tell(self, **what):
        self.__dict__.update(what)
        with open(self.path, "r+b") as f:
            f.write(struct.pack("qq", self.flush_ms, self.clock_s))

    def felt(self):
        """The numbers of flushes that were slow, and of looks at a clock that was wrong."""
        with open(self.path, "rb") as f:
            return struct.unpack("qq", f.read(BEFORE)[16:])

    def turns(self):
        """The numbers of turns of the loop that took 0, 1, 2 ... milliseconds."""
        with open(self.path, "rb") as f:
            return struct.unpack(f"{TURNS}q", f.read()[BEFORE:])

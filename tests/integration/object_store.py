"""An object store for tests: OpenStack Swift with its S3 interface, which verifies signatures, all in one process.

    /usr/bin/python3 object_store.py FOLDER      prints its port, then serves until it is killed

One proxy, account, container and object server on loopback, objects in memory.  The key is ACCESS with SECRET."""
import logging
import os
import sys

ACCESS, SECRET = "test:tester", "testing"
# A proxy does without a server that failed ten times, or once for want of space, for a minute: here there is no other.
PROXY = """
[DEFAULT]
swift_dir = {0}
log_custom_handlers = object_store.log
[pipeline:main]
pipeline = catch_errors gatekeeper listing_formats s3api tempauth bulk slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
error_suppression_interval = 0
conn_timeout = 60
node_timeout = 60
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
min_segment_size = 1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
"""


def log(_conf, _name, _to_console, _route, _format, logger, _adapted):
    """Sends warnings and errors to stderr instead of a syslog."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)


class Cache:
    """A cache for Swift, which needs one, and removes from it what it changes: it remembers tokens, and the accounts and buckets
    that are there (otherwise each request asks for both), but nothing that may be made later."""

    def __init__(self):
        self.kept = {}

    def get(self, key, **_):
        return self.kept.get(key)

    def set(self, key, value, **_):
        there = key.startswith(("account/", "container/")) and 200 <= value["status"] < 300
        if there or "/token/" in key or "/user/" in key:
            self.kept[key] = value

    def delete(self, key, **_):
        self.kept.pop(key, None)


def main(folder):
    import eventlet
    import eventlet.wsgi
    eventlet.monkey_patch()
    from swift.common import utils
    utils.HASH_PATH_SUFFIX = b"test"
    utils.SWIFT_CONF_FILE = os.path.join(folder, "swift.conf")  # is not there: one policy, as by default
    from swift.account.server import AccountController
    from swift.common.ring.builder import RingBuilder
    from swift.common.wsgi import loadapp
    from swift.container.server import ContainerController
    from swift.obj.mem_server import ObjectController
    conf = {"devices": folder, "swift_dir": folder, "mount_check": "false", "log_custom_handlers": "object_store.log",
            "fallocate_reserve": "0"}  # by default, nothing is taken when 1 % of the disk is free
    os.makedirs(os.path.join(folder, "disk"), exist_ok=True)
    apps = {"account": AccountController, "container": ContainerController, "object": ObjectController}
    sockets = {name: eventlet.listen(("127.0.0.1", 0)) for name in apps}
    for name, socket in sockets.items():
        ring = RingBuilder(4, 1, 1)  # 16 partitions, one replica
        ring.add_dev({"id": 0, "zone": 0, "region": 1, "weight": 1.0, "ip": "127.0.0.1", "port": socket.getsockname()[1],
                      "device": "disk", "meta": ""})
        ring.rebalance()
        ring.get_ring().save(os.path.join(folder, f"{name}.ring.gz"))
    for name, app in apps.items():
        eventlet.spawn(eventlet.wsgi.server, sockets[name], app(conf), log_output=False)
    path = os.path.join(folder, "proxy.conf")
    with open(path, "w", encoding="utf-8") as f:
        f.write(PROXY.format(folder))
    listener = eventlet.listen(("127.0.0.1", 0))
    app = loadapp(path)
    print(listener.getsockname()[1], flush=True)

    cache = Cache()

    def with_cache(env, start_response):
        env["swift.cache"] = cache
        return app(env, start_response)

    eventlet.wsgi.server(listener, with_cache, log_output=False)


if __name__ == "__main__":
    main(sys.argv[1])

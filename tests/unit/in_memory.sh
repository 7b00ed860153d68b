#!/bin/sh
# Runs a test with a /tmp of its own, in memory: on a disk, commits and thousands of small files take most
# of the time.  Where the kernel does not let us, or the tree is below /tmp itself, it runs as it is.
#
#   tests/unit/in_memory.sh PROGRAM
case $PWD/ in /tmp/*) exec "$@" ;; esac
case $1 in /tmp/*) exec "$@" ;; esac
for with in -m -rm; do
    if unshare $with mount -t tmpfs tmpfs /tmp 2>/dev/null; then
        # shellcheck disable=SC2016
        exec unshare $with sh -c 'mount -t tmpfs tmpfs /tmp && exec "$0" "$@"' "$@"
    fi
done
exec "$@"

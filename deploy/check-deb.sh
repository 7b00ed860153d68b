#!/bin/sh
# Installs the package in a fresh system and trains with it there.  Needs root, debootstrap and a
# mirror.
#
#   deploy/check-deb.sh PACKAGE.deb FOLDER [SUITE [MIRROR]]      (make check-deb)
#   deploy/check-deb.sh CHECKOUT    FOLDER [SUITE [MIRROR]]      (make check-systems)
#
# Of a checkout, the package is made in that system, of what is committed.  SUITE is bookworm (the
# default), trixie or noble.  FOLDER is made, holds the system, and is reused by the next run when it
# is complete.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
from=$1
system=$2
suite=${3:-bookworm}
inside() { chroot "$system" "$@"; }

debian() { debootstrap --variant=minbase "$suite" "$system" "${1:-http://deb.debian.org/debian}"; }

# Debian has neither Ubuntu's keys nor, for its newest suites, debootstrap's script, which is the same for all.
ubuntu() {
    keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    [ -e "$keys" ] || echo "check-deb: without $keys the packages of $suite are not verified" >&2
    debootstrap --variant=minbase --components=main,universe \
        "$([ -e "$keys" ] && echo "--keyring=$keys" || echo --no-check-gpg)" \
        "$suite" "$system" "${1:-http://archive.ubuntu.com/ubuntu}" /usr/share/debootstrap/scripts/gutsy
}

if [ ! -e "$system/.complete" ]; then
    rm -rf "$system"
    mkdir -p "$system"
    case $suite in
    noble) ubuntu "${4:-}" >/dev/null ;;
    *) debian "${4:-}" >/dev/null ;;
    esac
    touch "$system/.complete"
fi
cp /etc/resolv.conf "$system/etc/resolv.conf"
inside apt-get -qq update
if [ -d "$from" ]; then
    rm -rf "$system/root/skerry"
    mkdir "$system/root/skerry"
    git -C "$from" archive HEAD | tar -x -C "$system/root/skerry"
    # shellcheck disable=SC2016
    inside sh -ec 'cd /root/skerry
        deploy/install-deps.sh build
        apt-get -qq --yes --no-install-recommends install dpkg-dev >/dev/null
        make -s -j"$(nproc)" CUDA=0 WERROR=1 deb
        mv build/skerry_*.deb /root/skerry.deb'
else
    cp "$from" "$system/root/skerry.deb"
fi
inside apt-get -qq --yes purge skerry >/dev/null 2>&1 || true
inside apt-get -qq --yes --no-install-recommends install /root/skerry.deb >/dev/null
inside dpkg -s skerry | grep -E '^(Status|Version)'
mountpoint -q "$system/proc" || mount -t proc proc "$system/proc"
trap 'umount "$system/proc"' EXIT

rm -rf "$system/srv/skerry"
mkdir -p "$system/srv/skerry"
/usr/bin/python3 -c "
import sys
sys.path.insert(0, '$here/../tests/tools')
import dataset
dataset.make('$system/srv/skerry/data', classes=2, images=64, size=16, fmt='png')"
cat >"$system/srv/skerry/job.yaml" <<'JOB'
name: packaged
data: {path: data, image_size: 16, holdout: 0.1, shard_samples: 32}
model: {patch: 4, dim: 32, depth: 2, heads: 2}
train: {batch: 8}
recipe: {name: diloco, replicas: 1}
outer: {rounds: 2, steps: 4}
JOB
chown -R nobody "$system/srv/skerry"
# As the units start them, but for systemd.
cat >"$system/srv/skerry/go" <<'GO'
set -eu
umask 077
cd /srv/skerry
export HOME=/srv/skerry
coordinatord --config /etc/skerry/coordinator.yaml --listen 127.0.0.1 --data-dir state >coordinatord.log 2>&1 &
c=$!
for i in $(seq 100); do [ -e state/worker.token ] && [ -e state/user.token ] && break; sleep 0.1; done
workerd --join @state/worker.token --work-dir work --device cpu --threads 1 >workerd.log 2>&1 &
w=$!
skerry login @state/user.token
skerry submit job.yaml
skerry watch
skerry status
skerry export --out model
ls -l model
kill $w; wait $w
kill $c; wait $c
GO
inside setpriv --reuid=nobody --regid=nogroup --clear-groups sh /srv/skerry/go ||
    { tail -5 "$system"/srv/skerry/*.log; exit 1; }
inside apt-get -qq --yes purge skerry >/dev/null
[ ! -e "$system/usr/bin/skerry" ] && echo "check-deb: installed, trained and removed in $system"

#!/bin/sh
# Installs what Skerry needs and says what it did.
#
#   deploy/install-deps.sh build     compile the three programs and run a swarm
#   deploy/install-deps.sh demo      build + what `make demo` needs (emoji font, names)
#   deploy/install-deps.sh test      demo + what `make test` and `make lint` need
#                                    (Debian 12 alone: compilers of other versions warn of other things)
#   deploy/install-deps.sh --check   print what is missing, install nothing (exit 1 if any)
#
# Why each package is here: docs/dependencies.md.  CUDA is not installed by this
# script; a CUDA toolkit that is already there is found by `make` (CUDA=auto).
set -eu

BUILD="gcc make pkg-config libuv1-dev libprotobuf-c-dev protobuf-c-compiler
 libcurl4-gnutls-dev libgnutls28-dev libmicrohttpd-dev libsqlite3-dev
 libjansson-dev libyaml-dev libvips-dev libarchive-dev libzstd-dev
 libutf8proc-dev libexpat1-dev"
DEMO="fonts-noto-color-emoji unicode-data ca-certificates"
TEST="libcmocka-dev libdnnl-dev clang clang-format lld libclang-rt-14-dev python3
 python3-venv python3-pytest python3-pytest-xdist python3-numpy python3-torch python3-yaml
 python3-jsonschema python3-pil python3-requests
 chromium chromium-driver python3-selenium curl zstd systemd dpkg-dev
 nginx-light libnginx-mod-stream openssl python3-swift
 slurmctld slurmd slurm-client munge iproute2"

check=0
set_name=build
for arg in "$@"; do
    case $arg in
    --check) check=1 ;;
    build | demo | test) set_name=$arg ;;
    -h | --help) sed -n '2,12p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "install-deps: unknown argument '$arg'; expected build, demo, test or --check" >&2; exit 2 ;;
    esac
done
case $set_name in
build) want=$BUILD ;;
demo) want="$BUILD $DEMO" ;;
test) want="$BUILD $DEMO $TEST" ;;
esac

system=$(. /etc/os-release 2>/dev/null && echo "$ID ${VERSION_ID:-}") || system=""
case $system in
"debian 11" | "debian 10" | "ubuntu 18."* | "ubuntu 20."* | "ubuntu 22."* | "ubuntu 23."*)
    echo "install-deps: $system is too old: its libvips, jansson and C library lack what Skerry uses; expected Debian 12 or" \
        "Ubuntu 24.04, or newer; deploy/container makes an image that runs here" >&2
    exit 1 ;;
esac

missing=""
for p in $want; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
if [ -z "$missing" ]; then
    echo "install-deps: all packages for '$set_name' are already installed"
    exit 0
fi
if [ $check = 1 ]; then
    echo "install-deps: missing for '$set_name':$missing"
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "install-deps: this script needs Debian's apt-get; install by hand:$missing" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "install-deps: run as root, or install sudo; missing:$missing" >&2; exit 1; }
    sudo=sudo
fi
echo "install-deps: installing for '$set_name':$missing"
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
echo "install-deps: done"

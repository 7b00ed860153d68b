#!/bin/sh
# Makes (or completes) a Python virtual environment with the references that
# `make check-latents` compares with, from PyPI; what is compared with is pinned.
#
#   deploy/test-venv.sh DIR
#
# A few gigabytes, most of them torch's.  A second call with the same set does nothing.
set -eu

WANT="torch==2.15.0 transformers==5.23.0 diffusers==0.42.1 tokenizers==0.23.3 sentencepiece==0.2.3
 peft==0.21.2 pyarrow==26.0.1 protobuf numpy safetensors pillow pytest requests accelerate tensorboard==2.21.0
 wandb==0.31.0 mlflow-skinny==3.17.2 kubernetes-validate==1.37.0 dockerfile-parse==2.0.1 python-hcl2==8.1.4
 aiohttp aiosqlite alembic casbin colorama greenlet ijson orjson paramiko passlib prettytable
 prometheus-client psycopg2-binary sqlalchemy sqlalchemy-adapter"
# Of open-clip-torch only the file of CLIP's merges is read: without what it depends on.  SkyPilot wants
# another click than wandb does, for its command, which nobody runs; the rest that it imports is above.
BARE="open-clip-torch==3.3.0 skypilot==0.14.1"

case ${1:-} in
'' | -h | --help) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
esac
dir=$1
if [ "$(cat "$dir/.installed" 2>/dev/null)" = "$WANT $BARE" ]; then
    echo "test-venv: $dir already has all packages"
    touch "$dir/.installed"
    exit 0
fi
mkdir -p "$dir"
free=$(df -Pk "$dir" | awk 'NR == 2 {print int($4 / 1048576)}')
if [ "$free" -lt 8 ]; then
    echo "test-venv: $dir has $free GiB of free disk, the references take 6; name another folder with VENV=" >&2
    exit 1
fi
[ -x "$dir/bin/python" ] || "${PYTHON:-python3}" -m venv "$dir"
echo "test-venv: installing into $dir:" $WANT $BARE
# Byte-compiling what is never imported takes longer than importing what is.
# shellcheck disable=SC2086
"$dir/bin/pip" install -q --no-compile --disable-pip-version-check $WANT
# shellcheck disable=SC2086
"$dir/bin/pip" install -q --no-compile --disable-pip-version-check --no-deps $BARE
echo "$WANT $BARE" >"$dir/.installed"
echo "test-venv: done"

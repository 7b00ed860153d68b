#!/bin/sh
# Prints a C file that holds the given files: web_assets.sh FILE... >OUT.c
# Needs nothing but a POSIX shell, od, sed, cksum and tr.
set -eu
echo '#include "coordinator/http/web_assets.h"'
i=0
table=
for file; do
    echo "static const unsigned char file_$i[] = {"
    od -An -v -tx1 "$file" | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g'
    echo '};'
    etag=$(cksum <"$file" | tr ' ' -)
    table="$table    { \"$(basename "$file")\", \"$etag\", file_$i, sizeof file_$i },
"
    i=$((i + 1))
done
echo 'const struct web_asset web_assets[] = {'
printf '%s' "$table"
echo '};'
echo 'const size_t web_assets_count = sizeof web_assets / sizeof web_assets[0];'

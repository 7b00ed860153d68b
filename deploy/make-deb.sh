#!/bin/sh
# Makes a Debian package of the three programs, their units and their documentation.
#
#   deploy/make-deb.sh FOLDER-OF-PROGRAMS FOLDER-FOR-THE-PACKAGE      (make deb)
#
# Dependencies come from the programs (dpkg-shlibdeps); the same commit gives the same bytes.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
top=$here/..
version=$(cat "$top/VERSION")
arch=$(dpkg --print-architecture)
: "${SOURCE_DATE_EPOCH:=$(git -C "$top" log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH
# Of a version that is installed apt installs nothing: a later commit is a newer one.
newer=$version+$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d.%H%M%S)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/debian/skerry
put() { install -D -m "$1" "$2" "$root/$3"; }

for p in coordinatord workerd skerry; do
    put 755 "$bin/$p" "usr/bin/$p"
    strip --strip-unneeded "$root/usr/bin/$p"
done
"$bin/skerry" completion bash >"$work/completion"
put 644 "$work/completion" usr/share/bash-completion/completions/skerry
for u in coordinatord workerd workerd-devices; do
    put 644 "$here/systemd/$u.service" "lib/systemd/system/$u.service"
done
put 644 "$here/systemd/journald@skerry.conf" "lib/systemd/journald@skerry.conf.d/skerry.conf"
put 644 "$here/deb/coordinator.yaml" etc/skerry/coordinator.yaml
put 644 "$here/deb/workerd.default" etc/default/workerd
doc=usr/share/doc/skerry
put 644 "$top/LICENSE" $doc/copyright
put 644 "$top/README.md" $doc/README.md
for d in "$top"/docs/[!.]*.md "$top"/docs/openapi.yaml; do
    [ "$(basename "$d")" = job.head.md ] && continue
    put 644 "$d" "$doc/$(basename "$d")"
done
for c in "$here"/cloud-init/*.yaml; do
    put 644 "$c" "$doc/cloud-init/$(basename "$c")"
done
put 644 "$here/grafana/skerry.json" "$doc/grafana/skerry.json"
put 644 "$here/prometheus/alerts.yaml" "$doc/prometheus/alerts.yaml"
for c in stream page; do
    put 644 "$here/nginx/$c.conf" "$doc/nginx/$c.conf"
done

mkdir -p "$root/DEBIAN"
for s in postinst prerm postrm; do
    put 755 "$here/deb/$s" "DEBIAN/$s"
done
printf '/etc/%s\n' skerry/coordinator.yaml default/workerd >"$root/DEBIAN/conffiles"
printf 'Source: skerry\n\nPackage: skerry\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O debian/skerry/usr/bin/* | sed -n 's/^shlibs:Depends=//p')
size=$(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f1)
sed -e "s|@VERSION@|$newer|" -e "s|@ARCH@|$arch|" -e "s|@SIZE@|$size|" -e "s|@DEPENDS@|$depends|" \
    "$here/deb/control.in" >"$root/DEBIAN/control"
(cd "$root" && find usr lib etc -type f | LC_ALL=C sort | xargs md5sum >DEBIAN/md5sums)
dpkg-deb --root-owner-group -Zxz --build "$root" "$out/skerry_${version}_$arch.deb" >/dev/null
echo "$out/skerry_${version}_$arch.deb"

#!/usr/bin/env bash
# tests/compat/reference.sh DIR [valkey|redis]
#
# The servers Flagstone is compared with, built from Debian trixie's source packages without touching the system: Valkey 8.1
# (the reference) or Redis 8.0 (for the expiry of hash fields, which Valkey 8.1 lacks). Afterwards DIR/NAME holds the
# source with its TCL test suite and DIR/NAME/src the built NAME-server. Needs dpkg-dev, gcc, make and tcl; the first run
# takes some minutes, a later one does nothing.
set -euo pipefail

directory=$(realpath -m "$1")
name=${2:-valkey}
source=$directory/$name

case $name in
  valkey | redis) ;;
  *) echo "reference.sh: $name is neither valkey nor redis" >&2; exit 2 ;;
esac
for tool in apt-get dpkg-source gcc make tclsh; do
  command -v "$tool" >/dev/null || { echo "reference.sh: $tool is missing (Debian: dpkg-dev gcc make tcl)" >&2; exit 1; }
done

# The mirror this system uses already, with either syntax of apt's source lists; Debian's own where there is none.
debian_mirror() {
  local uri
  uri=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    sed -nE 's/^URIs: *([^ ]+).*/\1/p; s/^deb( +\[[^]]*\])? +([^ ]+).*/\2/p' |
    { grep -v security || true; } | sed -n 1p)
  echo "${uri:-http://deb.debian.org/debian}"
}

download() {
  mkdir -p "$directory/lists/partial" "$directory/archives/partial" "$directory/packages"
  printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' "$(debian_mirror)" \
    >"$directory/sources.list"
  local apt=(
    -qq -o Dir::Etc::sourcelist="$directory/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::Lists="$directory/lists" -o Dir::Cache="$directory" -o APT::Sandbox::User=root
  )
  apt-get "${apt[@]}" update
  (cd "$directory/packages" && apt-get "${apt[@]}" source --download-only "$name")
  dpkg-source --no-check -x "$directory/packages/$name"_*.dsc "$source" >/dev/null
}

[ -d "$source/tests" ] || download
if ! [ -x "$source/src/$name-server" ]; then
  log=$directory/build-$name.log
  make -C "$source" -j"$(nproc)" MALLOC=libc >"$log" 2>&1 || { tail -n 5 "$log" >&2; exit 1; }
fi
"$source/src/$name-server" --version

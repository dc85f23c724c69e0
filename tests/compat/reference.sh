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

# Fetches the newest version that is there whole, or else the archive of the upstream source alone: a mirror's index may
# name a revision of the package that its pool does not have yet, or no longer.
download() {
  mkdir -p "$directory/lists/partial" "$directory/archives/partial" "$directory/packages"
  printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' "$(debian_mirror)" \
    >"$directory/sources.list"
  local apt=(
    -qq -o Dir::Etc::sourcelist="$directory/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::Lists="$directory/lists" -o Dir::Cache="$directory" -o APT::Sandbox::User=root
  )
  apt-get "${apt[@]}" update
  local version versions log=$directory/download-$name.log
  versions=$(apt-cache "${apt[@]}" showsrc --only-source "$name" | sed -n 's/^Version: //p' | sort -Vru)
  : >"$log"
  for version in $versions; do
    (cd "$directory/packages" && apt-get "${apt[@]}" source --download-only "$name=$version") >>"$log" 2>&1 && break
  done
  unpack "$log"
}

# Unpacks the package, with Debian's patches where its description came along. What apt keeps it has checked against the
# signed index. An unpacking that is broken off leaves nothing that looks whole.
unpack() {
  local packages=$directory/packages fresh=$source.part description archive
  description=$(find "$packages" -name "${name}_*.dsc" | sort -V | tail -n 1)
  archive=$(find "$packages" -name "${name}_*.orig.tar.*" ! -name '*.asc' | sort -V | tail -n 1)
  rm -rf "$fresh" "$source"
  if [ -n "$description" ] && dpkg-source --no-check -x "$description" "$fresh" >>"$1" 2>&1; then
    :
  elif [ -n "$archive" ]; then
    echo "reference.sh: the package of $name is not there whole; building ${archive##*/} without Debian's patches" >&2
    rm -rf "$fresh"
    mkdir "$fresh"
    tar -xf "$archive" -C "$fresh" --strip-components 1
  else
    cat "$1" >&2
    echo "reference.sh: the mirror has no source of $name" >&2
    exit 1
  fi
  mv "$fresh" "$source"
}

[ -d "$source/tests" ] || download
if ! [ -x "$source/src/$name-server" ]; then
  log=$directory/build-$name.log
  make -C "$source" -j"$(nproc)" MALLOC=libc >"$log" 2>&1 || { tail -n 5 "$log" >&2; exit 1; }
fi
"$source/src/$name-server" --version

# Sourced by the scripts beside it: a Python environment in .venv, with the versions of constraints.txt.
# shellcheck shell=bash
set -euo pipefail
{ : <&0; } 2>/dev/null || exec </dev/null # a closed standard input would be handed out as some file's number

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
ME=scripts/${0##*/}
cd -- "$ROOT"

# Debian packages that the tests need, as command:package. Those whose command is missing are installed (when root).
DEBIAN_PACKAGES="
  mount:mount ps:procps faketime:faketime nginx:nginx-light openssl:openssl gcc:gcc gencat:libc6-dev
  bwrap:bubblewrap systemctl:systemd dbus-daemon:dbus ip:iproute2 qemu-system-x86_64:qemu-system-x86
  busybox:busybox-static depmod:kmod cpio:cpio exportfs:nfs-kernel-server mount.nfs:nfs-common
  mkfs.ext4:e2fsprogs
"

say() { printf '%s: %s\n' "$ME" "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# Run "$@" with its output in a file; show the file's end if it fails.
quietly() {
  local log status=0
  log=$(mktemp "${TMPDIR:-/tmp}/tandem.XXXXXX")
  "$@" >"$log" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    say "failed (exit status $status): $*"
    tail -n 25 -- "$log" | sed 's/^/    /' >&2
  fi
  rm -f -- "$log"
  return "$status"
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local name
  for name in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.14; do
    if is_new_enough "$name"; then
      printf '%s\n' "$name"
      return 0
    fi
  done
  die "no Python 3.11 or later found. Install one (on Debian: apt-get install python3 python3-venv), or set PYTHON."
}

make_venv() {
  local python
  python=$(find_python)
  say "making .venv with $("$python" --version)"
  rm -rf -- .venv
  if ! quietly "$python" -m venv .venv; then
    rm -rf -- .venv # half of one would pass for whole next time
    die "'$python -m venv' doesn't work here. On Debian: apt-get install python3-venv. Then run $ME again."
  fi
}

# ensure_env EXTRAS: .venv holds the package (editable) with at least these extras, separated by commas.
ensure_env() {
  local stamp=.venv/tandem-stamp state have="" want started=$SECONDS
  if [ -f "$stamp" ] && [ "$(sed -n 3p "$stamp")" != "$ROOT" ]; then
    make_venv # the folder was moved or copied: the commands in .venv name the old place
  fi
  is_new_enough .venv/bin/python || make_venv
  state=$({
    .venv/bin/python --version
    cat pyproject.toml constraints.txt
  } | .venv/bin/python -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')
  if [ -f "$stamp" ] && [ "$(sed -n 1p "$stamp")" = "$state" ]; then
    have=$(sed -n 2p "$stamp")
  fi
  want=$(printf '%s' "$have,$1" | tr , '\n' | sed '/^$/d' | sort -u | paste -sd, -)
  if [ "$have" != "$want" ]; then
    say "installing tandem-eval[$want] into .venv (a minute or less with a good connection)"
    rm -f -- "$stamp"
    .venv/bin/python -m pip --version >/dev/null 2>&1 || quietly .venv/bin/python -m ensurepip ||
      die "there is no pip in .venv, and it can't be made. Remove .venv, then run $ME again."
    # What builds the package is held to the same versions: pip 26.2 and later read that from PIP_BUILD_CONSTRAINT,
    # earlier ones from PIP_CONSTRAINT. Relative: pip splits these at white space, and a folder's name may hold some.
    quietly env PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
      .venv/bin/python -m pip install --disable-pip-version-check --no-input -c constraints.txt -e ".[$want]" ||
      die "pip couldn't install it (see above). Check the network and pip's own configuration, then run $ME again."
    printf '%s\n' "$state" "$want" "$ROOT" >"$stamp"
    say "installed in $((SECONDS - started)) s"
  fi
  PATH=$ROOT/.venv/bin:$PATH
  export PATH
}

ensure_debian_packages() {
  local pair missing=""
  for pair in $DEBIAN_PACKAGES; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair##*:}"
  done
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    say "not installed:$missing. Tests that need them will skip; on Debian: apt-get install$missing (as root)."
    return 0
  fi
  say "installing Debian packages:$missing"
  quietly apt-get update || die "apt-get update failed (see above)"
  # shellcheck disable=SC2086
  quietly env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing ||
    die "apt-get install$missing failed (see above)"
}

"""A real systemd as process 1 of namespaces of its own, over an overlay of this machine's root: nothing of what it does
is left behind. Needs root, and Debian's `systemd`, `util-linux` and `iproute2`.

Inside: the project at /opt/src, the interpreter that runs the tests at /opt/python with its packages at /opt/site, a
folder of the test's own at /mnt.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import ROOT, until

NEEDED = ("unshare", "nsenter", "mount", "ip", "systemctl", "systemd-analyze")
SYSTEMD = Path("/lib/systemd/systemd")
ENVIRONMENT = {"PATH": "/opt/tandem/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
PYTHON = "/opt/python/bin/" + Path(os.path.realpath(sys.executable)).name
PYTHON_ENVIRONMENT = {
    "PYTHONPATH": "/opt/src:/opt/site",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LD_LIBRARY_PATH": "/opt/python/lib",  # of an interpreter that was built to lie elsewhere
}

# $1: the tmpfs to work in; $2: the test's folder; $3 $4 $5: project, interpreter, packages.
INIT = r"""
set -e
work=$1; root=$work/root
mkdir "$work/upper" "$work/scratch" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/scratch" "$root"
rm -rf "$root"/etc/systemd/system/*.wants; : > "$root/etc/machine-id"
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n' > "$root/etc/systemd/system/box.target"
mount -t proc proc "$root/proc"; mount -t sysfs -o ro sysfs "$root/sys"; mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  mknod -m 666 "$root/dev/$device" c $(stat -c '0x%t 0x%T' "/dev/$device")
done
ln -s /proc/self/fd "$root/dev/fd"; mkdir -p "$root/dev/pts" "$root/dev/shm"; mount -t tmpfs tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"; ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=755 tmpfs "$root/run"; mkdir -p "$root/tmp" "$root/opt/src" "$root/opt/python" "$root/opt/site"
mount --bind "$2" "$root/mnt"
mount --bind "$3" "$root/opt/src"; mount --bind "$4" "$root/opt/python"; mount --bind "$5" "$root/opt/site"
for folder in src python site; do mount -o remount,bind,ro "$root/opt/$folder"; done
ip link set lo up; hostname box
cd "$root"; mkdir -p old; pivot_root . old; umount -l /old
mount --make-rshared /  # or LoadCredential= stays empty
exec env -i container=unshare PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=box.target
"""


class Box:
    """Commands in it run as root with `run`, which gives their output."""

    def __init__(self, leader: int) -> None:
        self._enter = ["nsenter", "-t", str(leader), "-m", "-u", "-i", "-n", "-p", "-C", "--root", "--"]
        self._enter += ["env", "-C", "/", "-i", *(f"{name}={value}" for name, value in ENVIRONMENT.items())]

    def run(self, *command: str, code: int | None = 0, timeout: float = 60.0) -> str:
        """code: the exit status that it must have; None: any."""
        ended = subprocess.run(
            [*self._enter, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
        assert code is None or ended.returncode == code, f"{command}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout + ended.stderr

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit."""
        lines = self.run("systemctl", "show", unit, "-p", ",".join(names)).splitlines()
        return dict(line.split("=", 1) for line in lines)  # type: ignore[misc]

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "-u", unit, "--no-pager", "-o", "cat")


def skip_without_systemd() -> None:
    missing = [name for name in NEEDED if shutil.which(name) is None] + [str(SYSTEMD)] * (not SYSTEMD.exists())
    reason = f"not installed: {', '.join(missing)}" if missing else "needs root" if os.getuid() else ""
    if not reason:
        probe = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount", "--cgroup", "--net", "true"], capture_output=True, text=True
        )
        reason = probe.stderr.strip()
    if reason:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@contextmanager
def booted(folder: Path) -> Iterator[Box]:
    """folder: where the box may work, and what it shows as /mnt is in it."""
    work, shared = folder / "box", folder / "mnt"
    work.mkdir()
    shared.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500m", "tmpfs", str(work)], check=True)
    places = [str(ROOT), sys.base_prefix, sysconfig.get_paths()["purelib"]]
    with (folder / "console").open("wb") as console:
        outer = subprocess.Popen(
            [
                *("unshare", "--fork", "--kill-child", "--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup"),
                *("--propagation", "private", "bash", "-c", INIT, "init", str(work), str(shared), *places),
            ],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )
    try:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        leader = int(until(lambda: children.read_text().split(), "it has a process 1")[0])
        box = Box(leader)

        def is_up() -> bool:
            assert outer.poll() is None, (folder / "console").read_text(errors="replace")
            return box.run("systemctl", "is-system-running", code=None).strip() in ("running", "degraded")

        until(is_up, f"systemd is up: {(folder / 'console').read_text(errors='replace')}")
        yield box
    finally:
        outer.send_signal(signal.SIGKILL)  # its children go with it
        outer.wait()
        subprocess.run(["umount", "-l", str(work)], check=True)

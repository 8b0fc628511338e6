"""A machine of its own, for what the kernel at hand can't do: Debian's kernel in QEMU, emulated, with the host's files.

The host's root is read-only in it, under an overlay that is forgotten; what is to stay goes to `/out`. It needs no KVM
and no image: the kernel comes as Debian's package. Everything in it is ten to thirty times slower than outside.
"""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

COMMANDS = ("qemu-system-x86_64", "busybox", "depmod", "cpio", "exportfs", "mount.nfs", "mkfs.ext4", "ip", "apt-get")
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")  # to reach the host's files
LONGEST = 1200  # seconds that a script may take in it

_INIT = """#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sysfs /sys; $B mount -t devtmpfs dev /dev
for module in $($B cat /modules/list); do $B insmod /modules/$module; done
$B mkdir -p /host /rw /new
plan9="trans=virtio,version=9p2000.L,msize=1048576"
$B mount -t 9p -o $plan9,cache=loose,ro host /host
$B mount -t tmpfs -o size=1g tmpfs /rw; $B mkdir -p /rw/upper /rw/work
$B mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new
$B mkdir -p /new/out /new/proc /new/sys /new/dev
$B mount -t 9p -o $plan9 out /new/out
for folder in proc sys dev; do $B mount --move /$folder /new/$folder; done
exec $B switch_root /new /out/init
"""


class Machine:
    """folder: for the kernel, and for what scripts leave (`folder/out` is `/out` in it)."""

    def __init__(self, folder: Path) -> None:
        _need()
        self._folder = folder
        self.out = folder / "out"
        self.out.mkdir()
        self.modules = folder / "kernel"  # for `modprobe -d`
        self._kernel = _fetch_kernel(folder, self.modules)
        self._initrd = _pack(folder / "initrd", self.modules)

    def run(self, script: str) -> str:
        """The script's exit status must be 0; returns the console's text."""
        init = self.out / "init"
        init.write_text(
            "#!/bin/bash\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1\n"
            f"(\n{script}\n)\necho $? > /out/status\nsync\necho o > /proc/sysrq-trigger\nsleep 60\n"
        )
        init.chmod(0o755)
        shared = "security_model=none,multidevs=remap"
        command = [
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "2048", "-smp", "2"),
            *("-nographic", "-no-reboot", "-net", "none", "-kernel", str(self._kernel), "-initrd", str(self._initrd)),
            *("-append", "console=ttyS0 quiet panic=-1"),
            *("-virtfs", f"local,path=/,mount_tag=host,readonly=on,{shared}"),
            *("-virtfs", f"local,path={self.out},mount_tag=out,{shared}"),
        ]
        console = self._folder / "console.txt"
        with console.open("wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
            try:
                process.wait(LONGEST)
            finally:
                process.kill()
                process.wait()
        text = console.read_text(errors="replace")
        status = self.out / "status"
        assert status.exists(), text[-6000:]
        assert status.read_text().strip() == "0", text[-6000:]
        return text


def _need() -> None:
    """Skips where this can't work, but never in CI."""
    missing = [
        command for command in COMMANDS if shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None
    ]
    if platform.machine() != "x86_64":
        pytest.skip("the machine for this test is emulated on x86-64 only")
    if not missing and os.geteuid() == 0:
        return
    why = f"needs {', '.join(missing)}" if missing else "needs root, to read all of the host's files"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def _fetch_kernel(folder: Path, target: Path) -> Path:
    """Debian's current kernel, unpacked below `target`."""
    told = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[-1] for line in told.splitlines() if "Depends: linux-image-" in line]
    subprocess.run(["apt-get", "-q", "download", names[0]], cwd=folder, capture_output=True, check=True)
    (package,) = folder.glob("linux-image-*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(target)], check=True)
    package.unlink()
    (kernel,) = (target / "boot").glob("vmlinuz-*")
    release = kernel.name.removeprefix("vmlinuz-")
    subprocess.run(
        ["depmod", "-b", str(target), release], check=True, env=os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin"}
    )
    return kernel


def _pack(folder: Path, modules: Path) -> Path:
    """The first file system of the machine: busybox, and the modules that reach the host's files."""
    for name in ("bin", "proc", "sys", "dev", "modules"):
        (folder / name).mkdir(parents=True)
    shutil.copy(str(shutil.which("busybox")), folder / "bin" / "busybox")
    (release,) = (modules / "lib" / "modules").iterdir()
    needs: dict[str, list[str]] = {}
    for line in (release / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
    paths = {Path(path).stem.replace("-", "_"): path for path in needs}
    order: list[str] = []

    def add(path: str) -> None:
        for other in reversed(needs[path]):
            add(other)
        if path not in order:
            order.append(path)

    for name in MODULES:
        add(paths[name])
    for path in order:
        shutil.copy(release / path, folder / "modules")
    (folder / "modules" / "list").write_text("".join(f"{Path(path).name}\n" for path in order))
    (folder / "init").write_text(_INIT)
    (folder / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    packed = subprocess.run(
        ["cpio", "-o", "-H", "newc"], cwd=folder, input=names.encode(), capture_output=True, check=True
    )
    target = folder.with_suffix(".gz")
    target.write_bytes(gzip.compress(packed.stdout, 1))
    return target

"""What to do where no sandbox works, by what the machine says of itself and what the back ends said. Pure but for
`facts`, which reads a few files of /proc.
"""

from __future__ import annotations

from collections.abc import Mapping

_NAMESPACES = "/proc/sys/user/max_user_namespaces"
_DEBIAN = "/proc/sys/kernel/unprivileged_userns_clone"
_UBUNTU = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_OWN = "/proc/self/status"
_READ = 8000  # bytes of a file

Facts = Mapping[str, str]
"""By path, what those files hold; one that isn't there is absent."""

LAST = (
    "or score on another machine; only for programs you trust: "
    '`sandbox = "unsafe-subprocess"` under [eval]. See docs/code-exec.md'
)


def facts() -> Facts:
    found = {}
    for path in (_NAMESPACES, _DEBIAN, _UBUNTU, _OWN):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                found[path] = file.read(_READ).strip()
        except OSError:
            continue
    return found


def remedy(reasons: str, known: Facts, *, root: bool) -> str:
    """reasons: what the back ends said. root: whether evald runs as root, which needs no user namespaces."""
    steps = []
    if "isn't installed" in reasons:
        steps.append("install bubblewrap (Debian: apt-get install bubblewrap)")
    if not root and known.get(_DEBIAN) == "0":
        steps.append("let users make namespaces (sysctl -w kernel.unprivileged_userns_clone=1)")
    if not root and known.get(_UBUNTU) == "1":
        steps.append(
            "let bwrap make user namespaces (an AppArmor profile with `userns,` for it, or "
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    if not root and (known.get(_NAMESPACES) == "0" or _says(reasons, "No space left on device", "ENOSPC")):
        steps.append("allow more user namespaces (sysctl -w user.max_user_namespaces=10000)")
    if _says(reasons, "seccomp", "system call filtering"):
        steps.append("use a kernel with seccomp filters (CONFIG_SECCOMP_FILTER)")
    elif _says(reasons, "Operation not permitted", "Permission denied") and _is_filtered(known):
        steps.append(
            "in a container, allow namespaces and mounts (Docker, Podman: --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined)"
        )
    if _says(reasons, "execvp", "can't be started: [Errno 13]"):
        steps.append("install evald's Python where the user who runs it can read it")
    return ", ".join([*(steps or ["install bubblewrap (Debian: apt-get install bubblewrap), allow namespaces"]), LAST])


def _says(reasons: str, *words: str) -> bool:
    return any(word in reasons for word in words)


def _is_filtered(known: Facts) -> bool:
    """Whether somebody else's filter for system calls holds for evald itself, as in containers."""
    return any(line.split() == ["Seccomp:", "2"] for line in known.get(_OWN, "").splitlines())

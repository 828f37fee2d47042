"""Runs the services of compose files without a container engine: each in Linux namespaces of its own.

Every service gets a network namespace with an address on one bridge, its own hostname and /etc/hosts, and a root
directory in which the files and secrets that the compose file mounts are where the service looks for them: an overlay
over this machine's root, so that the same Python runs. What is not imitated: users, capabilities, read-only roots,
resource limits, devices. Needs root.
"""

import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.cli.local_redis import find_redis_server
from tests.support.compose_project import Project

NETWORK = "10.213.77"


def can_make_namespaces() -> bool:
    """Root, iproute2, and a kernel that lets us."""
    if os.geteuid() or shutil.which("ip") is None:
        return False
    name = f"frprobe{os.getpid() % 10000}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=False)
    return made


def _ip(*arguments: str, namespace: str | None = None) -> None:
    inside = ["-n", namespace] if namespace else []
    subprocess.run(["ip", *inside, *arguments], check=True, capture_output=True)


@dataclass
class Container:
    """One service that runs, or ran."""

    name: str
    address: str
    namespace: str
    link: str
    """Its end of the cable at the bridge."""
    folder: Path
    command: Sequence[str]
    environment: Mapping[str, str]
    health: Sequence[str]
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.folder / "log"

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None


@dataclass
class Nodes:
    """A started topology. A context manager by ``running``."""

    folder: Path
    bridge: str
    containers: dict[str, Container] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Starts, or starts again, one service."""
        container = self.containers[name]
        script = container.folder / "start.sh"
        with container.log.open("ab") as log:
            container.process = subprocess.Popen(
                ["ip", "netns", "exec", container.namespace, "unshare", "--uts", "--mount", "--pid", "--fork",
                 "--kill-child", "--mount-proc", "sh", str(script)],
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """As when its machine loses power: no process of it is left."""
        container = self.containers[name]
        if container.runs:
            assert container.process is not None
            os.killpg(container.process.pid, signal.SIGKILL)
            container.process.wait()

    def cut(self, name: str) -> None:
        """Pulls the cable: what is under way is lost, connections stay half open."""
        _ip("link", "set", self.containers[name].link, "down")

    def mend(self, name: str) -> None:
        """Puts the cable back."""
        _ip("link", "set", self.containers[name].link, "up")

    def exec(self, name: str, *command: str, timeout_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
        """Runs a command inside a service's namespaces, as ``docker exec`` does."""
        container = self.containers[name]
        inside = ["nsenter", "--target", str(self._first_process(container)), "--net", "--uts", "--mount", "--root"]
        return subprocess.run(
            [*inside, *command],
            capture_output=True, text=True, check=False, timeout=timeout_s, env=dict(container.environment),
        )  # fmt: skip

    def is_healthy(self, name: str) -> bool:
        """By the compose file's own health check."""
        test = self.containers[name].health
        command = list(test[1:]) if test[0] == "CMD" else ["sh", "-c", test[1]]
        return self.containers[name].runs and self.exec(name, *command).returncode == 0

    def wait_healthy(self, *names: str, timeout_s: float) -> None:
        """Fails with the end of the log of what does not become healthy in time, or ends."""
        deadline = time.monotonic() + timeout_s
        for name in names:
            while not self.is_healthy(name):
                container = self.containers[name]
                if time.monotonic() > deadline or not container.runs:
                    raise AssertionError(f"{name} is not healthy: {container.log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.5)

    def _first_process(self, container: Container) -> int:
        """The child of unshare, which is process 1 in there."""
        assert container.process is not None
        pid = container.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0])


@dataclass(frozen=True, slots=True)
class Changes:
    """Where a topology differs from its files."""

    without: Sequence[str] = ()
    """Services that are left out."""
    more_arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of a service's command, by name."""
    replaced: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of a service that are others here, by name."""


@contextmanager
def running(projects: Sequence[Project], folder: Path, changes: Changes) -> Iterator[Nodes]:
    """Makes namespaces and files for every service; starts none of them."""
    nodes = Nodes(folder, f"frbr{os.getpid() % 100000}")
    services = {
        name: (project, {**service, **changes.replaced.get(name, {})})
        for project in projects
        for name, service in project.services.items()
        if name not in changes.without
    }
    _ip("link", "add", nodes.bridge, "type", "bridge")
    try:
        _ip("addr", "add", f"{NETWORK}.1/24", "dev", nodes.bridge)
        _ip("link", "set", nodes.bridge, "up")
        addresses = {name: f"{NETWORK}.{number}" for name, number in zip(services, itertools.count(10), strict=False)}
        for number, (name, (project, service)) in enumerate(services.items()):
            more = changes.more_arguments.get(name, ())
            nodes.containers[name] = _container(nodes, number, name, project, service, addresses, more)
        yield nodes
    finally:
        for name in nodes.containers:
            nodes.kill(name)
        for container in nodes.containers.values():
            # By name: a namespace, and its end of the cable, live on until its last half-open connection times out.
            subprocess.run(["ip", "link", "del", container.link], check=False)
            subprocess.run(["ip", "netns", "del", container.namespace], check=False)
        subprocess.run(["ip", "link", "del", nodes.bridge], check=False)


def _container(
    nodes: Nodes,
    number: int,
    name: str,
    project: Project,
    service: Mapping[str, Any],
    addresses: Mapping[str, str],
    more: Sequence[str],
) -> Container:
    namespace, link = f"{nodes.bridge}-{name}", f"fr{os.getpid() % 10000}v{number}"
    _ip("netns", "add", namespace)
    _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    _ip("link", "set", link, "master", nodes.bridge, "up")
    _ip("addr", "add", f"{addresses[name]}/24", "dev", "eth0", namespace=namespace)
    for device in ("lo", "eth0"):
        _ip("link", "set", device, "up", namespace=namespace)
    folder = nodes.folder / name
    folder.mkdir(parents=True)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{find_redis_server(None).parent}:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/tmp",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        **{key: str(value) for key, value in service.get("environment", {}).items()},
    }
    container = Container(
        name, addresses[name], namespace, link, folder, [*service["command"], *more], environment,
        service.get("healthcheck", {}).get("test", ["CMD", "true"]),
    )  # fmt: skip
    (folder / "start.sh").write_text(_script(container, project, service, addresses))
    return container


def _script(container: Container, project: Project, service: Mapping[str, Any], addresses: Mapping[str, str]) -> str:
    root, upper, work, hosts = (container.folder / name for name in ("root", "upper", "work", "hosts"))
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items()))
    lines = [
        "set -e",
        f"hostname {container.name}",
        f"mkdir -p {root} {upper} {work}",
        f"mount -t overlay overlay -o lowerdir=/,upperdir={upper},workdir={work} {root}",
        *(f"mount --rbind /{each} {root}/{each}" for each in ("proc", "sys", "dev")),
        f"cp {hosts} {root}/etc/hosts",
        f"mount -t tmpfs tmpfs {root}/run",
        f"mkdir -p {root}/run/secrets",
    ]
    secrets = project.document.get("secrets", {})
    lines += [f"cp {secrets[name]['file']} {root}/run/secrets/{name}" for name in service.get("secrets", ())]
    for volume in service.get("volumes", ()):
        source, target = volume.split(":")[:2]
        if "/" not in source:
            lines.append(f"mkdir -p {root}{target}")
            continue
        path = (project.file.parent / source).resolve()
        parent = f"{root}{target}" if path.is_dir() else f"{root}{Path(target).parent}"
        lines.append(f"mkdir -p {parent}")
        lines.append(f"mount --rbind {path} {root}{target}" if path.is_dir() else f"cp {path} {root}{target}")
    lines += [f"mkdir -p {root}{each.split(':')[0]}" for each in service.get("tmpfs", ())]
    given = " ".join(shlex.quote(f"{key}={value}") for key, value in container.environment.items())
    command = " ".join(map(shlex.quote, map(str, container.command)))
    return "\n".join([*lines, f"exec chroot {root} env -i {given} {command}", ""])

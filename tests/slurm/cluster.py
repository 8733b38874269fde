"""A Slurm on this machine: a controller and two nodes on loopback, in a folder of their own."""

import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "setpriv")
NODES = ("c1", "c2")
GOES_ON = ("?", "PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING", "SUSPENDED")  # states of a job
CONF = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
MinJobAge=36000
SlurmdTimeout=300
BatchStartTimeout=120
MessageTimeout=60
UnkillableStepTimeout=180
SlurmdParameters=config_overrides
NodeName=c[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=16 Boards=1 SocketsPerBoard=1 \
CoresPerSocket=16 ThreadsPerCore=1 RealMemory=8000 State=UNKNOWN
PartitionName=low Nodes=c[1-2] Default=YES MaxTime=120 PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 State=UP
PartitionName=high Nodes=c[1-2] MaxTime=120 PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing() -> str:
    """What keeps Slurm from being started here, in words; empty: nothing."""
    # slurmctld and munged lie where only root's path looks.
    absent = [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else f"Slurm's daemons need root, this is {getpass.getuser()}"


def wait_for(what: str, condition: Callable[[], Any], timeout_s: float) -> Any:
    """The first true value of a condition; TimeoutError."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.25)
    return value


class Cluster:
    """`with Cluster() as slurm:` nodes c1 and c2, partitions `low`, which is preempted and queued again, and `high`."""

    def __enter__(self) -> "Cluster":
        # Not below pytest's folders: those are for one user, and munge's daemon is another.
        self.folder = Path(tempfile.mkdtemp(prefix="coca_slurm_"))
        self.folder.chmod(0o755)
        self._daemons: list[Path] = []
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        host = socket.gethostname().partition(".")[0]
        with open("/etc/hosts", "a+", encoding="utf-8") as hosts:  # ranks look MASTER_ADDR up
            hosts.seek(0)
            known = hosts.read().split()
            hosts.writelines(f"127.0.0.1 {name}\n" for name in (host, *NODES) if name not in known)
        for name in ("controller", *NODES, "munge"):
            (self.folder / name).mkdir()
        # Two ports in a row for the nodes, which slurm.conf takes as a range.
        begin = 27801 + os.getpid() % 1000
        first = next(port for port in range(begin, 32000, 3) if all(map(free, range(port, port + 3))))
        conf = CONF.format(host=host, folder=self.folder, ports=[first + 2, first, first + 1])
        (self.folder / "slurm.conf").write_text(conf)
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        for path in (munge, munge / "key"):
            shutil.chown(path, "munge", "munge")
        munge.chmod(0o711)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "COCA"))},
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        }
        options = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self.daemon(
            *("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--force"),
            *(f"--{name}={munge / value}" for name, value in options.items()),
            pid=munge / "pid",
        )
        self.daemon("slurmctld", "-c", pid=self.folder / "controller.pid")
        for node in NODES:
            self.daemon("slurmd", "-c", "-N", node, pid=self.folder / f"{node}.pid")
        wait_for("two idle nodes", lambda: self.call("sinfo", "-h", "-p", "low", "-o", "%T %D") == "idle 2", 90)

    def daemon(self, *command: str, pid: Path) -> None:
        self._daemons.append(pid)
        with open(self.folder / "start.log", "ab") as log:
            subprocess.run(command, env=self.environment, check=True, stdout=log, stderr=log, cwd=self.folder)

    def __exit__(self, *_: object) -> None:
        if (self.folder / "slurm.conf").exists():
            self.call("scancel", "--user", getpass.getuser(), check=False)
            with contextlib.suppress(TimeoutError):
                wait_for("an empty queue", lambda: not self.call("squeue", "-h", check=False), 45)
        for path in reversed(self._daemons):
            if path.exists() and (pid := path.read_text().strip()):
                end(int(pid))
        # What a job left behind: every process whose environment names our slurm.conf, and no other.
        for pid in self.processes():
            end(pid)
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self, *words: str, job: str = "") -> list[int]:
        """Ids of this Slurm's processes whose environment and command line hold these words."""
        ids = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environment, command = (path / "environ").read_bytes(), (path / "cmdline").read_bytes()
            except OSError:
                continue
            ours = f"SLURM_CONF={self.folder}/".encode() in environment or str(self.folder).encode() in command
            ours = ours and (not job or f"SLURM_JOB_ID={job}\0".encode() in environment)
            if ours and all(word.encode() in environment + command for word in words):
                ids.append(int(path.name))
        return sorted(ids)

    def batch_script(self, job: str) -> list[int]:
        """The id of its process, which is its oldest; none where it does not run."""
        return self.processes("/slurm_script\0", job=job)[:1]

    def call(self, *command: str, check: bool = True, **environment: str) -> str:
        done = subprocess.run(
            command, env={**self.environment, **environment}, capture_output=True, text=True, check=False, timeout=120
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def submit(self, *words: str, cwd: Path, **environment: str) -> str:
        """sbatch; the id of the job."""
        done = subprocess.run(
            ["sbatch", "--parsable", *words],
            env={**self.environment, **environment}, cwd=cwd, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """What the controller says of a job: JobState, Restarts, ExitCode, …"""
        text = self.call("scontrol", "show", "job", "--oneliner", job, check=False)
        return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text))

    def state(self, job: str) -> str:
        return self.job(job).get("JobState", "?")

    def ended(self, job: str, timeout_s: float) -> dict[str, str]:
        """Of a job that is over for good: neither running nor in the queue."""
        wait_for(f"the end of job {job}, which is {self.state(job)}", lambda: self._over(job), timeout_s)
        return self.job(job)

    def _over(self, job: str) -> bool:
        return self.state(job) not in GOES_ON and not self.call("squeue", "-h", "-j", job, check=False)


def free(port: int) -> bool:
    with socket.socket() as door:
        try:
            door.bind(("", port))
        except OSError:
            return False
        return True


def end(pid: int, patience_s: float = 10) -> None:
    """TERM, then KILL, one process."""
    for number, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 2.0)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        until = time.monotonic() + patience
        while time.monotonic() < until and Path(f"/proc/{pid}").exists():
            time.sleep(0.05)
        if not Path(f"/proc/{pid}").exists():
            return

# SPDX-License-Identifier: Apache-2.0
"""A whole Slurm on this machine: a controller and a slurmd per pretended node, below one folder.

Nothing of the system is touched: no file in /etc, no service, no fixed port. Nodes are called like
loopback addresses, so that the names in a node list can be connected to.
"""

import getpass
import os
import select
import socket
from pathlib import Path

from free_ports import free_ports
from started import LAUNCH_LIMIT_S, TOKEN, Failure, environment, expect, need, skip

TRIES = 3  # somebody may take a port between its choice and its use
CONFIGURATION = """
ClusterName=dttest
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={controller_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
TmpFS={folder}/tmp/%n
FirstJobId={first_job}
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
InactiveLimit=0
MailProg=/bin/true
PropagateResourceLimits=NONE
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=NO
"""


def loopback_name():
    """This host's name if it stands for loopback, else None: the daemons listen on its address."""
    name = socket.gethostname().split(".")[0]
    try:
        return name if socket.gethostbyname(name).startswith("127.") else None
    except OSError:
        return None


class Cluster:
    """`own_host_names`: each node has a host name of its own (root only). `first_job` is the number of the first
    job; ports follow from such numbers."""

    def __init__(self, launches, folder, nodes=2, cpus=4, own_host_names=False, first_job=1):
        need(["slurmctld", "slurmd", "srun", "sbatch", "salloc"], "slurmctld slurmd slurm-client")
        if os.geteuid() != 0 and (own_host_names or loopback_name() is None):
            skip("host names of their own for Slurm's daemons need root")
        self.launches = launches
        self.folder = Path(folder)
        # Without a name that stands for loopback the daemons would listen to the network.
        self.inside = [] if loopback_name() else ["unshare", "--uts", "sh", "-c", 'hostname localhost; exec "$@"', "sh"]
        self.host = loopback_name() or "localhost"
        self.names = [f"127.0.0.{i + 1}" for i in range(nodes)]
        self.own_host_names = own_host_names
        self.first_job = first_job
        for attempt in range(TRIES):
            try:
                self.start(cpus)
                return
            except Failure:
                if attempt == TRIES - 1:
                    raise

    def start(self, cpus):
        for part in ["state", "spool", "tmp"] + [f"{part}/{name}" for part in ("spool", "tmp") for name in self.names]:
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        controller_port, *ports = free_ports(1 + len(self.names))
        text = CONFIGURATION.format(host=self.host, user=getpass.getuser(), folder=self.folder,
                                    controller_port=controller_port, first_job=self.first_job)
        for name, port in zip(self.names, ports):
            address = name if self.own_host_names else "127.0.0.1"
            text += f"NodeName={name} NodeHostname={self.host} NodeAddr={address} Port={port} CPUs={cpus} State=UNKNOWN\n"
        self.configuration = self.folder / "slurm.conf"
        self.configuration.write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        self.environment = environment(SLURM_CONF=str(self.configuration), DT_TOKEN=TOKEN)
        self.launches.daemon(self.inside + ["slurmctld", "-i", "-D"], self.environment, "Running as primary controller",
                             self.folder / "slurmctld.log")
        for name in self.names:
            inside = self.inside
            if self.own_host_names:
                inside = ["unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"]
            self.launches.daemon(inside + ["slurmd", "-D", "-N", name], self.environment, "slurmd started",
                                 self.folder / f"slurmd.{name}.log")

    def run(self, *command, **variables):
        """A command of Slurm's, such as srun."""
        return self.launches.run(self.inside + list(command), {**self.environment, **variables}, cwd=self.folder)

    def batch(self, script, *options, **variables):
        """Runs the text as a batch script: exit code, what it printed, what sbatch said. The script tells its end
        through a pipe: sbatch --wait asks ever more seldom."""
        path, out, end = (self.folder / name for name in ("job.sh", "job.out", "job.end"))
        path.write_text(f"#!/bin/bash\n(\n{script}\n) >{out} 2>&1\necho $? >{end}\n")
        os.mkfifo(end)
        pipe = os.open(end, os.O_RDONLY | os.O_NONBLOCK)
        try:
            code, _, err = self.run("sbatch", "-o", "/dev/null", *options, str(path), **variables)
            expect(code == 0, err)
            expect(select.select([pipe], [], [], LAUNCH_LIMIT_S)[0], f"no end in {LAUNCH_LIMIT_S} s: {out.read_text()}")
            return int(os.read(pipe, 16)), out.read_text(), err
        finally:
            os.close(pipe)
            end.unlink()

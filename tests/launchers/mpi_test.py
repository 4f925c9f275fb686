#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mpi_test.py openmpi|hydra DT CHECK_PROGRAM TRAINER LIBRARY INCLUDE [PREFIX]: programs started by a real mpirun or
mpiexec, Debian's or that of PREFIX.

Two hosts are pretended by a replacement of ssh that gives each command a host name of its own (root only).
"""

import glob
import os
import re
import socket
import sys
import tempfile
from pathlib import Path

from free_ports import free_ports
from started import (Launches, downwards, environment, error_of, expect, good_downwards, good_places, need,
                     places, run_cases)
from trained import can_train, check_training, training_command

KIND = sys.argv[1]
DT, PROGRAM, TRAINER, LIBRARY, INCLUDE = (str(Path(argument).resolve()) for argument in sys.argv[2:7])
PREFIX = str(Path(sys.argv[7]).resolve()) if len(sys.argv) > 7 else None
OPENMPI = KIND == "openmpi"
PMIX = next(iter(glob.glob("/usr/lib/*/libpmix.so.2")), None)
COMPILER = f"{PREFIX}/bin/mpicc" if PREFIX else "/usr/bin/mpicc." + ("openmpi" if OPENMPI else "mpich")

FAKE_SSH = """#!/bin/sh
# ssh [options] HOST COMMAND: drops the options, and runs the command under that host name.
while [ "${1#-}" != "$1" ]; do
  case "$1" in -l | -p | -o | -i) shift ;; esac
  shift
done
host=$1
shift
exec unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
"""

# name, ranks on nodea and nodeb, options of mpirun, of mpiexec, host of each rank
LAYOUTS = [
    ("2 + 2", ["--host", "nodea:2,nodeb:2", "-n", "4"], ["-hosts", "nodea:2,nodeb:2", "-n", "4"], "aabb"),
    ("cyclic", ["--host", "nodea:2,nodeb:2", "--map-by", "node", "-n", "4"], ["-hosts", "nodea:1,nodeb:1", "-n", "4"],
     "abab"),
    ("3 + 1", ["--host", "nodea:3,nodeb:1", "-n", "4"], ["-hosts", "nodea:3,nodeb:1", "-n", "4"], "aaab"),
]


class Mpi:
    def __init__(self, launches, folder):
        self.launches, self.folder = launches, folder
        self.ssh = folder + "/ssh"
        self.mpirun = "mpirun.openmpi" if OPENMPI else "mpiexec.hydra"
        if PREFIX:
            self.mpirun = f"{PREFIX}/bin/" + ("mpirun" if OPENMPI else "mpiexec.hydra")
        version = launches.run([self.mpirun, "--version"])[1]
        self.intel = "Intel" in version
        # The component that starts Open MPI's daemons is called rsh before version 5.
        self.rsh = "rsh" if re.search(r"\(Open ?(MPI|RTE)\) [1-4]\.", version) else "ssh"
        Path(self.ssh).write_text(FAKE_SSH)
        os.chmod(self.ssh, 0o700)

    def command(self, options, hosts):
        if OPENMPI:
            remote = ["--mca", "plm", self.rsh, "--mca", f"plm_{self.rsh}_agent", self.ssh] if hosts else ["--oversubscribe"]
            return [self.mpirun, "--bind-to", "none", *remote, *options]
        remote = ["-launcher", "ssh", "-launcher-exec", self.ssh] if hosts else []
        if self.intel and options[0] == "-hosts":  # which takes no counts there
            machines = Path(self.folder, "machines")
            machines.write_text(options[1].replace(",", "\n") + "\n")
            options = ["-machinefile", str(machines), *options[2:]]
        return [self.mpirun, *remote, *options]

    def run(self, options, program, hosts=False, **variables):
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return self.launches.run(self.command(options, hosts) + program, environment(allowed, **variables),
                                 cwd=self.folder)


def given_address():
    """MASTER_ADDR and MASTER_PORT; Open MPI carries them to other hosts with -x only."""
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    return variables, ["-x", "MASTER_ADDR", "-x", "MASTER_PORT"] if OPENMPI else []


def own_address():
    """Of this host, not loopback; None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        return probe.getsockname()[0]


def check_one_node(mpi):
    variables, carry = given_address()
    found = good_places(mpi.run(["-n", "4"], [PROGRAM]), 4, KIND)
    expect(all(place["master_addr"] == "127.0.0.1" and place["local_size"] == 4 for place in found), str(found))
    found = good_places(mpi.run(["-n", "2"], [PROGRAM], DT_STORE_BIND="127.0.0.2"), 2, KIND)
    expect(all(place["master_addr"] == "127.0.0.2" for place in found), str(found))
    found = good_places(mpi.run([*carry, "-n", "3"], [PROGRAM], **variables), 3, KIND)
    expect(all(str(place["master_port"]) == variables["MASTER_PORT"] for place in found), str(found))


def check_local_ranks(mpi):
    """In another order than the ranks, as Open MPI 5 numbers them with --map-by numa."""
    variable = "OMPI_COMM_WORLD_LOCAL_RANK" if OPENMPI else "MPI_LOCALRANKID"
    good_downwards(mpi.run(["-n", "4"], downwards(PROGRAM, variable, 4)), 4, KIND)


def check_layout(mpi, options, hosts):
    """Placement and collectives on two hosts."""
    share = ["-x", "DT_RENDEZVOUS_TIMEOUT_MS", "-x", "DT_CONFIG"] if OPENMPI else []
    variables, carry = given_address()
    for more, address in (([], {}), (carry, variables)):
        found = good_places(mpi.run([*options, *share, *more], [PROGRAM], hosts=True, **address), 4, KIND)
        expect("".join(place["host"][-1] for place in found) == hosts, str(found))
        expect([place["node_rank"] for place in found] == ["ab".index(host) for host in hosts], str(found))
        if address:
            expect(all(str(place["master_port"]) == variables["MASTER_PORT"] for place in found), str(found))


def check_token(mpi):
    """Two hosts, with an address that is not loopback and without a token: rank 0 makes one, and the launcher carries it."""
    own = own_address()
    share = ["-x", "DT_RENDEZVOUS_TIMEOUT_MS", "-x", "DT_CONFIG"] if OPENMPI else []
    hosts = ["--host", "nodea:1,nodeb:1", "-n", "2"] if OPENMPI else ["-hosts", "nodea:1,nodeb:1", "-n", "2"]
    variables, carry = given_address()
    variables["MASTER_ADDR"] = own
    variables["XDG_CONFIG_HOME"] = mpi.folder  # no token of the user's
    carry += ["-x", "XDG_CONFIG_HOME"] if OPENMPI else []
    found = good_places(mpi.run([*hosts, *share, *carry], [PROGRAM], hosts=True, **variables), 2, KIND)
    expect(all(place["master_addr"] == own for place in found), str(found))


def check_trainer(mpi):
    variables, carry = given_address()
    check_training(mpi.run(["-n", "2"], training_command(TRAINER)), 2)
    check_training(mpi.run([*carry, "-n", "2"], training_command(TRAINER), **variables), 2)


def check_doctor(mpi):
    """It knows how rank 0 tells its address, and meets that way."""
    code, out, err = mpi.run(["-n", "2"], [DT, "doctor", "--json"])
    by = "by a socket that PMIX_NAMESPACE names: " if OPENMPI else "by PMI-1: "
    expect(out.count(by + "rank 0 tells the others its address") == 2, out + err)
    code, out, err = mpi.run(["-n", "2"], [DT, "doctor", "--cluster"])
    expect(" checks are alike on the 2 ranks that reported" in out, f"{code}: {out}{err}")


def check_disagreement(mpi):
    """Another launcher's variables in the shell from which this one is started."""
    other = {"PMI_RANK": "0", "PMI_SIZE": "3"} if OPENMPI else {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}
    text = error_of(mpi.run(["-n", "2"], [PROGRAM], **other))
    for part in ("conflict: OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=", " (openmpi), but PMI_RANK=0 PMI_SIZE=",
                 "(hydra)", "set DT_LAUNCHER=openmpi or DT_LAUNCHER=hydra to say which counts"):
        expect(part in text, text)
    good_places(mpi.run(["-n", "2"], [PROGRAM], DT_LAUNCHER=KIND, **other), 2, KIND)
    text = error_of(mpi.run(["-n", "2"], [PROGRAM], RANK="0", DT_RENDEZVOUS_TIMEOUT_MS="2000"))
    name = "OMPI_COMM_WORLD_RANK" if OPENMPI else "PMI_RANK"
    expect(f"conflict: RANK=0, but {name}=1; unset the stale one, or set DT_LAUNCHER={KIND}" in text, text)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    text = error_of(mpi.run(["-n", "4"], [PROGRAM], **alone))
    expect(f"conflict: RANK=0 WORLD_SIZE=1 (env), but {name}=" in text, text)
    expect("each of the 4 processes would be a job of its own; unset RANK and WORLD_SIZE, or start one process only"
           in text, text)
    good_places(mpi.run(["-n", "1"], [PROGRAM], **alone), 1, "env")


def check_several_agents(mpi):
    """dt run takes its nodes from an MPI that starts one process on each, and is refused in several of one node."""
    text = error_of(mpi.run(["-n", "2"], [DT, "run", "-n", "2", PROGRAM]))
    expect(f"this is one of 2 dt run that {KIND} has started (" in text and "start PROG without dt run" in text, text)
    code, out, err = mpi.run(["-n", "2"], [DT, "run", "--nnodes", "1", "-n", "2", "--no-prefix", PROGRAM])
    expect(code == 0 and [place["rank"] for place in places(out)] == [0, 0, 1, 1], f"{code}: {out}{err}")
    good_places(mpi.run(["-n", "1"], [DT, "run", "-n", "2", "--no-prefix", PROGRAM]), 2, "dt run")


def check_agent_per_host(mpi):
    """As an MPI job of Azure ML starts one process per node: its address, or none."""
    share = ["-x", "DT_RENDEZVOUS_TIMEOUT_MS", "-x", "DT_CONFIG"] if OPENMPI else []
    hosts = ["--host", "nodea:1,nodeb:1", "-n", "2"] if OPENMPI else ["-hosts", "nodea:1,nodeb:1", "-n", "2"]
    logs = tempfile.mkdtemp(dir=mpi.folder)  # the MPI cuts lines of several nodes where they meet
    command = [DT, "run", "-n", "2", "--no-prefix", "--log-dir", logs, PROGRAM]
    node, port = {"AZ_BATCH_MASTER_NODE": "127.0.0.1:6000"}, {"MASTER_PORT": str(free_ports(1)[0])}
    names = ["-x", "AZ_BATCH_MASTER_NODE", "-x", "MASTER_PORT"] if OPENMPI else []
    code, _, err = mpi.run([*hosts, *share, *names], command, hosts=True, **node, **port)
    out = "".join(path.read_text() for path in sorted(Path(logs).glob("*")))
    found = good_places((code, out, err), 4, "dt run")
    expect("".join(place["host"][-1] for place in found) == "aabb", str(found))
    text = error_of(mpi.run([*hosts, *share], command, hosts=True))
    variable = "OMPI_COMM_WORLD_SIZE" if OPENMPI else "PMI_SIZE"
    expect(f"2 nodes ({variable}=2), but nobody says where they meet; give --rendezvous HOST:PORT" in text, text)


def check_hidden_library(mpi):
    """Open MPI may bring a PMIx of its own, where dt does not find it: one node needs none."""
    hide = ["unshare", "--mount", "sh", "-c", f"mount --bind /dev/null {PMIX} && exec \"$0\"", PROGRAM]
    good_places(mpi.run(["-n", "3"], hide), 3, KIND)


def compiled(mpi, name):
    program = mpi.folder + "/mpi_program"
    library = Path(LIBRARY)
    source = Path(__file__).parent / "mpi_program.c"
    code, out, err = mpi.launches.run([f"mpicc.{name}", str(source), "-I", INCLUDE, "-o", program, str(library),
                                       f"-Wl,-rpath,{library.parent}"])
    expect(code == 0, out + err)
    return program


def check_mpi_beside(mpi):
    """A program that calls MPI_Init: with PMIx both go together; PMI serves one, so the user names the address."""
    program = compiled(mpi, "openmpi" if OPENMPI else "mpich")
    variables, carry = given_address()
    good_places(mpi.run([*carry, "-n", "2"], [program], **variables), 2, KIND)
    if OPENMPI:
        good_places(mpi.run(["-n", "2"], [program]), 2, KIND)
    else:
        text = error_of(mpi.run(["-n", "2"], [program]))
        expect("no_rendezvous: MPI_Init was called in this process" in text and "set MASTER_ADDR" in text, text)


def check_singleton(mpi):
    """A program of Open MPI under a launcher that Open MPI does not know."""
    program = compiled(mpi, "openmpi")
    text = error_of(mpi.run(["-n", "2"], [program]))
    for part in ("conflict: PMI_RANK=", " PMI_SIZE=2 (hydra), but OMPI_MCA_ess=singleton: ",
                 "start the program with mpirun of Open MPI or with srun --mpi=pmix, or set DT_LAUNCHER=hydra"):
        expect(part in text, text)


def main():
    if OPENMPI:
        need(["mpirun.openmpi"], "openmpi-bin")
    else:
        need(["mpiexec.hydra"], "mpich")
    with tempfile.TemporaryDirectory() as folder, Launches() as launches:
        mpi = Mpi(launches, folder)
        cases = [("one node", lambda: check_one_node(mpi)),
                 ("local ranks in another order", lambda: check_local_ranks(mpi)),
                 ("dt doctor", lambda: check_doctor(mpi)),
                 ("two families that disagree, an exported rank", lambda: check_disagreement(mpi)),
                 ("dt run in several processes", lambda: check_several_agents(mpi))]
        if os.geteuid() == 0:
            if OPENMPI and PMIX:
                cases.append(("one node without a library of PMIx", lambda: check_hidden_library(mpi)))
            for name, openmpi, hydra, hosts in LAYOUTS:
                options = openmpi if OPENMPI else hydra
                cases.append(("two hosts, " + name, lambda options=options, hosts=hosts: check_layout(mpi, options, hosts)))
            if own_address() is not None:
                cases.append(("two hosts, an address without a token", lambda: check_token(mpi)))
            cases.append(("dt run on each of two hosts", lambda: check_agent_per_host(mpi)))
        else:
            print("two hosts: not run, needs root")
        if can_train(TRAINER):
            cases.append(("the trainer", lambda: check_trainer(mpi)))
        for compiler, case in (("openmpi" if OPENMPI else "mpich", check_mpi_beside), ("openmpi", check_singleton)):
            if case is check_singleton and OPENMPI:
                continue
            if os.access(f"/usr/bin/mpicc.{compiler}", os.X_OK):
                cases.append((case.__name__[len("check_"):].replace("_", " "), lambda case=case: case(mpi)))
            else:
                print(f"{case.__name__}: not run: apt-get install lib{compiler}-dev")
        return run_cases(cases)


if __name__ == "__main__":
    sys.exit(main())

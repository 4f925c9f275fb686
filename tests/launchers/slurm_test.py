#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""slurm_test.py DT CHECK_PROGRAM TRAINER: programs started by a real srun, sbatch and salloc."""

import json
import os
import random
import socket
import sys
import tempfile
from pathlib import Path

from slurm_cluster import Cluster
from free_ports import free_ports
from started import (Launches, downwards, error_of, expect, good_downwards, good_places, places,
                     run_cases)
from trained import can_train, check_training, training_command

DT, PROGRAM, TRAINER = (str(Path(argument).resolve()) for argument in sys.argv[1:4])
BOTH = ["sh", "-c", f"{DT} config --json && exec {PROGRAM}"]
FIRST_PORT = 10000  # of those that follow from a job's number

# name, options, (node, local rank) of each rank
LAYOUTS = [
    ("block", ["-N2", "-n4", "--ntasks-per-node=2", "-m", "block"], [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ("cyclic", ["-N2", "-n4", "--ntasks-per-node=2", "-m", "cyclic"], [(0, 0), (1, 0), (0, 1), (1, 1)]),
    ("plane", ["-N2", "-n8", "--ntasks-per-node=4", "-m", "plane=2"],
     [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]),
    ("3 + 1", ["-N2", "-n4", "-m", "block"], [(0, 0), (0, 1), (0, 2), (1, 0)]),
    ("3 + 1 cyclic", ["-N2", "-n4", "-m", "cyclic"], [(0, 0), (1, 0), (0, 1), (0, 2)]),
]


def labelled(out):
    """The places that `dt config --json` prints under srun --label, by the task that srun names."""
    found = {}
    for line in out.splitlines():
        task, _, text = line.partition(": ")
        if text.startswith('{"place"'):
            found[int(task)] = json.loads(text.rstrip(",") + "}")["place"]
    return found


def unlabelled(result):
    code, out, err = result
    return code, "\n".join(line.partition(": ")[2] for line in out.splitlines()), err


def free_job_number():
    """A first job number whose port, and those of the next jobs, nobody holds."""
    for _ in range(100):
        number = random.randrange(1, 9900)
        try:
            for port in range(FIRST_PORT + number, FIRST_PORT + number + 40):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return number
        except OSError:
            continue
    raise RuntimeError("no free ports from 10000 on")


def check_layout(cluster, options, expected):
    result = cluster.run("srun", "--label", *options, *BOTH)
    found = good_places(unlabelled(result), len(expected), "slurm")
    config = labelled(result[1])
    expect(sorted(config) == list(range(len(expected))), f"dt config ran on {sorted(config)}\n{result[2]}")
    counts = [sum(1 for node, _ in expected if node == wanted) for wanted in (0, 1)]
    for rank, (node, local) in enumerate(expected):
        place = config[rank]
        said = [place[field] for field in ("rank", "node_rank", "local_rank", "local_size", "node_count", "launcher")]
        expect(said == [rank, node, local, counts[node], 2, "slurm"], f"rank {rank}: {place}")
        expect(place["master_addr"] == cluster.names[0] and place["exchange"] == "none", f"rank {rank}: {place}")
        expect(place["master_port"] == found[0]["master_port"], f"rank {rank}: {place}")
    # All nodes are this host here, so the join finds one host, whatever Slurm says.
    expect(all(place["local_size"] == len(expected) and place["node_count"] == 1 for place in found), str(found))
    expect([place["local_rank"] for place in found] == list(range(len(expected))), str(found))


def check_user_address(cluster):
    port = free_ports(1)[0]
    result = cluster.run("srun", "-N2", "-n4", PROGRAM, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    found = good_places(result, 4, "slurm")
    expect(all(place["master_port"] == port for place in found), str(found))


def check_local_ranks(cluster):
    """A wrapper of the program numbers them in another order than the ranks."""
    good_downwards(cluster.run("srun", "-N1", "-n2", *downwards(PROGRAM, "SLURM_LOCALID", 2)), 2, "slurm")


def check_exchange(cluster, kind):
    result = cluster.run("srun", "--label", "-N2", "-n4", f"--mpi={kind}", *BOTH)
    found = good_places(unlabelled(result), 4, "slurm")
    for place in labelled(result[1]).values():
        expect(place["exchange"] == {"pmi2": "pmi", "pmix": "pmix"}[kind], str(place))
        expect(place["master_port"] is None, str(place))
    expect(len({place["master_port"] for place in found}) == 1, str(found))


def check_doctor(cluster, kind):
    """dt doctor finds the others as a job does."""
    code, out, err = cluster.run("srun", "-N2", "-n4", f"--mpi={kind}", DT, "doctor", "--cluster")
    expect(code in (0, 1) and "checks are alike on the 4 ranks that reported" in out, f"{code}: {out}{err}")


def check_hydra_inside(cluster):
    """The server of PMIx around mpiexec knows one process only."""
    options = ["-N1", "-n1", "--mpi=pmix", "mpiexec.hydra", "-launcher", "fork", "-hosts", "localhost", "-n", "2", PROGRAM]
    good_places(cluster.run("srun", *options), 2, "hydra")


def check_steps(cluster):
    """One after the other, then two at once on one node, with a port each or over PMI."""
    step = f"srun --exact --mem=0 %s {PROGRAM} || exit 1\n"
    code, out, err = cluster.batch(step % "-N2 -n4" + step % "-N2 -n2" + step % "-N1 -n1", "-N2", "--ntasks-per-node=2")
    expect(code == 0 and [place["world_size"] for place in places(out)].count(4) == 4, f"{code}\n{out}{err}")
    expect(len(places(out)) == 7, f"{out}{err}")
    together = f"""
%s srun --exact --mem=0 -N1 -n2 -w {cluster.names[1]} %s {PROGRAM} & one=$!
%s srun --exact --mem=0 -N1 -n2 -w {cluster.names[1]} %s {PROGRAM} & two=$!
wait $one && wait $two
"""
    first, second = (f"MASTER_PORT={port}" for port in free_ports(2))
    for words in ((first, "", second, ""), ("", "--mpi=pmi2", "", "--mpi=pmi2")):
        code, out, err = cluster.batch(together % words, "-N2", "--ntasks-per-node=4")
        expect(code == 0, f"{code}\n{out}{err}")
        expect([place["rank"] for place in places(out)] == [0, 0, 1, 1], f"{out}{err}")
        # On one node nobody else needs to come in, so the node's own address is not used.
        expect({place["master_addr"] for place in places(out)} == {"127.0.0.1"}, out)


def check_agents(cluster):
    """dt run once per node: it starts the ranks, and finds the other agents by the step."""
    result = cluster.run("srun", "-N2", "--ntasks-per-node=1", DT, "run", "-n", "2", "--no-prefix", PROGRAM)
    good_places(result, 4, "dt run")
    # In a script for several tasks per node srun inherits their number; the error names the line that works.
    advised = 'srun -n "$SLURM_NNODES" --ntasks-per-node=1 dt run -n '
    agent = f"{DT} run -n 2 --no-prefix {PROGRAM}"
    for line in (f"srun --ntasks-per-node=1 {agent} || true",
                 advised.replace("dt run -n ", f"{DT} run -n 2 --no-prefix {PROGRAM}")):
        result = cluster.batch("#!/bin/sh\n" + line + "\n", "-N2", "--ntasks-per-node=2")
        if line.endswith("|| true"):
            expect("has 4 tasks on 2 nodes" in result[1] and advised in result[1], str(result))
        else:
            good_places(result, 4, "dt run")


def check_taken_port(cluster):
    """Somebody, such as a second step of the job, holds the port that follows from the job's number."""
    script = f"""
python3 - <<'END'
import os, socket, subprocess, sys
held = socket.socket()
held.bind(("{cluster.names[0]}", {FIRST_PORT} + int(os.environ["SLURM_JOB_ID"]) % 10000))
held.listen()
sys.exit(subprocess.call(["srun", "-K1", "-N1", "-n2", "-w", "{cluster.names[0]}", "{PROGRAM}"]))
END
"""
    text = error_of(cluster.batch(script, "-N1", "-n2"))
    expect("MASTER_PORT" in text and "in use" in text, text)


def check_no_srun(cluster):
    warning = "slurm_allocation_without_srun: the allocation is for 4 tasks"
    code, out, err = cluster.batch(PROGRAM + "\n", "-N2", "-n4")
    expect(code == 0 and [place["launcher"] for place in places(out)] == ["single"], f"{code}\n{out}{err}")
    expect(warning in out, out)
    code, out, err = cluster.run("salloc", "-N2", "-n4", PROGRAM)
    expect(code == 0 and [place["launcher"] for place in places(out)] == ["single"], f"{code}\n{out}{err}")
    expect(warning in err, err)


def check_exported_rank(cluster):
    text = error_of(cluster.run("srun", "-K1", "-N2", "-n4", PROGRAM, RANK="0"))
    expect("conflict: RANK=0, but SLURM_PROCID=" in text and "; unset the stale one, or set DT_LAUNCHER=slurm" in text,
           text)
    stale = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    text = error_of(cluster.run("srun", "-K1", "-N2", "-n4", PROGRAM, **stale))
    expect("conflict: RANK=0 WORLD_SIZE=4 (env), but SLURM_PROCID=" in text, text)
    expect(" SLURM_STEP_NUM_TASKS=4 (slurm); unset the stale ones" in text, text)
    expect("DT_LAUNCHER=env or DT_LAUNCHER=slurm" in text, text)
    good_places(cluster.run("srun", "-N2", "-n4", PROGRAM, DT_LAUNCHER="slurm", **stale), 4, "slurm")
    alone = {**stale, "WORLD_SIZE": "1"}
    text = error_of(cluster.run("srun", "-K1", "-N2", "-n4", PROGRAM, **alone))
    expect("conflict: RANK=0 WORLD_SIZE=1 (env), but SLURM_PROCID=" in text, text)
    expect("each of the 4 processes would be a job of its own; unset RANK and WORLD_SIZE" in text, text)


def check_trainer(cluster):
    port = free_ports(1)[0]
    for given in ({}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}):
        check_training(cluster.run("srun", "-N2", "-n2", *training_command(TRAINER), **given), 2)


def check_two_hosts(folder):
    with Launches() as launches:
        cluster = Cluster(launches, folder, own_host_names=True, first_job=free_job_number())
        for kind in ("none", "pmi2", "pmix"):
            options = ["-N2", "-n4", "--ntasks-per-node=2", f"--mpi={kind}", PROGRAM]
            found = good_places(cluster.run("srun", *options), 4, "slurm")
            expect([place["node_rank"] for place in found] == [0, 0, 1, 1], str(found))
            expect([place["host"] for place in found] == ["127.0.0.1"] * 2 + ["127.0.0.2"] * 2, str(found))


def main():
    with tempfile.TemporaryDirectory() as folder, Launches() as launches:
        os.mkdir(folder + "/one")
        os.mkdir(folder + "/two")
        cluster = Cluster(launches, folder + "/one", first_job=free_job_number())
        cases = [("srun " + name, lambda options=options, expected=expected: check_layout(cluster, options, expected))
                 for name, options, expected in LAYOUTS]
        cases += [
            ("MASTER_ADDR and MASTER_PORT", lambda: check_user_address(cluster)),
            ("local ranks in another order", lambda: check_local_ranks(cluster)),
            ("srun --mpi=pmi2", lambda: check_exchange(cluster, "pmi2")),
            ("srun --mpi=pmix", lambda: check_exchange(cluster, "pmix")),
            ("dt doctor --cluster", lambda: [check_doctor(cluster, kind) for kind in ("none", "pmi2", "pmix")]),
            ("several steps", lambda: check_steps(cluster)),
            ("dt run on each node", lambda: check_agents(cluster)),
            ("a port that is taken", lambda: check_taken_port(cluster)),
            ("sbatch and salloc without srun", lambda: check_no_srun(cluster)),
            ("a rank exported before srun", lambda: check_exported_rank(cluster)),
        ]
        if os.access("/usr/bin/mpiexec.hydra", os.X_OK):
            cases.append(("mpiexec inside srun --mpi=pmix", lambda: check_hydra_inside(cluster)))
        else:
            print("mpiexec inside srun --mpi=pmix: not run: apt-get install mpich")
        if can_train(TRAINER):
            cases.append(("the trainer", lambda: check_trainer(cluster)))
        if os.geteuid() == 0:
            cases.append(("nodes with host names of their own", lambda: check_two_hosts(folder + "/two")))
        else:
            print("nodes with host names of their own: not run, needs root")
        return run_cases(cases)


if __name__ == "__main__":
    sys.exit(main())

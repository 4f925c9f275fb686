#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""frameworks_test.py VENV [case ...]: PyTorch's frameworks train over dt on two hosts of two ranks each, which are
network namespaces: their losses are those over gloo, and a killed rank is named on both hosts. VENV: see
tests/launchers/framework_training_test.py. What it lacks is named and left out. Ends with 77 where namespaces cannot be
made."""

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launchers"))

# pylint: disable=wrong-import-position
from cases import PORT, expect, run_cases
from framework_test import PYTHON, VENV, Frameworks, has  # reads VENV
from framework_training_test import CLOSE, LIMIT_S, PROGRAM, check_exceptions, settings, worst_difference
from network import Network
from started import Launches, places

HOSTS, RANKS = 2, 4


def by_torchrun(host, address, _folder):
    return [VENV / "bin/torchrun", "--nnodes", str(HOSTS), "--node_rank", str(host), "--nproc_per_node",
            str(RANKS // HOSTS), "--master_addr", address, "--master_port", str(PORT)]


def by_accelerate(host, address, _folder):
    return [VENV / "bin/accelerate", "launch", "--multi_gpu", "--num_processes", str(RANKS), "--num_machines",
            str(HOSTS), "--machine_rank", str(host), "--main_process_ip", address, "--main_process_port", str(PORT),
            "--mixed_precision", "no", "--dynamo_backend", "no"]


def by_deepspeed(host, address, folder):
    hosts = Path(folder, "hosts")
    hosts.write_text("".join(f"host{each} slots={RANKS // HOSTS}\n" for each in range(HOSTS)))
    return [VENV / "bin/deepspeed", "--hostfile", hosts, "--no_ssh", "--node_rank", str(host), "--master_addr", address,
            "--master_port", str(PORT), "--no_local_rank"]


def by_lightning(_host, _address, _folder):
    return [PYTHON]


def train(start, framework, backend, *fault):
    """Exit codes of the hosts, the lines of the ranks, and all text."""
    with Network(HOSTS) as network, tempfile.TemporaryDirectory() as folder, Launches() as launches, \
            ThreadPoolExecutor(HOSTS) as pool:
        names = "127.0.0.1 localhost\n" + "".join(f"{network.address(host)} host{host}\n" for host in range(HOSTS))
        frameworks = Frameworks(launches, folder)
        more = settings(folder, RANKS, HOSTS=str(HOSTS), GLOO_SOCKET_IFNAME="eth0", ACCELERATE_USE_CPU="true",
                        FAULT_ID="fault")
        running = []
        for host in range(HOSTS):
            network.write_names(host, names)
            command = [*start(host, network.address(0), folder), PROGRAM, framework, backend, *fault]
            place = {"MASTER_ADDR": network.address(0), "MASTER_PORT": str(PORT), "NODE_RANK": str(host)}
            running.append(pool.submit(frameworks.run, network.command(host, [str(word) for word in command]),
                                       limit_s=LIMIT_S, **more, **(place if start is by_lightning else {})))
        results = [each.result() for each in running]
    text = "".join(out + err for _, out, err in results)
    return [code for code, _, _ in results], places("".join(out for _, out, _ in results)), text


def compare(start, framework):
    found = {}
    for backend in ("dt", "gloo"):
        codes, lines, text = train(start, framework, backend)
        expect(codes == [0] * HOSTS, f"exit codes {codes} over {backend}\n{text}")
        expect([(each["rank"], each["host"], each["backend"]) for each in lines] ==
               [(rank, f"host{rank * HOSTS // RANKS}", backend) for rank in range(RANKS)], f"{lines}\n{text}")
        found[backend] = [each["losses"] for each in lines]
    worst = worst_difference(found["dt"], found["gloo"])
    expect(worst <= CLOSE, f"the losses differ by {worst}: {found}")
    print(f"  {framework} on {HOSTS} hosts x {RANKS // HOSTS}: {len(found['dt'][0])} losses from "
          f"{found['dt'][0][0]:.6f} to {found['dt'][0][-1]:.6f}, largest difference to gloo {worst:.0e}")


def ddp():
    compare(by_torchrun, "ddp")


def fsdp2():
    compare(by_torchrun, "fsdp2")


def lightning():
    compare(by_lightning, "lightning")


def accelerate():
    compare(by_accelerate, "accelerate")


def transformers():
    compare(by_torchrun, "trainer")


def deepspeed():
    compare(by_deepspeed, "deepspeed2")


def ddp_killed():
    codes, lines, text = train(by_torchrun, "ddp", "dt", "killed")
    expect(0 not in codes, f"exit codes {codes}\n{text}")
    check_exceptions(lines, text, "killed", RANKS)
    for each in lines:
        expect("rank 1 (host0 pid " in each["text"], f"{each}\n{text}")
        print(f"  rank {each['rank']}, {each['seconds']:.1f} s after kill -9: {each['text']}")


CASES = [ddp, fsdp2, lightning, accelerate, transformers, deepspeed, ddp_killed]


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    for case in [each for each in CASES[2:-1] if not has(each.__name__)]:
        print(f"{case.__name__}: not run: it is not in {VENV}")
        CASES.remove(case)
    sys.exit(run_cases(CASES, 1, at_a_time=1))

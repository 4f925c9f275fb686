# SPDX-License-Identifier: Apache-2.0
"""What the tests over network namespaces share: their settings, what fails a case, and the list of cases."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from network import Network, Unavailable

PORT = 29500  # in a namespace of our own: nobody else is there
TOKEN = "5a" * 32
RANKS_LIMIT_S = 600
CASES_AT_A_TIME = 2 * (os.cpu_count() or 1)


class Failed(Exception):
    pass


def expect(holds, what):
    if not holds:
        raise Failed(what)


def environment(**settings):
    """This process's, with these settings of dt and the token, and no others."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("DT_")}
    return {**others, "DT_TOKEN": TOKEN, **settings}


def ranks(network, program, on_each=1, **more):
    """The output of rank 0 of those on the network's hosts, `on_each` of them. `more`: of the environment."""
    processes = []
    world = network.hosts * on_each
    for rank in range(world):
        settings = environment(DT_RANK=str(rank), DT_WORLD_SIZE=str(world), DT_MASTER_ADDR=network.address(0),
                               DT_MASTER_PORT=str(PORT), **more)
        command = network.command(rank // on_each, [str(word) for word in program])
        processes.append(subprocess.Popen(command, env=settings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=RANKS_LIMIT_S) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, (output, error) in zip(processes, outputs):
        expect(process.returncode == 0, f"{process.args} ended with {process.returncode}:\n{output}{error}")
    return outputs[0][0]


def run_case(case):
    """One case in this process; whether it passed."""
    began = time.monotonic()
    try:
        case()
    except (Failed, Unavailable, OSError, subprocess.SubprocessError) as problem:
        print(f"FAILED  {case.__name__}: {problem}", flush=True)
        return False
    print(f"ok      {case.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
    return True


def run_case_in_own_process(arguments, case):
    """One case in a process of its own, which has namespaces of its own. Prints when it ends."""
    print(f"begins  {case.__name__}", flush=True)
    done = subprocess.run([sys.executable, *arguments, case.__name__], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="", flush=True)
    return done.returncode == 0


def run_cases(cases, fixed_arguments, at_a_time=CASES_AT_A_TIME):
    """The cases named after the arguments of the script, or all of them, several at a time where they mostly wait.
    Returns the exit code, which is 77 where namespaces cannot be made."""
    arguments, names = sys.argv[:1 + fixed_arguments], sys.argv[1 + fixed_arguments:]
    if os.geteuid() != 0:
        print("skipped: making network namespaces needs root")
        return 77
    try:
        with Network(2):
            pass
    except (Unavailable, FileNotFoundError) as reason:
        print(f"skipped: no network namespaces here: {reason}")
        return 77
    wanted = [case for case in cases if not names or case.__name__ in names]
    if not wanted:
        print(f"there is no case {' or '.join(names)}")
        return 1
    if len(wanted) == 1:
        return 0 if run_case(wanted[0]) else 1
    with ThreadPoolExecutor(at_a_time) as pool:
        passed = list(pool.map(lambda case: run_case_in_own_process(arguments, case), wanted))
    failed = [case.__name__ for case, good in zip(wanted, passed) if not good]
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}")
    return 1 if failed else 0

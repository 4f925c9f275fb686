# SPDX-License-Identifier: Apache-2.0
"""Starts launchers and daemons, each wait with a deadline, and ends all of them, whatever happens."""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LAUNCH_LIMIT_S = 60
END_LIMIT_S = 5
SKIPPED = 77
TOKEN = "5a" * 32  # of jobs whose ranks listen beyond loopback and whose launcher carries none
LIBC = ctypes.CDLL(None)


class Failure(Exception):
    """What a test says when it fails."""


def expect(condition, text):
    if not condition:
        raise Failure(text)


def skip(reason):
    print("skipped: " + reason)
    sys.exit(SKIPPED)


def need(programs, packages):
    """Skips unless all programs are installed."""
    path = "/usr/sbin:/sbin:" + os.environ.get("PATH", "")
    for program in programs:
        if not any(os.access(os.path.join(folder, program), os.X_OK) for folder in path.split(":")):
            skip(f"no {program} here: apt-get install {packages}")


def environment(more=None, **variables):
    """A clean one: what the test's own launcher or user has set is no part of the launch."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    keep["PATH"] = keep.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    return {**keep, "DT_RENDEZVOUS_TIMEOUT_MS": "30000", "DT_CONFIG": "/dev/null", **(more or {}), **variables}


def descendants():
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(folder.name)] = int(fields[1])
    found, level = [], {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found


def reap():
    """Takes leave of orphans that have ended; those of Popen are its own."""
    for pid in descendants_ended():
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass


def descendants_ended():
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] == "Z" and int(fields[1]) == os.getpid():
                yield int(folder.name)


def end_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Launches:
    """`with Launches() as launches`: what is started inside is gone afterwards, orphans included."""

    def __enter__(self):
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        self.daemons = []
        return self

    def __exit__(self, *_):
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                pass
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for daemon in self.daemons:
            daemon.wait(END_LIMIT_S)
        reap()
        return False

    def run(self, command, env=None, cwd=None, limit_s=LAUNCH_LIMIT_S):
        """Until it ends, or kills all and fails. Returns exit code, stdout and stderr."""
        with subprocess.Popen(command, env=env or environment(), cwd=cwd, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              preexec_fn=end_with_parent) as process:
            try:
                out, err = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                for pid in descendants():
                    if pid not in [daemon.pid for daemon in self.daemons]:
                        os.kill(pid, signal.SIGKILL)
                out, err = process.communicate()
                raise Failure(f"{' '.join(command)} did not end in {limit_s} s\n{out}{err}") from None
        return process.returncode, out, err

    def daemon(self, command, env, ready, log, limit_s=20):
        """Starts it, and returns when it has written `ready`; its output is kept in the file `log`."""
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, preexec_fn=end_with_parent)
        self.daemons.append(process)
        deadline = time.monotonic() + limit_s
        seen = b""
        while ready.encode() not in seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise Failure(f"{command[0]} was not ready in {limit_s} s\n{seen.decode(errors='replace')}")
            got = os.read(process.stdout.fileno(), 65536)
            if not got:
                raise Failure(f"{command[0]} ended\n{seen.decode(errors='replace')}")
            seen += got
        Path(log).write_bytes(seen)
        drain(process.stdout, log)
        return process


def drain(stream, log):
    """A thread that keeps the rest of a daemon's output, so that it never blocks."""
    import threading

    def copy():
        with open(log, "ab") as file:
            for line in stream:
                file.write(line)

    threading.Thread(target=copy, daemon=True).start()


def places(out):
    """The lines of check_program, by rank."""
    found = [json.loads(line) for line in out.splitlines() if line.startswith('{"rank"')]
    return sorted(found, key=lambda place: place["rank"])


def good_places(result, world_size, launcher):
    """The places of a launch that must have succeeded, each rank once."""
    code, out, err = result
    expect(code == 0, f"exit code {code}\n{out}{err}")
    found = places(out)
    expect([place["rank"] for place in found] == list(range(world_size)), f"ranks are wrong\n{out}{err}")
    for place in found:
        expect(place["world_size"] == world_size and place["launcher"] == launcher, f"{place}\n{err}")
    return found


def downwards(program, variable, ranks):
    """The program on a host of so many ranks, with local ranks in the opposite order: `variable` is the launcher's."""
    return ["sh", "-c", f'{variable}=$(({ranks - 1} - {variable})) exec "$0"', program]


def good_downwards(result, ranks, launcher):
    """The program has compared what it gathered; here only the local ranks are."""
    found = good_places(result, ranks, launcher)
    expect([place["local_rank"] for place in found] == list(reversed(range(ranks))), str(found))


def error_of(result):
    """What a launch that must fail says."""
    code, out, err = result
    expect(code != 0, f"it succeeded\n{out}{err}")
    return out + err


def run_cases(cases):
    """Runs functions by name, or those that the command line names after --only; fails if one does."""
    failed = 0
    for name, case in cases:
        begin = time.monotonic()
        try:
            case()
        except Failure as failure:
            failed += 1
            print(f"{name}: FAILED: {failure}")
        else:
            print(f"{name}: good, {time.monotonic() - begin:.2f} s")
        sys.stdout.flush()
    print(f"{len(cases) - failed} of {len(cases)} cases")
    return 1 if failed else 0

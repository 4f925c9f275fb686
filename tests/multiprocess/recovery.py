#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""recovery.py DT TRAINER: the example trainer is killed, loses nodes, is pre-empted and left without room.

Each time it goes on from its checkpoint, and ends with the losses, the accuracy and the parameters of a
run that nobody disturbed: to the last bit where as many ranks of as many hosts go on, else almost.
--full trains on all images as a user would (--kills 20).
"""
import argparse
import contextlib
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from images import write_part  # pylint: disable=wrong-import-position

LIMIT_S = 240
POLL_S = 0.005  # how often a checkpoint is looked at
TRIES = 10
TOLERANCE = 1e-3  # of a loss, relative, where sums are made in another order
# In thousands of steps rounding alone drives losses apart, also of undisturbed runs: those of 2, 3 and 4 ranks in
# 1500 steps by 0.3. Their means over 100 steps differ by 0.017.
FULL_STEPS, FULL_TOLERANCE = 100, 0.05
ACCURACY_TOLERANCE = 1.0  # percent of the test images


class TooEarly(Exception):
    """The job was over before it could be disturbed."""


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def saved_step(path):
    """Of a checkpoint; -1: there is none."""
    try:
        with open(path, "rb") as file:
            return struct.unpack_from("<q", file.read(40), 32)[0]
    except FileNotFoundError:
        return -1


@contextlib.contextmanager
def held_port():
    """A port that nobody else gets meanwhile."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class Job:
    """One dt run, whose output lies in files."""

    def __init__(self, name, command, folder, **variables):
        self.name, self.paths = name, [os.path.join(folder, f"{name}.{each}") for each in ("out", "err")]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DT_")}
        environment.update(variables)
        with open(self.paths[0], "wb") as out, open(self.paths[1], "wb") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
        self.deadline = time.monotonic() + LIMIT_S * (10 if "--full" in sys.argv else 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def outputs(self):
        texts = []
        for path in self.paths:
            with open(path, encoding="utf-8") as file:
                texts.append(file.read())
        return texts

    def goes_on(self, seconds=POLL_S):
        """Waits for so long; False at once when the job is over."""
        expect(time.monotonic() < self.deadline, f"{self.name}: no end in time\n" + "".join(self.outputs()))
        try:
            self.process.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            return True

    def wait_for(self, found):
        while not found():
            if not self.goes_on():
                expect(self.process.returncode == 0, self.ended())
                raise TooEarly(self.name)

    def ended(self):
        return f"{self.name}: ended with {self.process.returncode}\n" + "".join(self.outputs())

    def end(self, code=0):
        while self.goes_on():
            pass
        expect(self.process.returncode == code, self.ended())
        return self.outputs()

    def process_of(self, rank, attempt):
        """A descriptor of a rank's process in that attempt; None: there is none now."""
        wanted = {f"DT_RANK={rank}".encode(), f"DT_ATTEMPT={attempt}".encode()}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
                if int(parent) != self.process.pid or state == "Z":
                    continue
                descriptor = os.pidfd_open(int(pid))
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if wanted <= set(file.read().split(b"\0")):
                        return descriptor
                os.close(descriptor)
            except (FileNotFoundError, ProcessLookupError):
                pass
        return None

    def await_process_of(self, rank, attempt):
        descriptors = []

        def found():
            descriptors.append(self.process_of(rank, attempt))
            return descriptors[-1] is not None
        self.wait_for(found)
        return descriptors[-1]

    def send(self, rank, attempt, what):
        descriptor = self.await_process_of(rank, attempt)
        try:
            signal.pidfd_send_signal(descriptor, what)
        except ProcessLookupError:
            raise TooEarly(self.name) from None
        finally:
            os.close(descriptor)


class Recovery:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.chance = random.Random(options.seed)
        steps = int(os.environ.get("CURVE_STEPS", "60"))  # fewer where a sanitizer makes them slow
        if options.full:
            self.ranks, self.batch, self.epochs, self.save_every, steps, last = 4, 120, 3, 25, 500, 0.9
            self.data = options.data
        else:
            self.ranks, self.batch, self.epochs, last = 3, 120 if steps >= 60 else 24, 2, 0.55
            self.save_every = max(1, steps // 12)
            self.data = write_part(options.data, os.path.join(folder, "data"), steps * self.batch)
        self.steps = self.epochs * steps
        self.window = range(self.steps // 20 + 1, int(self.steps * last))  # of steps, in which it is disturbed
        self.undisturbed = None

    def path(self, name):
        return os.path.join(self.folder, name)

    def trainer(self, name, checkpoint, *more):
        return [self.options.trainer, "--data", self.data, "--epochs", str(self.epochs), "--batch", str(self.batch),
                "--curves", "", "--loss-log", self.path(name + ".csv"), "--save", checkpoint, "--resume", checkpoint,
                "--save-every", str(self.save_every), *more]

    def job(self, name, checkpoint, *of_dt_run):
        command = [self.options.dt, "run", "-n", str(self.ranks), *of_dt_run, *self.trainer(name, checkpoint)]
        return Job(name, command, self.folder)

    def result(self, name, out):
        """(losses as written, parameters' hash, accuracy on the test images)"""
        with open(self.path(name + ".csv"), encoding="utf-8") as file:
            losses = file.read().split()
        hashes, accuracies = re.findall(r"\(hash ([0-9a-f]+)\)", out), re.findall(r"test ([0-9.]+) %", out)
        expect(len(hashes) == 1 and accuracies, f"{name}: no parameters or no accuracy\n{out}")
        return losses, hashes[0], accuracies[-1]

    def compare(self, name, out):
        found = self.result(name, out)
        expect(len(self.undisturbed[0]) == self.steps + 1, f"{len(self.undisturbed[0])} lines of losses")
        apart = [pair for pair in zip(self.undisturbed[0], found[0]) if pair[0] != pair[1]]
        expect(len(found[0]) == self.steps + 1 and not apart,
               f"{name}: {len(found[0]) - 1} losses, of which {len(apart)} differ: {apart[:3]}")
        expect(found == self.undisturbed, f"{name}: {found[1:]} instead of {self.undisturbed[1:]}")

    def compare_almost(self, name, out):
        """Says how far the losses are apart."""
        expected, found = self.undisturbed, self.result(name, out)
        expect(len(found[0]) == self.steps + 1, f"{name}: {len(found[0]) - 1} losses instead of {self.steps}")
        span, tolerance = (FULL_STEPS, FULL_TOLERANCE) if self.options.full else (1, TOLERANCE)
        curves = [[float(line.split(",")[1]) for line in each[1:]] for each in (expected[0], found[0])]
        means = [[sum(each[i:i + span]) / span for i in range(0, self.steps, span)] for each in curves]
        worst = max(abs(a - b) / abs(a) for a, b in zip(*means))
        expect(worst <= tolerance, f"{name}: the losses differ by {worst:.2e}, more than {tolerance}")
        expect(abs(float(expected[2]) - float(found[2])) <= ACCURACY_TOLERANCE, f"{name}: {found[2]} %: {expected[2]}")
        return f"losses differ by at most {worst:.1e}, test accuracy {found[2]} %"

    def run_undisturbed(self):
        start = time.monotonic()
        with self.job("undisturbed", self.path("undisturbed.ck")) as job:
            out, err = job.end()
        expect(not err, "a clean run wrote to stderr\n" + err)
        self.undisturbed = self.result("undisturbed", out)
        print(f"undisturbed: {self.ranks} ranks, {self.steps} steps in {time.monotonic() - start:.1f} s, "
              f"test accuracy {self.undisturbed[2]} %, parameters {self.undisturbed[1]}", flush=True)

    def kills(self, name):
        """Ranks are killed at random moments, one in each attempt."""
        start, checkpoint, kills = time.monotonic(), self.path(name + ".ck"), self.options.kills
        targets = sorted(self.chance.sample(self.window, kills))
        with self.job(name, checkpoint, "--max-restarts", str(kills)) as job:
            for attempt, target in enumerate(targets):
                rank, later = self.chance.randrange(self.ranks), self.chance.uniform(0, 0.05)
                job.wait_for(lambda step=target: saved_step(checkpoint) >= step)
                job.goes_on(later)  # not always right after a save
                job.send(rank, attempt, signal.SIGKILL)
                print(f"{name}: rank {rank} killed, the checkpoint is of step {saved_step(checkpoint)}", flush=True)
            out, err = job.end()
        expect(err.count("killed by SIGKILL") >= kills, err)
        self.compare(name, out)
        print(f"{name}: {kills} kills, the same losses and parameters, test accuracy {self.undisturbed[2]} %, "
              f"in {time.monotonic() - start:.1f} s", flush=True)

    def preemption(self, name):
        """SIGTERM to dt run, then to one rank: all end after the same step, and it is in the checkpoint."""
        checkpoint, former, most = self.path(name + ".ck"), -1, self.window[-1]
        for turn, whom in enumerate(("dt run", "rank 1")):
            with self.job(f"{name}{turn}", checkpoint) as job:
                aim = most * (turn + 1) // 3
                job.wait_for(lambda: saved_step(checkpoint) > former and saved_step(checkpoint) >= aim)
                if turn == 0:
                    job.process.send_signal(signal.SIGTERM)
                else:
                    job.send(1, 0, signal.SIGTERM)
                out, err = job.end()
            stopped = re.search(r"stopped after step (\d+); go on with --resume (\S+)", out)
            if stopped is None and saved_step(checkpoint) == self.steps:
                raise TooEarly(name)
            expect(stopped and not err, out + err)
            expect(int(stopped[1]) == saved_step(checkpoint) and stopped[2] == checkpoint, out)
            print(f"{name}: SIGTERM to {whom}: stopped after step {stopped[1]} of {self.steps}", flush=True)
            former = saved_step(checkpoint)
        with self.job(name, checkpoint) as job:
            out, err = job.end()
        expect(f"resumed at step {former}\n" in out and not err, out + err)
        self.compare(name, out)

    def node(self, names, checkpoint, node, ports, *of_dt_run):
        """The agent of one of several nodes, all of them on this machine."""
        name, turn = names
        command = [self.options.dt, "run", "--node-rank", str(node), "--rendezvous",
                   ",".join(f"127.0.0.1:{port}" for port in ports), *of_dt_run]
        return Job(f"{name}{turn}{node}", command + self.trainer(name, checkpoint), self.folder,
                   DT_HOST_ID=f"recovery{node}", DT_RUN_ELASTIC_WAIT_MS="60000")

    def kill_node(self, name, agent, ranks, checkpoint):
        """Kills an agent; its guardian ends the ranks."""
        descriptors = [agent.await_process_of(rank, 0) for rank in ranks]
        agent.process.kill()
        for rank in descriptors:
            expect(select.select([rank], [], [], LIMIT_S)[0], f"{name}: a rank outlives its agent")
            os.close(rank)
        print(f"{name}: the agent of rank {ranks[0]} killed, the checkpoint is of step {saved_step(checkpoint)}", flush=True)

    def node_loss(self, name):
        """Two nodes of two ranks. The agent of one is killed: nothing of the job stays; both start again."""
        checkpoint, most = self.path(name + ".ck"), self.window[-1]
        aim = self.chance.choice(self.window)
        with held_port() as port:
            def start(node, turn):
                return self.node((name, turn), checkpoint, node, [port], "-n", "2", "--nnodes", "2", "--max-restarts", "3")
            for lost in (1, 0):
                with start(0, lost) as node0, start(1, lost) as node1:
                    nodes = (node0, node1)
                    nodes[0].wait_for(lambda: saved_step(checkpoint) >= min(aim, most))
                    self.kill_node(name, nodes[lost], [2 * lost, 2 * lost + 1], checkpoint)
                    while nodes[1 - lost].goes_on():
                        pass
                    expect(nodes[1 - lost].process.returncode not in (0, None), nodes[1 - lost].ended())
                aim = min(saved_step(checkpoint) + 2 * self.save_every, most)
            with start(0, 2) as node0, start(1, 2) as node1:
                out, _ = node0.end()
                node1.end()
        print(f"{name}: 2 nodes lost, {self.compare_almost(name, out)}", flush=True)

    def elastic(self, name):
        """Three nodes of one rank. One is killed, and the other two go on; it comes back, and all three do.

        A step has the same images whatever the number of ranks, so that all losses are those of the undisturbed
        run but for the order of sums."""
        checkpoint, lost = self.path(name + ".ck"), self.chance.randrange(3)
        aim = self.chance.choice(self.window[:len(self.window) // 3])
        with held_port() as port0, held_port() as port1, contextlib.ExitStack() as jobs:
            def start(node, turn):
                return jobs.enter_context(self.node((name, turn), checkpoint, node, [port0, port1], "--nnodes", "3",
                                                    "--min-nodes", "2"))
            nodes = [start(node, 0) for node in range(3)]
            nodes[lost].wait_for(lambda: saved_step(checkpoint) >= aim)
            self.kill_node(name, nodes[lost], [lost], checkpoint)
            others = nodes[:lost] + nodes[lost + 1:]
            os.close(others[0].await_process_of(0, 1))  # of the attempt of two
            begun = saved_step(checkpoint)
            others[0].wait_for(lambda: saved_step(checkpoint) > begun)
            nodes[lost] = start(lost, 1)
            out, err = others[0].end()  # it has rank 0 since the loss
            others[1].end()
            stopped = re.search(r"stopped after step (\d+); ", out)
            if stopped is None or int(stopped[1]) == self.steps:
                raise TooEarly(name)
            nodes[lost].end()
        before, resumed, after = out.partition(f"resumed at step {stopped[1]}\n")
        expect(resumed and "parameters equal on all 2 ranks" in before and "parameters equal on all 3 ranks" in after
               and "dt run: a node has come, all ranks start again with it\n" in err, out + err)
        print(f"{name}: node {lost} came back after step {stopped[1]}; {self.compare_almost(name, after)}", flush=True)

    def survival(self, name):
        """Two of four ranks are killed, and the others go on without a restart."""
        ranks, half = 4, len(self.window) // 2
        checkpoint = self.path(name + ".ck")
        command = [self.options.dt, "run", "-n", str(ranks), "--on-failure", "continue",
                   *self.trainer(name, checkpoint, "--survive")]
        with Job(name, command, self.folder) as job:
            for turn, rank in enumerate(self.chance.sample(range(ranks), 2)):
                aim = self.chance.choice(self.window[turn * half:(turn + 1) * half])
                job.wait_for(lambda step=aim: saved_step(checkpoint) >= step)
                job.goes_on(self.chance.uniform(0, 0.05))
                job.send(rank, 0, signal.SIGKILL)
                print(f"{name}: rank {rank} killed, the checkpoint is of step {saved_step(checkpoint)}", flush=True)
            out, err = job.end(0)
        went_on = re.findall(r"; (\d) go on after step (\d+)", err)
        expect([left for left, _ in went_on] == ["3", "2"], out + err)
        expect("parameters equal on all 2 ranks" in out, out + err)
        print(f"{name}: {', '.join(f'{left} went on after step {step}' for left, step in went_on)}; "
              f"{self.compare_almost(name, out)}", flush=True)

    def full_disk(self, name):
        """A disk with room for one checkpoint, not for its successor beside it. Later it has more."""
        disk, room = self.path("disk"), os.path.getsize(self.path("undisturbed.ck")) * 3 // 2
        os.mkdir(disk)
        steps = 3 * self.save_every
        command = [self.options.dt, "run", "-n", str(self.ranks),
                   *self.trainer(name, os.path.join(disk, "ck"), "--no-eval", "--steps")]
        if subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            print(f"{name}: skipped: no mount namespace can be made here, as in a plain chroot")
            return
        script = ('disk=$1 room=$2 steps=$3; shift 3; mount -t tmpfs -o "size=$room" tmpfs "$disk" || exit 77; '
                  '"$@" "$steps"; echo "ended with $?"; ls "$disk"; '
                  'mount -o remount,size=64m "$disk"; "$@" $((steps + 1))')
        with Job(name, ["unshare", "--mount", "sh", "-c", script, "sh", disk, str(room), str(steps), *command],
                 self.folder) as job:
            while job.goes_on():
                pass
            if job.process.returncode == 77:
                print(f"{name}: skipped: no tmpfs can be mounted here")
                return
            out, err = job.end()
        # The second save has no room, nor the third; the job ends in order, with an error.
        cannot = f"cannot save checkpoint {disk}/ck: No space left on device; check --save, free space and rights"
        for step in (2, 3):
            expect(f"fashion_mnist: rank 0: step {step * self.save_every}: {cannot}; training goes on, the last one: "
                   f"it is of step {self.save_every}\n" in err, err)
        expect(f"fashion_mnist: rank 0: {cannot}\n" in err, err)
        expect("ended with 1\nck\n" in out, out)
        expect(f"resumed at step {self.save_every}\n" in out, out)
        with open(self.path(name + ".csv"), encoding="utf-8") as file:
            losses = file.read().split()
        expect(losses == self.undisturbed[0][:steps + 2], f"{name}: other losses: {losses}")
        print(f"{name}: trained on without room for a checkpoint, resumed from the last one", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dt")
    parser.add_argument("trainer")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    if not os.path.exists(os.path.join(options.data, "train-images-idx3-ubyte.gz")):
        print(f"skipped: no Fashion-MNIST in {options.data}: apt-get install dataset-fashion-mnist")
        sys.exit(77)
    print(f"--seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        recovery = Recovery(options, folder)
        recovery.run_undisturbed()
        scenes = [recovery.kills, recovery.preemption, recovery.survival, recovery.elastic]
        if options.full:
            scenes.append(recovery.node_loss)
        if os.geteuid() == 0:
            scenes.append(recovery.full_disk)
        else:
            print("full_disk: skipped: only root can mount a small disk")
        for scene in scenes:
            for number in range(1, TRIES + 1):
                try:
                    scene(f"{scene.__name__}{number}")
                    break
                except TooEarly as early:  # where the test itself got no processor for seconds
                    expect(number < TRIES, f"{early}: over before it was disturbed, {TRIES} times")


if __name__ == "__main__":
    main()

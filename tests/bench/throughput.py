#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Throughput of a 2-rank job against two independent one-rank trainers.

A: `dt run -n 2 fashion_mnist`. B: two fashion_mnist of one rank at the same
time, each with half of the batch.
In both each rank is pinned to a core of its own and computes batches of the same size, so A / B
says what communication and its threads cost. Rounds are interleaved: A, B, A, B, ...

Images per second are what the trainer prints at the end of its epoch: reading the data, starting
and evaluation do not count. The speed is shown, not judged: the exit code says only whether the
programs ran.

    tests/bench/throughput.py --build build
"""
import argparse
import gzip
import os
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

LABEL_HEADER_BYTES = 8
IMAGE_HEADER_BYTES = 16
IMAGE_BYTES = 28 * 28
# One more shell per rank, replaced by the program: pins it to the core of its local rank.
PIN = 'exec taskset -c "$(echo "$BENCH_CORES" | cut -d, -f$((DT_LOCAL_RANK + 1)))" "$@"'


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--data", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=128, help="images per step of the 2-rank job")
    parser.add_argument("--images", type=int, default=20000, help="of the training set, per run")
    parser.add_argument("--timeout", type=float, default=120, help="seconds per run")
    return parser.parse_args()


def shrink(data, images, target):
    """Writes the first `images` training images, and the test set as it is."""
    for name, header_bytes, item_bytes in (
        ("train-images-idx3-ubyte.gz", IMAGE_HEADER_BYTES, IMAGE_BYTES),
        ("train-labels-idx1-ubyte.gz", LABEL_HEADER_BYTES, 1),
    ):
        with gzip.open(data / name) as file:
            header = bytearray(file.read(header_bytes))
            body = file.read(images * item_bytes)
        if len(body) < images * item_bytes:
            sys.exit(f"throughput.py: {data / name} has fewer than {images} images")
        struct.pack_into(">I", header, 4, images)
        with gzip.open(target / name, "wb", compresslevel=1) as file:
            file.write(bytes(header) + body)
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        shutil.copy(data / name, target / name)


def images_per_second(output):
    found = re.search(r"(\d+) images/s", output)
    if not found:
        sys.exit(f"throughput.py: no images/s in the trainer's output:\n{output}")
    return float(found.group(1))


def start(command, environment):
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(processes, timeout):
    """Their outputs; every process has ended when this returns or exits."""
    outputs = []
    try:
        for process in processes:
            output, error = process.communicate(timeout=timeout)
            if process.returncode != 0:
                sys.exit(f"throughput.py: {process.args[0]} ended with {process.returncode}:\n"
                         f"{output}{error}")
            outputs.append(output)
    except subprocess.TimeoutExpired:
        sys.exit(f"throughput.py: not done after {timeout} s; raise --timeout")
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait()
    return outputs


class Bench:
    def __init__(self, arguments, data, cores):
        self.arguments = arguments
        self.cores = cores
        self.dt = arguments.build / "runtime/cli/dt"
        self.trainer = arguments.build / "examples/fashion_mnist/fashion_mnist"
        self.options = ["--data", str(data), "--epochs", "1", "--no-eval", "--curves", ""]
        for program in (self.dt, self.trainer):
            if not os.access(program, os.X_OK):
                sys.exit(f"throughput.py: {program} is not built; give --build")
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("DT_")}
        self.environment["OMP_NUM_THREADS"] = "1"

    def start(self, ranks, batch, cores):
        """One job; dt run starts lone trainers too, so that both sides are started alike."""
        environment = dict(self.environment, BENCH_CORES=",".join(str(core) for core in cores))
        return start([self.dt, "run", "-n", str(ranks), "--no-prefix", "--", "sh", "-c", PIN, "pin",
                      self.trainer, "--batch", str(batch), *self.options], environment)

    def job(self):
        process = self.start(2, self.arguments.batch, self.cores)
        return images_per_second(finish([process], self.arguments.timeout)[0])

    def alone(self):
        """Sum over one trainer per core that run at the same time."""
        processes = [self.start(1, self.arguments.batch // 2, [core]) for core in self.cores]
        outputs = finish(processes, self.arguments.timeout)
        return sum(images_per_second(output) for output in outputs)


def spread(values):
    return f"{statistics.median(values):9.0f} [{min(values):.0f}-{max(values):.0f}]"


def main():
    arguments = parse_arguments()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("throughput.py: SKIPPED: needs two cores")
        return
    with tempfile.TemporaryDirectory(prefix="dt-throughput-") as directory:
        shrink(arguments.data, arguments.images, pathlib.Path(directory))
        bench = Bench(arguments, directory, cores)
        job, alone = [], []
        for _ in range(arguments.rounds):
            job.append(bench.job())
            alone.append(bench.alone())
    ratios = [a / b for a, b in zip(job, alone)]
    print(f"# fashion_mnist, batch {arguments.batch} over 2 ranks, cores {cores[0]} and {cores[1]}, "
          f"{arguments.rounds} rounds in turn; images/s, median [min-max]")
    print(f"2-rank job                 {spread(job)}")
    print(f"2 one-rank trainers at once{spread(alone)}")
    print(f"ratio of the medians       {statistics.median(job) / statistics.median(alone):9.3f}")
    print(f"ratio within a round       {statistics.median(ratios):9.3f} "
          f"[{min(ratios):.3f}-{max(ratios):.3f}]")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lightgbm_rank.py NETWORK ROUNDS [OPTION...]: a rank that trains on the same rows in turn over dt and over LightGBM's
own sockets; options are those of examples/lightgbm/train.py. The models must be the same text. Rank 0 prints as JSON
the milliseconds of a tree, the median of each training: [median, least, most] over the rounds."""

import ctypes
import importlib.util
import json
import sys
import time
from pathlib import Path

import dt
import lightgbm
import numpy

from free_ports import free_ports

EXAMPLE = Path(__file__).parents[2] / "examples/lightgbm/train.py"
SOCKET_MINUTES = 2
WARM_UP_TREES = 2


def load_example():
    specification = importlib.util.spec_from_file_location("train", EXAMPLE)
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    return example


class Sockets:
    """LightGBM's own network."""

    def __init__(self):
        self.library = ctypes.CDLL(str(Path(lightgbm.__file__).parent / "lib" / "lib_lightgbm.so"))

    def connect(self, comm):
        ports = comm.broadcast_object(free_ports(comm.size) if comm.rank == 0 else None)
        machines = ",".join(f"127.0.0.1:{port}" for port in ports)
        if self.library.LGBM_NetworkInit(machines.encode(), ports[comm.rank], SOCKET_MINUTES, comm.size) != 0:
            self.library.LGBM_GetLastError.restype = ctypes.c_char_p
            raise RuntimeError(self.library.LGBM_GetLastError().decode())

    def disconnect(self):
        self.library.LGBM_NetworkFree()


def train(network, comm, settings, rows, trees):
    """The model as text, and seconds of each tree after the first ones."""
    times = []

    def after_tree(_):
        times.append(time.perf_counter())

    comm.barrier()
    network.connect(comm)
    try:
        booster = lightgbm.train(settings, lightgbm.Dataset(*rows), trees, callbacks=[after_tree])
    finally:
        network.disconnect()
    return booster.model_to_string(), numpy.diff(times)[WARM_UP_TREES - 1:]


def spread(values):
    return [round(float(value), 3) for value in numpy.percentile(values, [50, 0, 100])]


def main(library, rounds, *options):
    example = load_example()
    options = example.parse_options(["--network", library, *options])
    medians = {"dt": [], "sockets": []}
    with dt.Job() as job:
        comm = job.world()
        rows = example.make_rows(options.seed + 1 + job.rank, options.rows, options.features)
        networks = {"dt": example.Network(library), "sockets": Sockets()}
        settings = example.parameters(options, comm.size)
        for _ in range(int(rounds)):
            models = {}
            for name, network in networks.items():
                models[name], times = train(network, comm, settings, rows, options.trees)
                medians[name].append(1000 * float(numpy.median(times)))
            if models["dt"] != models["sockets"]:
                raise AssertionError(f"rank {job.rank}: the models over dt and over sockets differ")
            comm.check_equal(models["dt"].encode(), "model")
        if comm.rank == 0:
            ratios = numpy.divide(medians["dt"], medians["sockets"])
            print(json.dumps({"ranks": comm.size, "rounds": len(ratios), "dt_ms": spread(medians["dt"]),
                              "sockets_ms": spread(medians["sockets"]), "ratio": spread(ratios)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

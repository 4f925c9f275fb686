#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains LightGBM data-parallel over dt: `dt run -n 3 python3 train.py`.

Each rank has its own rows. LightGBM calls two functions of network.so for its communication. If a rank dies, the
others say which, and go on with their rows from the last tree that all of them have; that takes
`dt run --on-failure continue`.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

import dt
import lightgbm
import numpy

HELD_OUT_ROWS = 20000


class Network:
    """Lets LightGBM of the calling thread communicate over a communicator of dt."""

    def __init__(self, library):
        self._dt = ctypes.CDLL(library)
        self._dt.dt_lightgbm_use.argtypes = [ctypes.c_void_p]
        # The library that the package has loaded already.
        self._lightgbm = ctypes.CDLL(str(Path(lightgbm.__file__).parent / "lib" / "lib_lightgbm.so"))
        self._lightgbm.LGBM_NetworkInitWithFunctions.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
                                                                 ctypes.c_void_p]

    def connect(self, comm):
        """A communicator of one rank needs no network."""
        self.disconnect()
        if self._dt.dt_lightgbm_use(comm.handle) != 0:
            comm.check()
        functions = [ctypes.cast(function, ctypes.c_void_p)
                     for function in (self._dt.dt_lightgbm_reduce_scatter, self._dt.dt_lightgbm_allgather)]
        if self._lightgbm.LGBM_NetworkInitWithFunctions(comm.size, comm.rank, *functions) != 0:
            raise RuntimeError(f"LightGBM refuses a network of {comm.size} ranks")

    def disconnect(self):
        self._lightgbm.LGBM_NetworkFree()
        self._dt.dt_lightgbm_use(None)


def make_rows(seed, rows, features):
    """Rows of two classes that overlap; the same ones for the same seed."""
    random = numpy.random.default_rng(seed)
    x = random.standard_normal((rows, features))
    score = numpy.maximum(x[:, 0], x[:, 1]) + numpy.sin(2 * x[:, 2]) + 0.5 * x[:, 3] ** 2 - 2 * numpy.abs(x[:, 4])
    y = score + random.logistic(scale=0.7, size=rows) > 0
    return x, y.astype(numpy.float32)


def area_under_curve(y, score):
    """The part of pairs of a positive and a negative row that the score puts in order."""
    order = numpy.argsort(score, kind="stable")
    _, first, group, count = numpy.unique(score[order], return_index=True, return_inverse=True, return_counts=True)
    rank = numpy.empty(len(y))
    rank[order] = (first + (count + 1) / 2)[group]
    positive = int(y.sum())
    return (rank[y > 0].sum() - positive * (positive + 1) / 2) / (positive * (len(y) - positive))


def parameters(options, ranks):
    return {"objective": "binary", "num_leaves": options.leaves, "learning_rate": 0.1, "verbosity": -1, "seed": 1,
            "num_threads": options.threads, "tree_learner": "data" if ranks > 1 else "serial", "num_machines": ranks,
            "pre_partition": True, **json.loads(options.params)}


class Training:
    def __init__(self, job, options):
        self.job, self.options = job, options
        self.network = Network(options.network)
        self.x, self.y = make_rows(options.seed + 1 + job.rank, options.rows, options.features)
        self.booster = None

    def before_tree(self, state):
        """LightGBM calls it before each tree."""
        self.booster = state.model
        if self.job.rank == self.options.kill_rank and state.iteration == self.options.at_tree:
            print(f"rank {self.job.rank} ends before tree {state.iteration}, at {time.monotonic():.3f}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    before_tree.before_iteration = True

    def common_trees(self, comm):
        """The model up to the last tree that all ranks have: one may have finished a tree that another has not."""
        own = self.booster.current_iteration() if self.booster is not None else 0
        trees = comm.allreduce(own, op="min")
        if trees == 0:
            return None
        return lightgbm.Booster(model_str=self.booster.model_to_string(num_iteration=trees))

    def train(self, comm):
        self.booster = self.common_trees(comm)
        trees = self.booster.current_iteration() if self.booster is not None else 0
        settings = parameters(self.options, comm.size)
        comm.check_equal(json.dumps(settings, sort_keys=True).encode(), "parameters")
        self.network.connect(comm)
        try:
            if trees < self.options.trees:  # a rank may have died behind the last tree
                self.booster = lightgbm.train(settings, lightgbm.Dataset(self.x, self.y), self.options.trees - trees,
                                              init_model=self.booster, callbacks=[self.before_tree],
                                              keep_training_booster=True)
        except lightgbm.basic.LightGBMError:
            comm.check()  # raises dt's error, which has the rank
            raise
        finally:
            self.network.disconnect()
        comm.check_equal(self.booster.model_to_string().encode(), "model")

    def run(self):
        """Trains until all trees are there; returns the communicator of the ranks that are left."""
        comm = self.job.world()
        while True:
            try:
                self.train(comm)
                return comm
            except (dt.PeerLostError, dt.TimeoutError) as error:
                print(f"rank {self.job.rank}, at {time.monotonic():.3f}: {error}", flush=True)
                comm = comm.shrink()
                print(f"rank {self.job.rank} goes on as rank {comm.rank} of {comm.size}", flush=True)


def parse_options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default=str(Path(__file__).absolute().parent / "network.so"),
                        help="network.cc as a shared library (default: network.so next to this file)")
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--leaves", type=int, default=31)
    parser.add_argument("--rows", type=int, default=20000, help="of each rank")
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1, help="of LightGBM in each rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--params", default="{}", help="more parameters of LightGBM, as JSON")
    parser.add_argument("--save", help="file for the model")
    parser.add_argument("--kill-rank", type=int, default=-1, help="this rank ends itself with SIGKILL")
    parser.add_argument("--at-tree", type=int, default=0, help="and when")
    return parser.parse_args(arguments)


def main():
    options = parse_options()
    with dt.Job() as job:
        training = Training(job, options)
        comm = training.run()
        if comm.rank == 0:
            x, y = make_rows(options.seed, HELD_OUT_ROWS, options.features)
            booster = training.booster
            print(f"{booster.current_iteration()} trees, the same on {comm.size} ranks; "
                  f"AUC {area_under_curve(y, booster.predict(x)):.4f}", flush=True)
            if options.save:
                booster.save_model(options.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())

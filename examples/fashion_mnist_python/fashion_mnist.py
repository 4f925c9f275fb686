#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains on Fashion-MNIST with NumPy, on one rank or many: dt run -n 4 python3 fashion_mnist.py

What distributed training adds is in Trainer. Its ranks may stand beside those of examples/fashion_mnist
in one job: they call the same collectives in the same order."""

import argparse
import gzip
import math
import os
import signal
import sys

import dt
import numpy

import network

BUCKET_BYTES = 256 * 1024  # two buckets: one travels while the convolutions go backward
SAVING_S = 600  # a disk that hangs longer than this is a failure
WIRES = {"f32": dt.Wire.SAME, "bf16": dt.Wire.BF16, "f16": dt.Wire.F16, "8bit": dt.Wire.BITS8}
WARMUP_STEPS, MOMENTUM, DECAY = 300, numpy.float32(0.9), numpy.float32(1e-4)


def read(folder, name, header_bytes):
    with gzip.open(os.path.join(folder, name)) as file:
        return numpy.frombuffer(file.read(), "u1", offset=header_bytes)


def read_set(folder, prefix, limit):
    """Images of 28 x 28 grey bytes, and their labels; the first `limit` of them, 0: all."""
    images = read(folder, prefix + "-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    labels = read(folder, prefix + "-labels-idx1-ubyte.gz", 8)
    return images[:limit or None], labels[:limit or None]


def rate_at(peak, step, total_steps):
    """Rises with the square of the step, then follows half a cosine."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    done = min(1.0, step / max(total_steps, 1))
    return peak * warmup * warmup * 0.5 * (1 + math.cos(math.pi * done))


def write_checkpoint(path, arrays):
    """Readers see the old file or the new one, also after a crash."""
    with open(path + ".part", "wb") as file:
        numpy.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)


class Trainer:
    def __init__(self, options, job):
        self.options, self.job = options, job
        self.comm = job.world()
        self.rank, self.size = self.comm.rank, self.comm.size
        if options.accumulate < 1 or options.batch % (self.size * options.accumulate) != 0:
            raise SystemExit(f"--batch {options.batch} cannot be dealt evenly to {self.size} ranks"
                             f" and {options.accumulate} passes of each")
        self.local_batch = options.batch // self.size
        self.images, self.labels = read_set(options.data, "train", options.limit)
        self.test = None if options.no_eval else read_set(options.data, "t10k", 0)
        self.steps_per_epoch = len(self.labels) // options.batch
        self.parameters = network.initial_parameters(options.seed)
        self.velocities = [numpy.zeros_like(each) for each in self.parameters]
        self.sampler = dt.Sampler(len(self.labels), self.size, self.rank, seed=options.seed)
        self.reducer = dt.Reducer(
            self.comm, [dt.Param(each.size, dt.Dtype.F32, name)
                        for name, each in zip(network.NAMES, self.parameters)],
            dt.ReducerOptions(first_bucket_bytes=BUCKET_BYTES, bucket_cap_bytes=BUCKET_BYTES,
                              wire=WIRES[options.wire] if options.powersgd == 0 else dt.Wire.SAME))
        if options.powersgd > 0:  # a weight is a matrix with a column for each output
            self.reducer.power_sgd([each.size // each.shape[-1] if each.ndim > 1 else 0 for each in self.parameters],
                                   rank=options.powersgd, wire=WIRES[options.wire])
        self.sampler.check(self.comm)
        self.gradients = self.read_gradients()
        self.step, self.losses = 0, []
        self.planned_anew = False  # the buckets, by the order in which gradients arrive
        self.saved_step = -1  # of the checkpoint that all ranks know of
        self.made_with = [options.batch, options.seed, len(self.labels)]

    def read_gradients(self):
        """Arrays over the memory of dt's buckets."""
        return [numpy.asarray(self.reducer.grad(i)).reshape(each.shape)
                for i, each in enumerate(self.parameters)]

    def train_step(self, indices):
        passes = numpy.split(indices, self.options.accumulate)
        totals = numpy.zeros(2)
        for number, part in enumerate(passes, 1):
            loss, correct, kept = network.forward(self.parameters, self.images[part], self.labels[part], len(passes))
            totals += loss, correct

            def ready(name, gradient, first=number == 1):
                index = network.NAMES.index(name)
                self.gradients[index][:] = gradient if first else self.gradients[index] + gradient
                self.reducer.ready(index)  # a full bucket travels while the last backward pass goes on

            if number == len(passes):
                done = self.comm.allreduce_async(totals)
            self.reducer.accumulate(number < len(passes))
            network.backward(self.parameters, kept, ready)
        self.reducer.finish()
        if self.options.clip > 0:
            self.reducer.clip_norm(self.options.clip)

        rate = numpy.float32(rate_at(self.options.lr, self.step, self.options.epochs * self.steps_per_epoch))
        for parameter, velocity, gradient in zip(self.parameters, self.velocities, self.gradients):
            velocity[:] = MOMENTUM * velocity + (gradient + DECAY * parameter)
            parameter -= rate * velocity
        if not self.planned_anew:
            self.planned_anew = True
            self.gradients = None  # the buckets may move, so nothing may point there
            del parameter, velocity, gradient
            self.reducer.rebuild()
            self.gradients = self.read_gradients()
        done.wait()
        self.losses.append(float(numpy.float32(totals[0] / self.options.batch)))
        self.step += 1
        return self.job.stop_requested()  # the same on all ranks

    def evaluate(self):
        images, labels = self.test
        totals = numpy.zeros(2)
        last = len(labels) * (self.rank + 1) // self.size
        for begin in range(len(labels) * self.rank // self.size, last, self.local_batch):
            part = slice(begin, min(begin + self.local_batch, last))
            totals += network.forward(self.parameters, images[part], labels[part])[:2]
        self.comm.allreduce(totals)
        return totals[1] / len(labels)

    def check_equal(self):
        """Raises MismatchError on all ranks where one has another step, parameter or velocity."""
        self.comm.check_equal(numpy.array([self.step], "i8"), f"step {self.step}")
        for name, parameter, velocity in zip(network.NAMES, self.parameters, self.velocities):
            self.comm.check_equal(parameter, name)
            self.comm.check_equal(velocity, "optimizer state of " + name)

    def save(self):
        """Rank 0 writes while the others wait, and it counts when all know that it did."""
        if not self.options.save or self.saved_step == self.step:
            return
        failure = None
        if self.rank == 0:
            with self.job.busy("checkpoint", SAVING_S):
                try:
                    write_checkpoint(self.options.save, {
                        "made_with": self.made_with, "losses": self.losses,
                        **{f"parameter{i}": each for i, each in enumerate(self.parameters)},
                        **{f"velocity{i}": each for i, each in enumerate(self.velocities)}})
                except OSError as error:
                    failure = error
        if self.job.agree(failure is None):
            self.saved_step = self.step
        elif self.rank == 0:
            print(f"fashion_mnist: cannot save {self.options.save}: {failure}; training goes on", file=sys.stderr)

    def resume(self):
        if not (self.options.resume == self.options.save and not os.path.exists(self.options.resume)):
            with numpy.load(self.options.resume) as file:
                if file["made_with"].tolist() != self.made_with:
                    raise RuntimeError(f"{self.options.resume} was made with other --batch, --seed or images")
                self.losses = file["losses"].tolist()
                for i, (parameter, velocity) in enumerate(zip(self.parameters, self.velocities)):
                    parameter[:], velocity[:] = file[f"parameter{i}"], file[f"velocity{i}"]
            self.step = self.saved_step = len(self.losses)
        self.check_equal()  # also when some rank found no file

    def run(self):
        if self.options.resume:
            self.resume()
        planned = self.options.epochs * self.steps_per_epoch
        last, stopped = min(self.options.steps or planned, planned), False
        while self.step < last and not stopped:
            epoch, position = divmod(self.step, self.steps_per_epoch)
            self.sampler.set_epoch(epoch)
            stopped = self.train_step(numpy.asarray(
                self.sampler.indices(position * self.local_batch, self.local_batch)))
            if position + 1 == self.steps_per_epoch:
                accuracy = math.nan if self.test is None else self.evaluate()
                if self.rank == 0 and not self.options.quiet:
                    print(f"epoch {epoch + 1}/{self.options.epochs}  loss {self.losses[-1]:.3f}  "
                          f"test {100 * accuracy:.2f} %", flush=True)
                self.save()
            elif self.options.save_every and self.step % self.options.save_every == 0:
                self.save()
        self.save()
        if self.options.loss_log and self.rank == 0:
            with open(self.options.loss_log, "w", encoding="utf-8") as file:
                file.write("step,loss\n")
                file.writelines(f"{step},{loss:.9g}\n" for step, loss in enumerate(self.losses, 1))
        self.check_equal()
        if self.rank == 0 and self.size > 1 and not self.options.quiet:
            print(f"parameters equal on all {self.size} ranks")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("epochs", 3), ("batch", 120), ("seed", 1), ("steps", 0), ("limit", 0),
                        ("save-every", 0), ("accumulate", 1), ("powersgd", 0)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--clip", type=float, default=0)
    parser.add_argument("--wire", choices=WIRES, default="f32")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    for name in ("loss-log", "save", "resume"):
        parser.add_argument("--" + name)
    parser.add_argument("--no-eval", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    with dt.Job() as job:
        signal.signal(signal.SIGTERM, lambda *_: job.request_stop())  # all end after the same step
        Trainer(options, job).run()


if __name__ == "__main__":
    main()

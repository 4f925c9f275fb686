# SPDX-License-Identifier: Apache-2.0
"""The Fashion-MNIST trainer, for a few steps."""

import os

from started import expect

DATA = "/usr/share/datasets/fashion-mnist"


def can_train(trainer):
    """The trainer needs libraries to be built and data to run."""
    if os.path.exists(trainer) and os.path.exists(os.path.join(DATA, "train-images-idx3-ubyte.gz")):
        return True
    print("the trainer: not run: apt-get install dataset-fashion-mnist zlib1g-dev libopenblas-dev libcairo2-dev")
    return False


def training_command(trainer):
    return [trainer, "--data", DATA, "--steps", "3", "--no-eval", "--curves", ""]


def check_training(result, world_size):
    code, out, err = result
    expect(code == 0, f"exit code {code}\n{out}{err}")
    expect(f"parameters equal on all {world_size} ranks" in out, out + err)

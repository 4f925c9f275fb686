#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training with PyTorch that goes on when a rank is lost:

    dt run -n 4 --on-failure continue python3 train.py

A call of the process group then fails on each rank that is left, with an error that names the lost one. The ranks leave
it out of the group, take over the state of rank 0, and go on. Rank 0 must live: it serves the stores."""

import os

import dt.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 40, 16


def batch_of(step, rank, size):
    """What this rank learns in that step: images are random, and the label is the brightest of four quarters."""
    generator = torch.Generator().manual_seed(step * size + rank)
    images = torch.randn(BATCH, 4, 16, generator=generator)
    return images.flatten(1), images.mean(2).argmax(1)


class Training:
    """A model, its optimizer, and how far they are."""

    def __init__(self):
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 4))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-2)
        self.done = 0  # steps
        self.take_over()

    def take_over(self):
        """The state of rank 0. A rank may have ended a step that failed on another one."""
        state = [self.done, self.optimizer.state_dict()]
        dist.broadcast_object_list(state)
        self.done = state[0]
        self.optimizer.load_state_dict(state[1])
        self.model = DistributedDataParallel(self.net)  # sends the parameters

    def step(self):
        images, labels = batch_of(self.done, dist.get_rank(), dist.get_world_size())
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.done += 1
        return loss.item()


def train(before_step=lambda step, rank: None):
    """The losses of this rank. before_step: is told how far it is."""
    training, losses, lost = Training(), [], False
    while lost or training.done < STEPS:
        try:
            if lost:  # once more if another rank is lost in here
                dt.torch.shrink_group()
                training.take_over()
                lost = False
                print(f"step {training.done}: rank {dist.get_rank()} of {dist.get_world_size()} goes on", flush=True)
                continue
            before_step(training.done, dist.get_rank())
            losses.append(training.step())
        except dist.DistBackendError as error:
            print(f"step {training.done}: {error}", flush=True)
            lost = True
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("dt")
    found = train()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} (pid {os.getpid()}): loss {found[0]:.4f}, in the end "
          f"{found[-1]:.4f}")
    dist.destroy_process_group()

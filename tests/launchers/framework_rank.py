# SPDX-License-Identifier: Apache-2.0
"""framework_rank.py plain|accelerate|deepspeed|fabric|trainer [RANKS]: a rank that makes a job of dt, after that
framework has made its own, and prints one line with its place. RANKS: Lightning starts the other ranks itself."""
import json
import os
import sys


def rank_of_dt(rank, size):
    """Joins, compares a sum, and says where it is; `rank` and `size` are what the framework says, or None."""
    import dt

    with dt.Job() as job:
        place = job.place
        total = job.world().allreduce(place.rank + 1)
    expect(total == place.world_size * (place.world_size + 1) // 2, f"the sum is {total}")
    expect(rank is None or (rank, size) == (place.rank, place.world_size), f"{rank} of {size}, but dt says {place}")
    line = {name: getattr(place, name) for name in ("rank", "world_size", "local_rank", "launcher")}
    os.write(1, (json.dumps(line) + "\n").encode())  # in one piece: all ranks share a pipe


def expect(good, text):
    if not good:
        sys.exit("framework_rank: " + text)


def check_torch(size):
    """PyTorch's own group still works after dt has left."""
    import torch
    import torch.distributed as dist

    ones = torch.ones(3)
    dist.all_reduce(ones)
    expect(ones.tolist() == [size] * 3, f"PyTorch's sum is {ones}")


def plain(_):
    rank_of_dt(None, None)


def accelerate(_):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    rank_of_dt(accelerator.process_index, accelerator.num_processes)
    check_torch(accelerator.num_processes)
    accelerator.end_training()


def deepspeed(_):
    import deepspeed
    import torch.distributed as dist

    deepspeed.init_distributed("gloo")
    rank_of_dt(dist.get_rank(), dist.get_world_size())
    check_torch(dist.get_world_size())
    dist.destroy_process_group()


def fabric(ranks):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp")
    fabric.launch()
    rank_of_dt(fabric.global_rank, fabric.world_size)
    check_torch(fabric.world_size)


def trainer(ranks):
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def on_fit_start(self):
            rank_of_dt(self.global_rank, self.trainer.world_size)

        def training_step(self, batch, _):
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)
    quiet = {"logger": False} | {f"enable_{part}": False for part in ("checkpointing", "progress_bar", "model_summary")}
    lightning.Trainer(accelerator="cpu", devices=ranks, strategy="ddp", max_epochs=1, **quiet).fit(Model(), data)


if __name__ == "__main__":
    kind = {each.__name__: each for each in (plain, accelerate, deepspeed, fabric, trainer)}[sys.argv[1]]
    kind(int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2].isdigit() else 2)

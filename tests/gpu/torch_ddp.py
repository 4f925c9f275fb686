# SPDX-License-Identifier: Apache-2.0
"""A step of PyTorch's DistributedDataParallel over the backends dt and nccl, in turns in the same processes.

    dt run -n N -- python3 torch_ddp.py

The wheel's folder must be in PYTHONPATH. Ends with 77 where there is no PyTorch or no GPU."""

import datetime
import statistics
import time

from torch_gpu import take_gpu, torch
import torch.distributed as dist
import dt.torch  # noqa: F401 (makes the backend known)

LAYERS, WIDTH, BATCH = 12, 1024, 512
ROUNDS, STEPS, WARM_UP = 11, 5, 3


class Trainer:
    def __init__(self, group):
        torch.manual_seed(1)
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).cuda()
        self.parameters = sum(each.numel() for each in model.parameters())
        self.model = torch.nn.parallel.DistributedDataParallel(model, process_group=group,
                                                               gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.inputs = torch.randn(BATCH, WIDTH, device="cuda")

    def step_ms(self, steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=False)
            self.model(self.inputs).square().mean().backward()
            self.optimizer.step()
        torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - begin) / steps


def main():
    take_gpu()
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=datetime.timedelta(seconds=60))
    trainers = {"nccl": Trainer(None), "dt": Trainer(dist.new_group(backend="dt"))}
    for each in trainers.values():
        each.step_ms(WARM_UP)
    taken = {name: [] for name in trainers}
    for _ in range(ROUNDS):
        for name, each in trainers.items():
            taken[name].append(each.step_ms(STEPS))
    if dist.get_rank() == 0:
        print(f"# DistributedDataParallel on {torch.cuda.get_device_name()}, {dist.get_world_size()} ranks, "
              f"{trainers['dt'].parameters} parameters of float32, PyTorch {torch.__version__}, "
              f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}; {ROUNDS} rounds of {STEPS} steps in turns")
        for name, each in taken.items():
            print(f"{name:5} step: median {statistics.median(each):.2f} ms, {min(each):.2f} to {max(each):.2f}")
        ratios = [one / other for one, other in zip(taken["dt"], taken["nccl"])]
        print(f"ratio: dt takes {statistics.median(ratios):.3f} of nccl's time, {min(ratios):.3f} to {max(ratios):.3f}")
    dist.barrier()
    del trainers
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""framework_training.py FRAMEWORK BACKEND [FAULT]: a rank that trains the way the framework's guide says, over that
backend of torch.distributed. Prints the losses of its own batches, as JSON. FAULT: see framework_faults.py."""

import json
import os
import pathlib
import signal
import socket
import sys

import framework_faults as faults
import torch
import torch.distributed as dist

STEPS, BATCH = 20, 8
BACKEND = sys.argv[2]
RANKS = int(os.environ["RANKS"])
HOSTS = int(os.environ.get("HOSTS", 1))


class Vit(torch.nn.Module):
    """A small vision transformer: patches of 8 x 8 pixels of an image of 32 x 32."""

    def __init__(self, classes=10, width=64):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, width, 8, stride=8)
        self.places = torch.nn.Parameter(torch.zeros(1, 16, width))
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0, batch_first=True) for _ in range(2))
        self.end = torch.nn.Linear(width, classes)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            tokens = layer(tokens)
        return self.end(tokens.mean(1))


class Images(torch.utils.data.Dataset):
    """Random, the same on all ranks."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(count, 3, 32, 32, generator=generator)
        self.labels = torch.randint(0, 10, (count,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def model():
    torch.manual_seed(5)
    net = Vit(10 + faults.odd())
    net.register_forward_pre_hook(faults.before_forward)
    return net


def batches(ranks, rank):
    data = Images(STEPS * BATCH * ranks)
    order = torch.utils.data.DistributedSampler(data, ranks, rank, shuffle=True, seed=3)
    return torch.utils.data.DataLoader(data, BATCH, sampler=order)


def loss_of(net, images, labels):
    return torch.nn.functional.cross_entropy(net(images), labels)


def plain(net, optimizer, rank, ranks, backward=None, step=None):
    losses = []
    for images, labels in batches(ranks, rank):
        if optimizer is not None:
            optimizer.zero_grad()
        loss = loss_of(net, images, labels)
        (backward or torch.Tensor.backward)(loss)
        (step or optimizer.step)()
        losses.append(loss.item())
    return losses


def ddp():
    dist.init_process_group(BACKEND)
    net = torch.nn.parallel.DistributedDataParallel(model())
    return plain(net, torch.optim.AdamW(net.parameters(), 1e-3), dist.get_rank(), dist.get_world_size())


def fsdp2():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group(BACKEND)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = model()
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return plain(net, torch.optim.AdamW(net.parameters(), 1e-3), dist.get_rank(), dist.get_world_size())


def accelerate():
    from accelerate import Accelerator

    dist.init_process_group(BACKEND)  # else it takes gloo where there is no GPU
    accelerator = Accelerator(cpu=True)
    net = model()
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 1e-3))
    return plain(net, optimizer, accelerator.process_index, accelerator.num_processes, accelerator.backward)


def trainer():
    import transformers

    dist.init_process_group(BACKEND)
    losses = []

    class Note(transformers.TrainerCallback):
        def on_log(self, arguments, state, control, logs=None, **_):
            losses.extend([logs["loss"]] if "loss" in logs else [])

    class Words(torch.utils.data.Dataset):
        def __len__(self):
            return STEPS * BATCH * dist.get_world_size()

        def __getitem__(self, index):
            words = torch.randint(0, 100, (16,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": words, "labels": words}

    torch.manual_seed(5)
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=100 + faults.odd(), n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0))
    net.register_forward_pre_hook(faults.before_forward)
    arguments = transformers.TrainingArguments(
        output_dir=os.environ["OUTPUT_DIR"], use_cpu=True, max_steps=STEPS, per_device_train_batch_size=BATCH,
        logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, seed=3)
    transformers.Trainer(net, arguments, train_dataset=Words(), callbacks=[Note()]).train()
    return losses


def lightning():
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy

    losses = []

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = None
            self.unused = torch.nn.Linear(2, 2)

        def configure_model(self):  # the process group is there
            self.net = self.net or model()

        def training_step(self, batch, _number):
            loss = loss_of(self.net, *batch)
            losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-3)

    strategy = DDPStrategy(process_group_backend=BACKEND, find_unused_parameters=True)
    data = torch.utils.data.DataLoader(Images(STEPS * BATCH * RANKS), BATCH)
    Trainer(accelerator="cpu", devices=RANKS // HOSTS, num_nodes=HOSTS, strategy=strategy, max_steps=STEPS,
            logger=False, barebones=True, enable_progress_bar=False).fit(Module(), data)
    return losses


def deepspeed(stage):
    import deepspeed as engine

    engine.init_distributed(dist_backend=BACKEND)
    net = model()
    config = {"train_micro_batch_size_per_gpu": BATCH, "zero_optimization": {"stage": stage},
              "zero_allow_untested_optimizer": True}
    net, *_ = engine.initialize(model=net, config=config, optimizer=torch.optim.AdamW(net.parameters(), 1e-3))
    faults.group = getattr(net.optimizer, "dp_process_group", None)
    return plain(net, None, dist.get_rank(), dist.get_world_size(), net.backward, net.step)


def elastic():
    """examples/elastic_ddp_python, in which two ranks are killed, one after the other."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/elastic_ddp_python"))
    import train

    dist.init_process_group(BACKEND)
    return train.train(lambda step, rank: step == faults.STEP and rank == 1 and os.kill(os.getpid(), signal.SIGKILL))


WAYS = {"ddp": ddp, "fsdp2": fsdp2, "accelerate": accelerate, "trainer": trainer, "lightning": lightning,
        "elastic": elastic,
        **{f"deepspeed{stage}": lambda stage=stage: deepspeed(stage) for stage in range(4)}}

if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 3:
        faults.open_notes(sys.argv[3])
        faults.watch(WAYS[sys.argv[1]])
        sys.exit(0)
    found = WAYS[sys.argv[1]]()
    line = {"rank": dist.get_rank(), "host": socket.gethostname(), "backend": dist.get_backend(), "losses": found}
    os.write(1, ("\n" + json.dumps(line) + "\n").encode())  # in one piece: ranks may share a pipe
    dist.barrier()
    dist.destroy_process_group()

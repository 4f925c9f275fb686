# SPDX-License-Identifier: Apache-2.0
"""rival_torch.py VICTIM FOLDER: a rank of torch.distributed over gloo, for rivals.py: allreduces in a loop until an
error, each element checked. Rank VICTIM does what the file FOLDER/fault says."""

import datetime
import json
import os
import pathlib
import select
import signal
import sys
import time

import torch
import torch.distributed as dist

VICTIM, FAULT = int(sys.argv[1]), pathlib.Path(sys.argv[2]) / "fault"
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def tell(event, **more):
    sys.stdout.write(json.dumps({"event": event, "rank": RANK, "pid": os.getpid(), "at": time.monotonic_ns(), **more})
                     + "\n")
    sys.stdout.flush()


def main():
    seconds = os.environ.get("RIVAL_TIMEOUT_S")
    limit = {"timeout": datetime.timedelta(seconds=int(seconds))} if seconds else {}
    dist.init_process_group("gloo", init_method="env://", rank=RANK, world_size=SIZE, **limit)
    step, wrong = 0, False
    while True:
        count, op = 1000, dist.ReduceOp.SUM
        if RANK == VICTIM and FAULT.exists():
            fault = FAULT.read_text()
            FAULT.unlink()
            tell("fault")
            if fault == "absent":
                signal.pause()
            count += 1 if fault == "wrong_count" else 0
            op = dist.ReduceOp.MAX if fault == "wrong_op" else op
        data = torch.full((count,), float(RANK + 1))
        dist.all_reduce(data, op=op)
        if not wrong and not bool((data == SIZE * (SIZE + 1) / 2).all()):
            wrong = True
            tell("wrong", message=f"step {step}: {data[0].item()} ... {data[-1].item()}")
        if step == 0:
            tell("ready")
        step += 1
        select.select([], [], [], 0.001)  # as a step that computes


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as problem:
        tell("error", message=str(problem))
        os._exit(9)

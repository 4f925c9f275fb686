# SPDX-License-Identifier: Apache-2.0
"""What rank 1 of a training does wrong, the same in all frameworks, and what the ranks get from it: each prints its
exception, as JSON. A training has no fault without `kind`."""

import datetime
import json
import os
import signal
import time

import torch
import torch.distributed as dist

STEP, VICTIM = 5, 1
WAIT_S = 60  # for what other ranks note
kind = None
group = None  # of the framework's own, in which rank 1 calls once more; None: the default one
steps = 0
_notes = None  # shared by the ranks


def open_notes(fault):
    global kind, _notes  # pylint: disable=global-statement
    kind = fault
    _notes = dist.FileStore(os.path.join(os.environ["OUTPUT_DIR"], f"{os.environ['FAULT_ID']}.notes"), -1)
    _notes.set_timeout(datetime.timedelta(seconds=WAIT_S))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # launchers end the other ranks before these have looked


def begin():
    _notes.set("began", f"{time.monotonic()} {os.getpid()}")


def odd():
    """What the size of a parameter has too much: enough for another size of FSDP2's padded shards."""
    if kind != "parameter" or dist.get_rank() != VICTIM:
        return 0
    begin()
    return 8


def before_forward(_net, _inputs):
    global steps  # pylint: disable=global-statement
    steps += 1
    if steps != STEP or kind in (None, "parameter"):
        return
    faulty = dist.get_rank() == VICTIM
    if faulty:
        begin()
    if kind == "size":
        dist.all_reduce(torch.ones(4 if faulty else 3))
    elif faulty and kind == "order":
        dist.all_reduce(torch.ones(1), group=group)
    elif faulty:
        os.kill(os.getpid(), signal.SIGKILL if kind == "killed" else signal.SIGSTOP)


def watch(train):
    """Runs it. Tells class and text of an exception, and how long after the fault it came. Ranks without a fault wait
    for each other then, so that none of them loses another one that has ended."""
    try:
        return train()
    except Exception as error:
        seen = time.monotonic()
        began, pid = _notes.get("began").decode().split()
        line = {"rank": dist.get_rank(), "classes": [each.__name__ for each in type(error).__mro__], "text": str(error),
                "seconds": seen - float(began)}
        os.write(1, ("\n" + json.dumps(line) + "\n").encode())
        if dist.get_rank() == VICTIM:
            raise
        _notes.set(f"seen by {dist.get_rank()}", "")
        _notes.wait([f"seen by {each}" for each in range(int(os.environ["RANKS"])) if each != VICTIM])
        if kind == "stopped" and dist.get_rank() == 0:
            os.kill(int(pid), signal.SIGKILL)
        raise

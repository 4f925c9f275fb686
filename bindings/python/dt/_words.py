# SPDX-License-Identifier: Apache-2.0
"""Messages of dt, which name what dt.h has, in the names of this package."""

import re
from typing import Match

# Functions of dt.h that are not called as they are there: dt_comm_split() is Comm.split().
_NAMES = {
    "abort": "Job.abort", "agree": "Job.agree", "batch_gradient_sums": "Comm.batch_gradient_sums",
    "batch_moments": "Comm.batch_moments", "busy_begin": "Job.busy", "busy_end": "Job.busy",
    "comm_create": "Job.create_comm", "comm_world": "Job.world", "config_create": "Config", "finalize": "Job.finalize",
    "group_begin": "Comm.group", "group_end": "Comm.group", "init": "Job",
    "job_peer_stats": "Job.peer_statistics", "job_stats": "Job.statistics",
    "mem_alloc": "Comm.alloc", "mem_free": "Memory.close", "named_create": "Named",
    "named_stats": "Named.statistics", "named_submit": "Named.under", "named_submit_group": "Named.group",
    "outer_create": "Outer", "ps_connect": "Ps", "ps_fd": "Ps.fileno", "ps_info": "ps_info", "ps_pull": "PsVariable.pull",
    "ps_push": "PsVariable.push", "ps_serve": "PsServer", "ps_server_port": "PsServer.port",
    "ps_server_stats": "PsServer.statistics", "ps_server_wait": "PsServer.wait", "ps_set": "PsVariable.set",
    "ps_stats": "Ps.statistics", "rank_info": "Job.place", "reducer_create": "Reducer",
    "reducer_stats": "Reducer.statistics", "request_stop": "Job.request_stop",
    "sampler_create": "Sampler", "sampler_length": "Sampler",
    "sampler_resume": "Sampler.load_state_dict",
    "sampler_save": "Sampler.state_dict", "shard_create": "Shard", "stop_requested": "Job.stop_requested",
    "store_serve": "StoreServer", "store_server_port": "StoreServer.port",
    "trace_dump": "Job.trace_dump", "work_fd": "Comm.fileno", "work_wait_any": "wait_any",
}
_CLASSES = {"comm": "Comm", "config": "Config", "named": "Named", "outer": "Outer", "ps": "Ps", "reducer": "Reducer",
            "sampler": "Sampler", "optimizer": "Optimizer", "shard": "Shard", "store": "Store", "work": "Work"}
_WORDS = {" is NULL": " is None", "options->": "", "spec->": "", "state->": "", "sequential and": "shuffle=False and"}
_FUNCTION = re.compile(r'"[^"]*"|\bdt_((?:[a-z]+_)*[a-z]+)\b')
_CLOSED = re.compile(r"\b(comm|config|job|named|optimizer|outer|ps|reducer|sampler|server|shard|work|works\[\d+\]) is NULL")


def _name(match: Match[str]) -> str:
    name = match[1]
    if name is None:  # a name or a path in quotes
        return match[0]
    of, _, what = name.partition("_")
    if name in _NAMES:
        return _NAMES[name]
    return f"{_CLASSES[of]}.{what}" if of in _CLASSES else name


def _closed(match: Match[str]) -> str:
    return f"{match[1]} is closed"


def pythonic(message: str) -> str:
    """The message with Python's names of things."""
    if "dt_" in message or "NULL" in message:
        # Functions, since a template makes re import at its first use, which the end of Python refuses.
        message = _CLOSED.sub(_closed, _FUNCTION.sub(_name, message))
        for word, ours in _WORDS.items():
            message = message.replace(word, ours)
    return message

# SPDX-License-Identifier: Apache-2.0
"""What every rank must have said when a schedule is over; pure, so that it can be tested without a job."""

import dataclasses
import re

from schedule import RELAYED

SLACK_MS = 6000  # a busy machine; what is reached is printed, and far below
HALF = "allreduce of a half"  # of every other rank
LEFT = "has left the job with dt_finalize, and this operation needs it"
KILLING = ("kill", "kill_host", "disk_trace", "kill_unheard")
PAIRS = ("blackhole", "blackhole_one_way", "reset_data")
# What tells a wrong call from the right one, which is allreduce f32 sum x 1000, then broadcast i32 x 777.
WRONG = {"wrong_count": "allreduce f32 sum x 1001", "wrong_op": "allreduce f32 max x 1000",
         "wrong_dtype": "allreduce i32 sum x 1000", "wrong_kind": "barrier", "wrong_skip": "broadcast i32 x 777 root ",
         "wrong_root": "broadcast i32 x 777 root "}


@dataclasses.dataclass
class Outcome:
    """Of a schedule. Times in ns of the monotonic clock."""
    fault_ns: int = 0  # when the last fault happened
    pids: dict = dataclasses.field(default_factory=dict)  # by rank
    codes: dict = dataclasses.field(default_factory=dict)  # by rank; None: had to be killed
    events: dict = dataclasses.field(default_factory=dict)  # by rank: what it wrote
    stderr: dict = dataclasses.field(default_factory=dict)  # by rank
    left: list = dataclasses.field(default_factory=list)  # texts: processes, files
    trouble: list = dataclasses.field(default_factory=list)  # texts: what the harness could not do
    named_hosts: bool = True  # ranks of host h call it "hosth"


def first(events, name):
    return next((event for event in events if event["event"] == name), None)


def has_left(schedule, outcome, rank):
    """Whether it called dt_finalize. Of two that leave, one may need the other one before it comes to that."""
    return (schedule.kind == "leave" and rank in schedule.faults[-1].ranks
            and first(outcome.events[rank], "left") is not None)


def survivors(schedule):
    """Those that must get the error, in time."""
    gone = schedule.faults[-1].ranks if schedule.kind in KILLING + ("stop_long", "leave") else []
    return [rank for rank in range(len(schedule.placed)) if rank not in gone]


def noticed_ms(schedule, outcome):
    """From the fault until the last survivor had its error; None without."""
    times = [first(outcome.events[rank], "error") for rank in survivors(schedule)]
    if schedule.harmless or not times or None in times:
        return None
    return (max(event["returned"] for event in times) - outcome.fault_ns) / 1e6


def judge(schedule, outcome):
    """Texts of what is wrong; none: all is as it must be."""
    found = list(outcome.trouble) + [f"left behind: {text}" for text in outcome.left]
    for rank in range(len(schedule.placed)):
        killed = schedule.kind in KILLING and rank in schedule.faults[-1].ranks
        events, code = outcome.events[rank], outcome.codes[rank]
        # What one that leaves has begun may need another one that has left.
        gone = has_left(schedule, outcome, rank) and first(events, "error") is None
        # Of several that are killed one after the other, the last may hear of the first before.
        wanted = (-9,) if killed else (0,) if schedule.harmless or gone else (9,)
        if code not in wanted + ((9,) if killed and schedule.kind == "kill_host" else ()):
            how = "hung and was killed" if code is None else f"ended with {code}"
            found.append(f"rank {rank} {how}, expected {wanted[0]}; stderr: {outcome.stderr[rank][-600:]!r}")
        if (wrong := first(events, "wrong")) is not None:
            found.append(f"rank {rank} has a wrong value: {wrong['message']}")
        if not killed:
            found += [f"rank {rank}: {text}" for text in judge_end(schedule, first(events, "end"))]
        if schedule.harmless:
            if (error := first(events, "error")) is not None:
                found.append(f"rank {rank} has an error and should have none: {error['status']}: {error['message']}")
        elif not killed and not gone:
            found += [f"rank {rank}: {text}" for text in judge_error(schedule, outcome, rank)]
    if schedule.kind == "leave":
        found += judge_leaving(schedule, outcome)
    errors = [first(events, "error") for events in outcome.events.values()]
    if schedule.kind == "reset_data" and not any(error and " broke: " in error["message"] for error in errors):
        found.append("no rank says that a connection broke")
    ends = [first(events, "end") for events in outcome.events.values()]
    if schedule.harmless and None not in ends and len({end["steps"] for end in ends}) > 1:
        found.append(f"stopped in different steps: {[end['steps'] for end in ends]}")
    return found


def judge_end(schedule, end):
    if end is None:
        return ["it did not tell its end"]
    # libuv makes one pipe in a process, for signals, and never closes it.
    pipes = [one.split()[1] for one in end["kept"] if one.split()[1].startswith("pipe:")]
    own = pipes[0] if len(pipes) == 2 and pipes[0] == pipes[1] else "none"
    found = [f"it still holds {one}" for one in end["kept"] if one.split()[1] != own]
    # Who needs a rank that has left ends as the others do; the job itself has not failed.
    if (schedule.harmless or schedule.kind == "leave") and end["finalize"] != "DT_OK":
        found.append(f"dt_finalize: {end['finalize']}: {end['why']}")
    # On a full disk no half of a file stays.
    found += [f"the file {name} was left on the disk" for name in end["disk"] if not name.endswith(".dttrace")]
    return found


def judge_leaving(schedule, outcome):
    """dt_finalize returns when the last one has ended its job, and not before."""
    ranks = [rank for rank in schedule.faults[-1].ranks if has_left(schedule, outcome, rank)]
    found = [] if ranks else ["no rank has left"]
    errors = [first(outcome.events[rank], "error") for rank in range(len(schedule.placed)) if rank not in ranks]
    last_ns = max((error["returned"] for error in errors if error is not None), default=outcome.fault_ns)
    for rank in ranks:
        left = first(outcome.events[rank], "left")
        late_ms = (left["returned"] - last_ns) / 1e6
        if late_ms > SLACK_MS:
            found.append(f"rank {rank}: dt_finalize returned {late_ms:.0f} ms after the last error")
        if late_ms < 0:
            found.append(f"rank {rank}: dt_finalize returned while others were still there")
    return found


def judge_error(schedule, outcome, rank):
    error = first(outcome.events[rank], "error")
    if error is None:
        return ["it has no error"]
    found = []
    if rank in survivors(schedule):
        late_ms = (error["returned"] - outcome.fault_ns) / 1e6 - schedule.limit_ms()
        if late_ms > SLACK_MS:
            found.append(f"the error came {late_ms:.0f} ms after the limit")
        if late_ms + schedule.limit_ms() < 0:
            found.append("the error came before the fault")
    again = first(outcome.events[rank], "again")
    same = again is None or all(again[key] == error[key] for key in ("status", "rank", "pid", "host"))
    if not same and of_half(schedule, error, again, rank):
        # It knows of its own ranks only, and one of them may have ended because of the fault.
        found += judge_named(schedule, outcome, error)
        if error["rank"] % 2 != rank % 2:
            found.append(f"a half without it names rank {error['rank']}")
        error = again
    elif not same and error["call"] == HALF:
        # Of several ranks that may be named, it need not be the same one that all ranks are told of.
        if again["rank"] not in expected(schedule, again, rank)[1]:
            found.append(f"the communicator of all ranks names rank {again['rank']}: {again['message']}")
    elif not same and (again["status"] == "DT_OK" or schedule.kind not in RELAYED):
        found.append(f"the next call says something else: {again['status']} of rank {again['rank']}: {again['message']}")
    if told_elsewhere(schedule, outcome, error):
        return [f"{text}; it said {error['message']}" for text in found + judge_named(schedule, outcome, error)]
    statuses, named, texts = expected(schedule, error, rank)
    if error["status"] not in statuses:
        found.append(f"{error['status']} instead of {' or '.join(statuses)}")
    if error["rank"] not in named:
        found.append(f"it names rank {error['rank']}, not one of {sorted(named)}")
    else:
        found += judge_named(schedule, outcome, error)
    if schedule.kind in PAIRS and error["status"] == "DT_ERR_TIMEOUT" or schedule.kind == "reset_data":
        found += judge_pair(schedule, error)
    found += [f"its message does not say {text!r}" for text in texts if text not in error["message"]]
    return [f"{text}; it said {error['status']} of rank {error['rank']}: {error['message']}" for text in found]


def of_half(schedule, error, again, rank):
    """Whether the error comes from a communicator of every other rank, which has no rank that may be named."""
    return (error["call"] == HALF and again["status"] != "DT_OK"
            and all(guilty % 2 != rank % 2 for guilty in expected(schedule, again, rank)[1]))


def told_elsewhere(schedule, outcome, error):
    """Whether the named rank did not come, or left, because the fault ended what it did on the other communicator.

    Where some ranks are in an operation of a half and others in one of all ranks, both are late at once. Who waits
    for a rank that is held up in the other one can name that rank alone, whose own error is judged for itself. A rank
    that has left breaks what needs it, and a rank that has its error leaves as well; so does one whose half alone lost
    a connection."""
    if schedule.kind not in PAIRS + ("leave",) or error["rank"] not in outcome.events:
        return False
    absent = error["status"] == "DT_ERR_TIMEOUT" and "has not arrived" in error["message"]
    gone = error["status"] == "DT_ERR_ABORTED" and "has destroyed this communicator" in error["message"]
    if schedule.kind in ("leave", "reset_data"):
        gone = gone or error["status"] == "DT_ERR_PEER_LOST" and LEFT in error["message"]
        absent = absent and schedule.kind != "leave"
    its = first(outcome.events[error["rank"]], "error")
    return (absent or gone) and its is not None and (its["call"] == HALF) != (error["call"] == HALF)


def judge_named(schedule, outcome, error):
    """The named rank's host and process are the right ones, and the message has them, too."""
    rank, found = error["rank"], []
    if error["pid"] != outcome.pids[rank]:
        found.append(f"it names pid {error['pid']}, but rank {rank} is {outcome.pids[rank]}")
    if outcome.named_hosts and error["host"] != f"host{schedule.placed[rank]}":
        found.append(f"it names host {error['host']!r}, but rank {rank} is on host{schedule.placed[rank]}")
    if f"rank {rank} (" not in error["message"] and f"(world rank {rank}, " not in error["message"]:
        found.append(f"its message does not name rank {rank}")
    return found


def judge_pair(schedule, error):
    """What goes wrong between two hosts, with nobody dead: a rank of each is named."""
    return [f"its message names no rank of host {host}" for host in schedule.faults[-1].hosts
            if re.search(rf"rank \d+ \((world rank \d+, )?host{host}\b", error["message"]) is None]


def on_hosts(schedule, hosts):
    return {rank for rank, host in enumerate(schedule.placed) if host in hosts}


def across(schedule, rank, one, other):
    """Ranks that may be named where nothing passes between the hosts `one` and `other` (lists) any more."""
    if schedule.placed[rank] in one:
        return on_hosts(schedule, other)
    if schedule.placed[rank] in other:
        return on_hosts(schedule, one)
    return on_hosts(schedule, one) | on_hosts(schedule, other)


def expected(schedule, error, rank):
    """Statuses, ranks that may be named, and what the message contains."""
    kind, fault = schedule.kind, schedule.faults[-1]
    lost, late = ("DT_ERR_PEER_LOST",), ("DT_ERR_PEER_LOST", "DT_ERR_TIMEOUT")
    everybody = set(range(len(schedule.placed)))
    if kind in KILLING:
        return lost, set(fault.ranks), ()
    if kind == "stop_long":
        if rank in fault.ranks:  # it wakes up, and is told so, or finds the others gone
            return lost + ("DT_ERR_ABORTED",), everybody, ()
        return lost, set(fault.ranks), ("no sign of life",)
    if kind == "link_down":
        cut = fault.hosts
        return late, across(schedule, rank, cut, [h for h in range(schedule.hosts) if h not in cut]), ()
    if kind == "reset_data":  # either end of the connection; see judge_pair()
        return lost, on_hosts(schedule, fault.hosts), (" broke: ",)
    if kind in ("blackhole", "blackhole_one_way"):
        # Likewise of an operation that is late; and what is lost on its way to the store still gets an
        # answer from there, which tells a rank of the others of its host.
        if kind == "blackhole_one_way" and fault.hosts[-1] == 0 and schedule.placed[rank] == fault.hosts[0]:
            if error["status"] == "DT_ERR_ABORTED":
                return ("DT_ERR_ABORTED",), {rank}, ("was declared lost",)
            return late, on_hosts(schedule, fault.hosts), ()
        if error["status"] == "DT_ERR_TIMEOUT":
            return late, on_hosts(schedule, fault.hosts), ()
        return late, across(schedule, rank, fault.hosts[:1], fault.hosts[1:]), ()
    if kind in ("reset_control", "control_one_way"):
        if rank not in fault.ranks:
            return lost, set(fault.ranks), ()
        if error["status"] == "DT_ERR_ABORTED":  # what the store says still arrives
            return ("DT_ERR_ABORTED",), set(fault.ranks), ("was declared lost",)
        return lost, {0}, ()
    if kind == "leave":
        return lost, set(fault.ranks) - {rank}, (LEFT,)
    if kind == "disk_checkpoint":
        return ("DT_ERR_ABORTED",), set(fault.ranks), ("No space left on device",)
    if kind == "absent":
        return ("DT_ERR_TIMEOUT",), set(fault.ranks), ("has not arrived",)
    assert kind in WRONG, kind
    # Of two that disagree either may be the one that is wrong.
    named = set(fault.ranks) if len(everybody) > 2 else everybody
    return ("DT_ERR_MISMATCH",), named, ("disagree", f"rank {fault.ranks[0]} (", WRONG[kind])

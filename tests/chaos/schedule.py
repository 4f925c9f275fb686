# SPDX-License-Identifier: Apache-2.0
"""What one run of chaos does, as a pure function of its seed: ranks, hosts, settings, and faults in order."""

import dataclasses
import random

HEARTBEAT_MS = 3000  # the limit; short, so that a schedule takes seconds
OPERATION_MS = 4000  # of operations that nothing else ends
PATIENT_MS = 60_000  # of operations that something else must end

# Kind of the last fault -> what a machine must be able to do for it.
KINDS = {
    "kill": (),
    "wrong_count": (),
    "stop_short": (),
    "link_down": ("hosts",),
    "slow": (),
    "reset_data": ("hosts", "reset"),
    "stop_long": (),
    "wrong_kind": (),
    "blackhole": ("hosts", "filter"),
    "disk_checkpoint": ("disk",),
    "kill_host": ("hosts",),
    "absent": (),
    "reset_control": (),
    "link_flap": ("hosts",),
    "wrong_op": (),
    "blackhole_one_way": ("hosts", "filter"),
    "delay": (),
    "wrong_skip": (),
    "disk_trace": ("disk",),
    "control_one_way": (),
    "wrong_dtype": (),
    "wrong_root": (),
    "kill_unheard": (),
    "leave": (),
}
HARMLESS = ("stop_short", "link_flap", "delay", "slow")
# Kinds in which a rank speaks to the store through a relay that can be told to misbehave.
RELAYED = ("reset_control", "delay", "control_one_way", "kill_unheard")
# Kinds that are noticed by silence, or by an operation's own limit.
BY_SILENCE = ("stop_long", "link_down", "blackhole", "blackhole_one_way", "control_one_way")
BY_DEADLINE = ("absent",)
OPERATIONS = 6  # of a step


@dataclasses.dataclass
class Fault:
    kind: str
    after_ms: int  # since the fault before, or since all ranks were ready
    ranks: list  # that are killed, stopped, late, wrong, or behind the relay
    hosts: list  # the host that is cut off; the two between which packets are lost, the receiver last
    lasts_ms: int = 0  # of what ends by itself
    direction: str = ""  # of what a relay keeps back: "to_store" or "from_store"
    # Of ranks that leave: before which operation of a step, and whether they begin that one without waiting for it.
    leaves: list = dataclasses.field(default_factory=list)

    def text(self):
        whom = f"rank {', '.join(map(str, self.ranks))}" if self.ranks else f"host {' -> '.join(map(str, self.hosts))}"
        lasting = f" for {self.lasts_ms} ms" if self.lasts_ms else ""
        how = " " + self.direction if self.direction else f" {self.leaves}" if self.leaves else ""
        return f"{self.kind} of {whom}{how}{lasting} after {self.after_ms} ms"


@dataclasses.dataclass
class Schedule:
    seed: int
    placed: list  # host of each rank
    faults: list  # in order; the last one is what the schedule is named after
    relayed: int  # this rank meets the store through a relay; -1: none
    pace_ms: int
    stopper: int  # rank that asks for the stop where nothing ended the job
    settings: dict

    @property
    def kind(self):
        return self.faults[-1].kind

    @property
    def harmless(self):
        return self.kind in HARMLESS

    @property
    def hosts(self):
        return len(set(self.placed))

    def ranks_on(self, host):
        return [rank for rank, where in enumerate(self.placed) if where == host]

    def limit_ms(self):
        """Until the fault must have been noticed, by what the job was told to wait for."""
        if self.kind in BY_SILENCE:
            return HEARTBEAT_MS if self.settings["DT_COLLECTIVE_TIMEOUT_MS"] != str(OPERATION_MS) else OPERATION_MS
        return OPERATION_MS if self.kind in BY_DEADLINE else 0

    def text(self):
        guard = self.settings["DT_SECURITY_MODE"]
        return (f"seed {self.seed}: {len(self.placed)} ranks on hosts {self.placed}, {guard}, "
                + ", then ".join(fault.text() for fault in self.faults))


def needs(seed):
    return KINDS[kind_of(seed)]


def kind_of(seed):
    return list(KINDS)[seed % len(KINDS)]


def place(draw, kind):
    hosts = draw.choice((2, 2, 3)) if "hosts" in KINDS[kind] else draw.choice((1, 1, 2, 3))
    if kind == "kill_host":
        hosts = draw.choice((2, 3))
    ranks = draw.randint(max(2, hosts), 8)
    placed = list(range(hosts)) + [draw.randrange(hosts) for _ in range(ranks - hosts)]
    if draw.random() < 0.5:
        placed.sort()
    else:  # rank 0, and so the store, stays on host 0
        placed[1:] = draw.sample(placed[1:], ranks - 1)
    return placed


def make_fault(draw, kind, placed, relayed):
    size, hosts = len(placed), len(set(placed))
    fault = Fault(kind, draw.randint(0, 400), [], [])
    if kind in ("link_down", "link_flap", "kill_host"):
        fault.hosts = [draw.randrange(hosts)]
        if kind == "kill_host":
            fault.ranks = [rank for rank in range(size) if placed[rank] == fault.hosts[0]]
    elif kind in ("blackhole", "blackhole_one_way", "reset_data"):
        fault.hosts = draw.sample(range(hosts), 2)
    elif kind in RELAYED:
        fault.ranks = [relayed]
    else:
        fault.ranks = [draw.randrange(size)]
    if kind == "stop_short":
        fault.lasts_ms = draw.randint(100, 1000)
    elif kind == "slow":
        fault.lasts_ms = draw.randint(100, 1000)
    elif kind == "link_flap":
        fault.lasts_ms = draw.randint(50, 600)
    elif kind == "delay":
        fault.lasts_ms = draw.randint(20, 400)
    elif kind == "control_one_way":
        fault.direction = draw.choice(("to_store", "from_store"))
    elif kind == "leave":
        fault.ranks = draw.sample(range(size), 2 if size > 2 and draw.random() < 0.3 else 1)
        fault.leaves = [(draw.randrange(OPERATIONS), draw.random() < 0.4) for _ in fault.ranks]
    return fault


def make(seed, abilities=frozenset(("hosts", "reset", "filter", "disk"))):
    draw = random.Random(f"chaos {seed}")
    kind = kind_of(seed)
    placed = place(draw, kind)
    if "hosts" not in abilities:
        placed = [0] * len(placed)
    size, hosts = len(placed), len(set(placed))
    if kind == "kill_unheard":  # of a rank that is not alone on its host: the store hears of it from the others
        placed = (sorted(placed)[:1] + sorted(placed))[:8]
        size = len(placed)
    relayed = draw.randrange(1, size) if kind in RELAYED or draw.random() < 0.2 else -1
    if kind == "kill_unheard":
        relayed = draw.choice([rank for rank in range(1, size) if placed.count(placed[rank]) > 1])
    before = [one for one in HARMLESS if (one != "delay" or relayed >= 0) and (one != "link_flap" or hosts > 1)]
    faults = [make_fault(draw, draw.choice(before), placed, relayed) for _ in range(draw.choice((0, 0, 1, 2)))]
    faults.append(make_fault(draw, kind, placed, relayed))
    # A way between two hosts that both reach the store is only missed by an operation between them.
    beside_store = kind in ("blackhole", "blackhole_one_way") and 0 not in faults[-1].hosts
    guards = ("auth", "encrypt", "none") if hosts == 1 else ("auth", "encrypt")
    settings = {
        "DT_SECURITY_MODE": draw.choice(guards),
        "DT_HOST_INLINE_BYTES": draw.choice(("0", "256", "8192")),
        "DT_HOST_SLOT_BYTES": draw.choice(("4096", "65536")),
        "DT_HEARTBEAT_INTERVAL_MS": "200",
        "DT_HEARTBEAT_TIMEOUT_MS": str(HEARTBEAT_MS if kind in BY_SILENCE else 30_000),
        "DT_COLLECTIVE_TIMEOUT_MS": str(OPERATION_MS if kind in BY_DEADLINE or beside_store else PATIENT_MS),
        "DT_RENDEZVOUS_TIMEOUT_MS": "60000",
        "DT_WATCHDOG_STALL_WARN_MS": "30000",
    }
    return Schedule(seed, placed, faults, relayed, draw.choice((0, 1, 3)), draw.randrange(size), settings)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lightning_test.py DT CHECK_PROGRAM: processes with the variables that Lightning's own launcher sets, which name no rank."""

import sys
from pathlib import Path

from free_ports import free_ports
from started import Launches, environment, expect, places, run_cases

DT, PROGRAM = (str(Path(argument).resolve()) for argument in sys.argv[1:3])


def start(launches, processes, world_size, apart=True, **variables):
    """A process for each (node, local rank); `apart`: as many hosts as nodes."""
    lines = []
    for node, local in processes:
        host = f"DT_HOST_ID=host{node} " if apart else ""
        lines.append(f'{host}NODE_RANK={node} LOCAL_RANK={local} "$0" & pids="$pids $!"')
    lines.append("code=0; for pid in $pids; do wait $pid || code=1; done; exit $code")
    common = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    return launches.run(["sh", "-c", "\n".join(lines), PROGRAM], environment(common, **variables))


def check_nodes(launches, sizes, apart=True):
    processes = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
    # The last nodes first: nobody knows how many processes the lower ones have.
    code, out, err = start(launches, processes[::-1], len(processes), apart)
    found = sorted(places(out), key=lambda place: place["rank"])
    expect(code == 0 and [place["rank"] for place in found] == list(range(len(processes))), f"{code}: {out}{err}")
    expect(all(place["launcher"] == "lightning" for place in found), out)
    if apart:
        expect([(place["node_rank"], place["local_rank"]) for place in found] == processes, out)


def check_missing(launches):
    code, out, err = start(launches, [(0, 0), (0, 1), (1, 0)], 4, DT_RENDEZVOUS_TIMEOUT_MS="2000")
    expect(code == 1 and not places(out), f"{code}: {out}{err}")
    expect("3 of 4 processes have come, and the rank of this one (node 1 local rank 0) follows from all; missing: node 1 "
           "local rank 1; " in err, err)


def check_config(launches):
    """dt config says that the rank is not known yet."""
    variables = {"WORLD_SIZE": "4", "NODE_RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    code, out, err = launches.run([DT, "config", "--json"], environment(variables))
    expect(code == 0 and '"rank": null, "world_size": 4, "local_rank": 1' in out, f"{code}: {out}{err}")
    code, out, err = launches.run([DT, "config"], environment(variables))
    expect(out.startswith("rank (known after the join) of 4 (launcher: lightning)"), out + err)


def main():
    with Launches() as launches:
        return run_cases([("2 + 2", lambda: check_nodes(launches, [2, 2])),
                          ("1 + 3 + 2", lambda: check_nodes(launches, [1, 3, 2])),
                          ("one node", lambda: check_nodes(launches, [3])),
                          ("two nodes on one host", lambda: check_nodes(launches, [2, 2], apart=False)),
                          ("a process is missing", lambda: check_missing(launches)),
                          ("dt config", lambda: check_config(launches))])


if __name__ == "__main__":
    sys.exit(main())

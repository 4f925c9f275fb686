#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Agents of an elastic job on hosts that are network namespaces: of two sides of a cut only one goes on.

partition_test.py DT PROGRAM [case ...]; ends with 77 where namespaces cannot be made.
"""

import re
import sys
import time

from agents import Agents, SILENCE_MS, is_alive
from cases import expect, run_cases
from network import Network


def cut_off(victim):
    """One host of three: the other two go on, it does not, and comes back when the network is mended."""
    others = [host for host in range(3) if host != victim]
    with Network(3) as network, Agents(network, 3, 3, ["--min-nodes", "1"]) as agents:
        pids = [agents.wait_for_part(host, 0, host, 3) for host in range(3)]
        network.unplug(victim)
        began = time.monotonic()
        # The one whose output comes first has the others' processes to look at.
        agents.wait_for_part(others[0], 1, 0, 2)
        expect(not is_alive(pids[victim]), f"the ranks of host {victim} live beside the next attempt")
        again_s = time.monotonic() - began
        agents.wait_for_part(others[1], 1, 1, 2)
        agents.wait_for(victim, r"1 of the 3 agents of attempt 0")
        told_s = time.monotonic() - began
        for host in others:
            expect(re.search(rf"node {victim} \(host host{victim}, dt run pid \d+\) is gone: ", agents.text[host]),
                   agents.all_text())
        expect("attempt 1 rank" not in agents.text[victim], agents.all_text())
        print(f"  silence of {SILENCE_MS / 1000} s ends the attempt: the others began the next one after {again_s:.1f} s, "
              f"host {victim} had told that it is a minority after {told_s:.1f} s")
        network.plug(victim)
        lead = others[0]
        rest = sorted([victim, others[1]])
        agents.wait_for_part(lead, 2, 0, 3)
        for rank, host in enumerate(rest, 1):
            agents.wait_for_part(host, 2, rank, 3)


def cut_off_lead():
    """The host of the store: the agent of the second address serves."""
    cut_off(0)


def cut_off_member():
    cut_off(2)


if __name__ == "__main__":
    Agents.dt, Agents.program = sys.argv[1:3]
    sys.exit(run_cases([cut_off_lead, cut_off_member], 2))

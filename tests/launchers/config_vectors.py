#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""config_vectors.py DT: `dt config --json` under each recorded environment says the recorded place or error."""

import json
import re
import subprocess
import sys
from pathlib import Path

VECTORS = Path(__file__).parent.parent / "vectors" / "launch_vectors.json"
FIELDS = ["rank", "world_size", "local_rank", "local_size", "node_rank", "node_count", "master_addr", "master_port",
          "launcher"]
DEADLINE_S = 20


def run(command, environment):
    # What a folder or a user has in dt.toml is no part of a vector.
    environment = {**environment, "HOME": "/nonexistent", "DT_CONFIG": "/dev/null"}
    return subprocess.run([command, "config", "--json"], env=environment, cwd="/", capture_output=True, text=True,
                          timeout=DEADLINE_S)


def place_of(command, environment):
    """The place, or what is wrong with the answer."""
    answer = run(command, environment)
    if answer.returncode != 0:
        return None, f"it exits {answer.returncode}: {answer.stderr.strip()}"
    return json.loads(answer.stdout)["place"], answer.stderr


def compare(expected, place):
    for field in FIELDS:
        if field not in place:
            yield f"place has no {field}"
        elif expected.get(field) is not None and place[field] != expected[field]:
            yield f"{field} is {place[field]!r}, expected {expected[field]!r}"


def complaints_about(command, vector):
    if "expect" in vector:
        expected = vector["expect"]
        place, said = place_of(command, vector["env"])
        if place is None:
            yield said
            return
        yield from compare(expected, place)
        if place["master_port_taken_by_launcher"] != expected.get("master_port_taken_by_launcher", False):
            yield "master_port_taken_by_launcher is wrong"
        for warning in vector.get("warn", []):
            if warning + ": " not in said:
                yield f"no warning {warning} in: {said}"
        return
    answer = run(command, vector["env"])
    if answer.returncode == 0 or answer.stdout:
        yield f"it exits {answer.returncode} and prints {answer.stdout[:200]!r}, expected an error"
    for part in [vector["expect_error"] + ": "] + vector["error_mentions"]:
        if part not in answer.stderr:
            yield f"{part!r} is not in: {answer.stderr}"
    if "expect_ids" in vector:
        place, said = place_of(command, {**vector["env"], "MASTER_ADDR": "10.9.8.7", "MASTER_PORT": "1234"})
        if place is None:
            yield "with an address: " + said
            return
        expected = {**vector["expect_ids"], "master_addr": "10.9.8.7", "master_port": 1234}
        for text in compare(expected, place):
            yield "with an address: " + text


def complaints_about_page(command):
    """docs/launching.md names each family that DT_LAUNCHER takes."""
    page = (VECTORS.parent.parent.parent / "docs" / "launching.md").read_text(encoding="utf-8")
    names = run(command, {"DT_LAUNCHER": "?"}).stderr.strip().rpartition("expected one of ")[2].split(", ")
    if len(names) < 10:
        yield f"unexpected names: {names}"
    row = next((line for line in page.splitlines() if line.startswith("| `DT_LAUNCHER` |")), "")
    for name in names:
        if name not in re.findall(r"[\w-]+", row):
            yield f"{name} is not in the row DT_LAUNCHER of docs/launching.md"


def main():
    command = str(Path(sys.argv[1]).resolve())
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    failed = 0
    for vector in vectors:
        complaints = list(complaints_about(command, vector))
        for text in complaints:
            print(f"{vector['name']}: {text}")
        failed += bool(complaints)
    for text in complaints_about_page(command):
        failed += 1
        print(text)
    print(f"{len(vectors) - failed} of {len(vectors)} environments")
    return 1 if failed or not vectors else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_collectives.py [--check]: writes collectives.json, what each collective must give; --check compares.

The file holds one case per line, and in a case one call for each rank. What a rank has for another one is
worked out here in plain Python; each language runs all cases and compares bytes. Fields of a case: kind,
ranks, dtype, op, peer (the root), calls. Of a call, each left out where the rank has none:
  send, recv     the buffers before the call, as bytes in hexadecimal, little-endian
  result         recv after it
  send_counts, send_offsets, recv_counts, recv_offsets     tables, in elements
  own            in place: the buffer that has one rank's block is a part of the other one, and not given
                 by itself: its first element and its count
  to, from       the other ranks of a send and of the recv that goes with it
"""

import json
import pathlib
import struct
import sys

LETTERS = {"i8": "b", "u8": "B", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f16": "e", "f32": "f",
           "f64": "d", "i16": "h", "u16": "H", "bool": "B", "f8e4m3": "B", "f8e5m2": "B"}
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
FLOATS = ("f16", "bf16", "f32", "f64")
OPS = {"sum": lambda a, b: a + b, "prod": lambda a, b: a * b, "min": min, "max": max, "band": lambda a, b: a & b,
       "bor": lambda a, b: a | b, "bxor": lambda a, b: a ^ b}


def to_bytes(dtype, values):
    if dtype == "bf16":  # the upper half of a float; all values here need no more
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{LETTERS[dtype]}", *values)


def size_of(dtype):
    return len(to_bytes(dtype, [0]))


def value(sender, receiver, i):
    """Element i of what one rank has for another one: every dtype holds it, and sums of three."""
    return 1 + (3 * sender + 5 * receiver + 7 * i) % 30


def part(sender, receiver, count):
    return [value(sender, receiver, i) for i in range(count)]


def uneven(sender, receiver):
    """Counts that differ for each pair, zero among them."""
    return (sender + 2 * receiver + 1) % 4


def reduced(op, rows):
    result = rows[0]
    for row in rows[1:]:
        result = [OPS[op](a, b) for a, b in zip(result, row)]
    return result


class Table:
    """Blocks one behind the other, or in reverse order with a gap of two elements before each."""

    def __init__(self, counts, gaps):
        self.counts, self.gaps = counts, gaps
        self.offsets, self.end = [0] * len(counts), 0
        ranks = range(len(counts))
        for rank in reversed(ranks) if gaps else ranks:
            self.offsets[rank] = self.end + (2 if gaps else 0)
            self.end = self.offsets[rank] + counts[rank]

    def fill(self, dtype, parts):
        """The parts in their places, and bytes of 255 between them; `parts` None: only those."""
        size = size_of(dtype)
        memory = bytearray(b"\xff" * (size * self.end))
        for offset, values in zip(self.offsets, parts or []):
            memory[size * offset:size * (offset + len(values))] = to_bytes(dtype, values)
        return bytes(memory)

    def own(self, rank):
        return f"{self.offsets[rank]} {self.counts[rank]}"

    def fields(self, side):
        fields = {side + "_counts": " ".join(map(str, self.counts))}
        if self.gaps:
            fields[side + "_offsets"] = " ".join(map(str, self.offsets))
        return fields


class Maker:
    def __init__(self):
        self.cases = []

    def add(self, kind, dtype, op, peer, calls):
        made = [{name: each.hex() if isinstance(each, bytes) else each
                 for name, each in call.items() if each is not None} for call in calls]
        self.cases.append({"kind": kind, "ranks": len(calls), "dtype": dtype, "op": op, "peer": peer,
                           "calls": made})

    def allreduce(self, dtype, op, rows, result):
        """In place."""
        self.add("allreduce", dtype, op, 0, [
            {"recv": to_bytes(dtype, row), "result": to_bytes(dtype, result), "own": f"0 {len(row)}"}
            for row in rows])

    def reductions(self, n, dtype, op, count):
        """allreduce and reduce, apart and in place."""
        rows = [part(r, 0, count) for r in range(n)]
        sends, total = [to_bytes(dtype, row) for row in rows], to_bytes(dtype, reduced(op, rows))
        before = b"\xff" * len(total)
        self.add("allreduce", dtype, op, 0, [{"send": send, "recv": before, "result": total} for send in sends])
        self.allreduce(dtype, op, rows, reduced(op, rows))
        for root in range(n):
            self.add("reduce", dtype, op, root, [
                {"send": send, "recv": before if r == root else None, "result": total if r == root else None}
                for r, send in enumerate(sends)])
            self.add("reduce", dtype, op, root, [
                {"recv": send, "result": total, "own": f"0 {count}"} if r == root else {"send": send}
                for r, send in enumerate(sends)])

    def rooted(self, n, dtype, count):
        """broadcast, gather and scatter, with equal parts."""
        for root in range(n):
            sent = to_bytes(dtype, part(root, 0, count))
            self.add("broadcast", dtype, "sum", root, [
                {"recv": sent if r == root else b"\xff" * len(sent), "result": sent} for r in range(n)])
            self.blocks(root, dtype, [count] * n, False, "")

    def everybody(self, n, dtype, count):
        """Kinds without a root, with equal parts, and a ring of messages."""
        equal = Table([count] * n, False)
        self.gathered(dtype, equal, "allgather", {})
        self.scattered(dtype, "sum", equal, "reduce_scatter", {})
        self.add("alltoall", dtype, "sum", 0, [
            {"send": equal.fill(dtype, [part(r, to, count) for to in range(n)]), "recv": equal.fill(dtype, None),
             "result": equal.fill(dtype, [part(sender, r, count) for sender in range(n)])} for r in range(n)])
        if n > 1:
            self.add("send", dtype, "sum", 0, [
                {"send": to_bytes(dtype, part(r, 0, count)), "to": (r + 1) % n, "from": (r - 1) % n,
                 "recv": b"\xff" * size_of(dtype) * count,
                 "result": to_bytes(dtype, part((r - 1) % n, 0, count))} for r in range(n)])

    def gathered(self, dtype, table, kind, fields):
        """allgather and allgatherv."""
        parts = [part(r, 0, count) for r, count in enumerate(table.counts)]
        result = table.fill(dtype, parts)
        self.add(kind, dtype, "sum", 0, [
            {"send": to_bytes(dtype, own), "recv": table.fill(dtype, None), "result": result, **fields}
            for own in parts])
        self.add(kind, dtype, "sum", 0, [
            {"recv": table.fill(dtype, [own if r == rank else [] for r in range(len(parts))]), "result": result,
             "own": table.own(rank), **fields} for rank, own in enumerate(parts)])

    def scattered(self, dtype, op, table, kind, fields):
        """reduce_scatter and reduce_scatterv."""
        ranks = range(len(table.counts))
        rows = [[part(sender, r, table.counts[r]) for r in ranks] for sender in ranks]
        results = [to_bytes(dtype, reduced(op, [row[r] for row in rows])) for r in ranks]
        sends = [table.fill(dtype, row) for row in rows]
        self.add(kind, dtype, op, 0, [
            {"send": sends[r], "recv": b"\xff" * len(results[r]), "result": results[r], **fields} for r in ranks])
        self.add(kind, dtype, op, 0, [
            {"send": sends[r], "result": results[r], "own": table.own(r), **fields} for r in ranks])

    def blocks(self, root, dtype, counts, gaps, v):
        """gather and scatter, or with v the kinds that have tables."""
        table = Table(counts, gaps)
        ranks = range(len(counts))
        parts = [to_bytes(dtype, part(r, root, count)) for r, count in enumerate(counts)]
        whole = table.fill(dtype, [part(r, root, count) for r, count in enumerate(counts)])
        own = table.fill(dtype, [part(r, root, count) if r == root else [] for r, count in enumerate(counts)])
        at_root = lambda r, **fields: fields if r == root else {}
        recv, send = (table.fields("recv"), table.fields("send")) if v else ({}, {})
        self.add("gather" + v, dtype, "sum", root, [
            {"send": parts[r], **at_root(r, recv=table.fill(dtype, None), result=whole, **recv)} for r in ranks])
        self.add("gather" + v, dtype, "sum", root, [
            at_root(r, recv=own, result=whole, own=table.own(r), **recv) or {"send": parts[r]} for r in ranks])
        self.add("scatter" + v, dtype, "sum", root, [
            {"recv": b"\xff" * len(parts[r]), "result": parts[r], **at_root(r, send=whole, **send)} for r in ranks])
        self.add("scatter" + v, dtype, "sum", root, [
            at_root(r, send=whole, result=parts[r], own=table.own(r), **send) or
            {"recv": b"\xff" * len(parts[r]), "result": parts[r]} for r in ranks])

    def tables(self, n, dtype):
        """Kinds with a count for each rank, with and without offsets."""
        ranks = range(n)
        for gaps in (False, True):
            for root in ranks:
                counts = [uneven(r, root) for r in ranks]
                table = Table(counts, gaps)
                self.blocks(root, dtype, counts, gaps, "v")
                self.gathered(dtype, table, "allgatherv", table.fields("recv"))
                self.scattered(dtype, "sum", table, "reduce_scatterv", table.fields("send"))
            for recv_gaps in (False, True):
                calls = []
                for r in ranks:
                    to, come = (Table([uneven(r, other) for other in ranks], gaps),
                                Table([uneven(other, r) for other in ranks], recv_gaps))
                    calls.append({
                        "send": to.fill(dtype, [part(r, other, to.counts[other]) for other in ranks]),
                        "recv": come.fill(dtype, None),
                        "result": come.fill(dtype, [part(other, r, come.counts[other]) for other in ranks]),
                        **to.fields("send"), **come.fields("recv")})
                self.add("alltoallv", dtype, "sum", 0, calls)

    def dtypes(self):
        """Each reduction of each dtype that has it; the others are only moved."""
        for dtype in INTEGERS + FLOATS:
            for op in ("sum", "prod", "min", "max") + (("band", "bor", "bxor") if dtype in INTEGERS else ()):
                rows = [[1 + (r + 2 * i) % 5 for i in range(5)] for r in range(3)]
                self.allreduce(dtype, op, rows, reduced(op, rows))
        for dtype in FLOATS:  # a half is exact
            self.allreduce(dtype, "avg", [[2, 6, 10], [4, 8, 0]], [3, 7, 5])
        for dtype in INTEGERS:  # truncated
            self.allreduce(dtype, "avg", [[2, 6, 3], [5, 8, 0], [1, 1, 1]], [2, 5, 1])
        # As signed numbers the highest bit is less than 1, as unsigned ones more; a mean is cut towards 0.
        for dtype in INTEGERS:
            bits = 8 * size_of(dtype)
            high = -1 if dtype[0] == "i" else 2**bits - 1
            for op, wanted in (("min", min(high, 1)), ("max", max(high, 1)), ("band", 1)):
                self.allreduce(dtype, op, [[high], [1]], [wanted])
            if dtype[0] == "i":
                self.allreduce(dtype, "avg", [[-2], [-3]], [-2])
        for op, wanted in (("sum", [0, 1, 1]), ("max", [0, 1, 1]), ("bor", [0, 1, 1]), ("prod", [0, 0, 1]),
                           ("min", [0, 0, 1]), ("band", [0, 0, 1]), ("bxor", [0, 1, 0])):
            self.allreduce("bool", op, [[0, 0, 1], [0, 1, 1]], wanted)
        for dtype in (*LETTERS, "bf16"):
            table = Table([2, 2], False)
            parts = [[0, 1] if dtype == "bool" else [2 + r, 4] for r in range(2)]
            self.add("allgather", dtype, "sum", 0, [
                {"send": to_bytes(dtype, own), "recv": table.fill(dtype, None), "result": table.fill(dtype, parts)}
                for own in parts])

    def make(self):
        for n in (1, 2, 3):
            self.add("barrier", "u8", "sum", 0, [{} for _ in range(n)])
            for count in (0, 1, 5):
                self.reductions(n, "f32", "sum", count)
                self.rooted(n, "i32", count)
                self.everybody(n, "f32", count)
            self.tables(n, "i32")
        for dtype in ("f64", "i64", "i32"):  # what arrays of the languages have besides
            self.reductions(2, dtype, "max", 3)
            self.rooted(2, dtype, 3)
            self.everybody(2, dtype, 3)
            self.tables(2, dtype)
        self.dtypes()
        lines = ",\n".join(json.dumps(case) for case in self.cases)
        return f'{{"cases": [\n{lines}\n]}}\n'


def main():
    path = pathlib.Path(__file__).with_name("collectives.json")
    text = Maker().make()
    if sys.argv[1:] == ["--check"]:
        if path.read_text() != text:
            sys.exit(f"{path} is not what make_collectives.py makes; run it")
    else:
        path.write_text(text)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The rules of chaos, held to outcomes made by hand: good ones pass, and each thing that can be wrong is found."""

import copy
import unittest

import rules
import schedule as schedules

ABLE = frozenset(("hosts", "reset", "filter", "disk"))


def seed_of(kind, wanted=lambda schedule: True):
    return next(schedules.make(seed, ABLE) for seed in range(100_000)
                if schedules.kind_of(seed) == kind and wanted(schedules.make(seed, ABLE)))


def end(**other):
    return {"event": "end", "finalize": "DT_OK", "why": "", "steps": 5, "kept": [], "disk": []} | other


def outcome_of(schedule, event=None):
    """As it should be; `event(rank)` gives the error of a rank, None for one that has none."""
    size = len(schedule.placed)
    outcome = rules.Outcome(fault_ns=1_000_000_000, pids={rank: 100 + rank for rank in range(size)})
    for rank in range(size):
        error = event(rank) if event is not None else None
        outcome.events[rank] = [end()] if error is None else [error, error | {"event": "again"}, end()]
        outcome.codes[rank] = 0 if error is None else 9
        outcome.stderr[rank] = ""
    return outcome


def lost(schedule, named, status="DT_ERR_PEER_LOST", text="", after_ms=5):
    return {"event": "error", "returned": 1_000_000_000 + after_ms * 1_000_000, "status": status, "rank": named,
            "host": f"host{schedule.placed[named]}", "pid": 100 + named, "call": "allreduce",
            "message": f"rank {named} (host{schedule.placed[named]} pid {100 + named}) {text}"}


def left(after_ms=6):
    return {"event": "left", "returned": 1_000_000_000 + after_ms * 1_000_000, "status": "DT_OK", "why": ""}


class Schedules(unittest.TestCase):
    def test_a_seed_makes_the_same_schedule_every_time(self):
        for seed in range(200):
            self.assertEqual(schedules.make(seed), schedules.make(seed))
            self.assertEqual(schedules.make(seed).kind, schedules.kind_of(seed))

    def test_all_kinds_come_with_every_number_of_hosts_and_ranks(self):
        made = [schedules.make(seed) for seed in range(500)]
        self.assertEqual({one.kind for one in made}, set(schedules.KINDS))
        self.assertEqual({one.hosts for one in made}, {1, 2, 3})
        self.assertEqual({len(one.placed) for one in made}, set(range(2, 9)))
        for one in made:
            self.assertEqual(one.placed[0], 0, "the store is on host 0")
            self.assertEqual(set(one.placed), set(range(one.hosts)))

    def test_without_namespaces_there_is_one_host(self):
        self.assertEqual({schedules.make(seed, frozenset()).hosts for seed in range(200)
                          if not schedules.needs(seed)}, {1})


class Rules(unittest.TestCase):
    def found(self, schedule, outcome):
        return "\n".join(rules.judge(schedule, outcome))

    def killed(self):
        schedule = seed_of("kill", lambda one: len(one.placed) > 2)
        victim = schedule.faults[-1].ranks[0]
        outcome = outcome_of(schedule, lambda rank: lost(schedule, victim))
        outcome.events[victim], outcome.codes[victim] = [], -9
        other = next(rank for rank in range(len(schedule.placed)) if rank != victim)
        return schedule, victim, other, outcome

    def test_a_good_outcome_passes(self):
        schedule, _, _, outcome = self.killed()
        self.assertEqual(self.found(schedule, outcome), "")
        self.assertEqual(rules.noticed_ms(schedule, outcome), 5)
        schedule = seed_of("slow")
        self.assertEqual(self.found(schedule, outcome_of(schedule)), "")

    def test_each_defect_is_found(self):
        schedule, victim, other, good = self.killed()
        third = next(rank for rank in range(len(schedule.placed)) if rank not in (victim, other))
        for field, value, text in (("rank", third, "it names rank"), ("pid", 1, "it names pid 1"),
                                   ("host", "elsewhere", "it names host 'elsewhere'"),
                                   ("status", "DT_ERR_TIMEOUT", "DT_ERR_TIMEOUT instead of DT_ERR_PEER_LOST"),
                                   ("message", "somebody is gone", "does not name rank"),
                                   ("returned", 9_000_000_000, "the error came 8000 ms after the limit"),
                                   ("returned", 900_000_000, "the error came before the fault")):
            outcome = copy.deepcopy(good)
            outcome.events[other][0][field] = value
            self.assertIn(text, self.found(schedule, outcome))
        for events, text in (([end()], "it has no error"), (good.events[other][:2], "it did not tell its end"),
                             ([{"event": "wrong", "message": "element 3"}, *good.events[other]], "element 3"),
                             ([*good.events[other][:2], end(kept=["7 socket:[1]"])], "it still holds 7 socket"),
                             ([*good.events[other][:2], end(disk=["x.tmp"])], "the file x.tmp was left")):
            outcome = copy.deepcopy(good)
            outcome.events[other] = events
            self.assertIn(text, self.found(schedule, outcome))
        for code, text in ((None, "hung and was killed"), (-11, "ended with -11"), (0, "ended with 0")):
            outcome = copy.deepcopy(good)
            outcome.codes[other] = code
            self.assertIn(text, self.found(schedule, outcome))
        outcome = copy.deepcopy(good)
        outcome.events[other][1]["status"] = "DT_OK"
        self.assertIn("the next call says something else", self.found(schedule, outcome))
        outcome = copy.deepcopy(good)
        outcome.left, outcome.trouble = ["process 7"], ["stuck"]
        self.assertIn("stuck\nleft behind: process 7", self.found(schedule, outcome))

    def test_a_half_without_the_guilty_one_may_name_who_ended_because_of_it(self):
        schedule = seed_of("kill", lambda one: len(one.placed) > 4 and one.faults[-1].ranks[0] % 2 == 0)
        victim = schedule.faults[-1].ranks[0]
        outcome = outcome_of(schedule, lambda rank: lost(schedule, victim))
        outcome.events[victim], outcome.codes[victim] = [], -9
        outcome.events[1][0] = lost(schedule, 3) | {"call": "allreduce of a half"}
        self.assertEqual(self.found(schedule, outcome), "")
        outcome.events[1][0] = lost(schedule, 3)
        self.assertIn("the next call says something else", self.found(schedule, outcome))
        other = next(rank for rank in range(0, 5, 2) if rank != victim)
        outcome.events[1][0] = lost(schedule, other) | {"call": "allreduce of a half"}
        self.assertIn(f"a half without it names rank {other}", self.found(schedule, outcome))

    def test_a_half_that_timed_out_names_ranks_by_its_own_numbers_too(self):
        schedule = seed_of("blackhole_one_way", lambda one: one.placed[:5] == [0, 0, 1, 1, 2]
                           and sorted(one.faults[-1].hosts) == [1, 2])
        outcome = outcome_of(schedule, lambda rank: lost(schedule, 4, "DT_ERR_TIMEOUT") | {
            "call": "allreduce of a half",
            "message": 'on comm "world/0.0", rank 1 (host1): timed out: rank 2 (world rank 4, host2, pid 104) is late'})
        whole = lost(schedule, 4, "DT_ERR_TIMEOUT", "and rank 2 (host1)")
        for rank in (1, 3):
            outcome.events[rank] = [whole] + outcome.events[rank][2:]
        outcome.events = {rank: events for rank, events in outcome.events.items() if rank % 2 == 0 or rank < 4}
        self.assertEqual([text for rank in (0, 1, 2, 3, 4) for text in rules.judge_error(schedule, outcome, rank)], [])
        outcome.events[4][0]["message"] = "rank 0 (host0): timed out: rank 2 (world rank 4, host2) is late"
        self.assertIn("names no rank of host 1", " ".join(rules.judge_error(schedule, outcome, 4)))

    def test_a_rank_that_a_half_holds_up_may_be_named_where_all_wait_for_it(self):
        schedule = seed_of("blackhole", lambda one: one.placed[:5] == [0, 0, 1, 1, 2]
                           and sorted(one.faults[-1].hosts) == [1, 2])
        outcome = outcome_of(schedule, lambda rank: lost(schedule, 2, "DT_ERR_TIMEOUT", "has not arrived"))
        self.assertIn("rank 3: its message names no rank of host 2", self.found(schedule, outcome))
        for event in outcome.events[2][:2]:
            event.update(lost(schedule, 4, "DT_ERR_TIMEOUT", "and rank 1 (host1)"), call="allreduce of a half",
                         event=event["event"])
        self.assertNotIn("rank 3: ", self.found(schedule, outcome))
        for event in outcome.events[3][:2]:
            event["status"] = "DT_ERR_PEER_LOST"
        self.assertIn("rank 3: ", self.found(schedule, outcome))
        for event in outcome.events[3][:2]:
            event.update(lost(schedule, 2, "DT_ERR_ABORTED", "has destroyed this communicator"), event=event["event"])
        self.assertNotIn("rank 3: ", self.found(schedule, outcome))
        for event in outcome.events[2][:2]:
            event["call"] = "allreduce"
        self.assertIn("rank 3: ", self.found(schedule, outcome))

    def test_harm_that_passes_must_leave_no_error(self):
        schedule = seed_of("stop_short", lambda one: len(one.placed) > 1)
        outcome = outcome_of(schedule)
        outcome.events[0].insert(0, lost(schedule, 1))
        self.assertIn("rank 0 has an error and should have none", self.found(schedule, outcome))
        outcome = outcome_of(schedule)
        outcome.events[1] = [end(steps=6)]
        self.assertIn("stopped in different steps", self.found(schedule, outcome))

    def test_libuv_may_keep_its_one_pipe(self):
        schedule = seed_of("slow")
        outcome = outcome_of(schedule)
        outcome.events[0] = [end(kept=["4 pipe:[9]", "5 pipe:[9]"])]
        self.assertEqual(self.found(schedule, outcome), "")
        outcome.events[0] = [end(kept=["4 pipe:[9]", "5 pipe:[10]"])]
        self.assertIn("it still holds 5 pipe:[10]", self.found(schedule, outcome))

    def test_of_a_cut_each_side_names_the_other(self):
        schedule = seed_of("link_down", lambda one: one.hosts == 2)
        here = {host: schedule.ranks_on(host)[0] for host in (0, 1)}
        right = outcome_of(schedule, lambda rank: lost(schedule, here[1 - schedule.placed[rank]], after_ms=3000))
        self.assertEqual(self.found(schedule, right), "")
        own = outcome_of(schedule, lambda rank: lost(schedule, here[schedule.placed[rank]], after_ms=3000))
        self.assertIn("it names rank 0", self.found(schedule, own))

    def test_of_a_missing_rank_nobody_else_is_named(self):
        schedule = seed_of("absent", lambda one: one.hosts > 1 and one.ranks_on(
            one.placed[one.faults[-1].ranks[0]])[0] != one.faults[-1].ranks[0])
        missing = schedule.faults[-1].ranks[0]

        def late(rank):
            return lost(schedule, rank, "DT_ERR_TIMEOUT", "has not arrived", 4000)
        self.assertEqual(self.found(schedule, outcome_of(schedule, lambda rank: late(missing))), "")
        speaks = schedule.ranks_on(schedule.placed[missing])[0]
        self.assertIn(f"it names rank {speaks}, not one of", self.found(
            schedule, outcome_of(schedule, lambda rank: late(speaks))))

    def test_a_wrong_call_is_named_with_both_sides(self):
        schedule = seed_of("wrong_count", lambda one: len(one.placed) > 2)
        wrong = schedule.faults[-1].ranks[0]
        text = "ranks disagree: allreduce f32 sum x 1000, allreduce f32 sum x 1001"
        right = outcome_of(schedule, lambda rank: lost(schedule, wrong, "DT_ERR_MISMATCH", text))
        self.assertEqual(self.found(schedule, right), "")
        other = (wrong + 1) % len(schedule.placed)
        self.assertIn("it names rank", self.found(schedule, outcome_of(
            schedule, lambda rank: lost(schedule, other, "DT_ERR_MISMATCH", text))))
        self.assertIn("does not say 'allreduce f32 sum x 1001'", self.found(schedule, outcome_of(
            schedule, lambda rank: lost(schedule, wrong, "DT_ERR_MISMATCH", "ranks disagree"))))

    def leaving(self, wanted):
        schedule = seed_of("leave", wanted)
        leavers = schedule.faults[-1].ranks
        outcome = outcome_of(schedule, lambda rank: lost(schedule, leavers[0], text=rules.LEFT))
        for rank in leavers:
            outcome.events[rank], outcome.codes[rank] = [left(), end()], 0
        return schedule, leavers, outcome

    def test_who_needs_a_rank_that_has_left_names_it_and_all_end_well(self):
        schedule, (leaver,), good = self.leaving(lambda one: len(one.placed) > 2 and len(one.faults[-1].ranks) == 1)
        self.assertEqual(self.found(schedule, good), "")
        self.assertEqual(rules.noticed_ms(schedule, good), 5)
        other, third = [rank for rank in range(len(schedule.placed)) if rank != leaver][:2]
        for events, text in (([end()], "it has no error"),
                             ([lost(schedule, leaver, text="is gone"), end()], f"does not say {rules.LEFT!r}"),
                             ([lost(schedule, leaver, "DT_ERR_TIMEOUT", rules.LEFT), end()], "DT_ERR_TIMEOUT instead"),
                             ([lost(schedule, third, text=rules.LEFT), end()], f"it names rank {third}"),
                             ([lost(schedule, leaver, text=rules.LEFT, after_ms=9000), end()],
                              "9000 ms after the limit"),
                             ([lost(schedule, leaver, text=rules.LEFT), end(finalize="DT_ERR_TIMEOUT")],
                              "dt_finalize: DT_ERR_TIMEOUT")):
            outcome = copy.deepcopy(good)
            outcome.events[other] = events
            self.assertIn(f"rank {other}: ", self.found(schedule, outcome))
            self.assertIn(text, self.found(schedule, outcome))
        for events, text in (([left(4), end()], "dt_finalize returned while others were still there"),
                             ([left(7000), end()], "dt_finalize returned 6995 ms after the last error"),
                             ([left(), end(finalize="DT_ERR_TIMEOUT")], "dt_finalize: DT_ERR_TIMEOUT"),
                             ([left(), {"event": "wrong", "message": "element 3"}, end()], "element 3"),
                             ([end()], "no rank has left")):
            outcome = copy.deepcopy(good)
            outcome.events[leaver] = events
            self.assertIn(text, self.found(schedule, outcome))
        good.codes[leaver] = 9
        self.assertIn(f"rank {leaver} ended with 9, expected 0", self.found(schedule, good))

    def test_of_two_that_leave_one_may_need_the_other(self):
        schedule, (early, late), outcome = self.leaving(lambda one: len(one.faults[-1].ranks) == 2)
        self.assertEqual(self.found(schedule, outcome), "")
        # What it had begun; or what it did before it came to leave.
        outcome.events[late], outcome.codes[late] = [left(), lost(schedule, early, text=rules.LEFT), end()], 9
        self.assertEqual(self.found(schedule, outcome), "")
        outcome.events[late] = [lost(schedule, early, text=rules.LEFT), end()]
        self.assertEqual(self.found(schedule, outcome), "")
        outcome.events[late] = [lost(schedule, late, text=rules.LEFT), end()]
        self.assertIn(f"it names rank {late}, not one of [{early}]", self.found(schedule, outcome))

    def test_who_leaves_with_its_error_on_one_communicator_may_be_named_on_the_other(self):
        schedule, (leaver,), outcome = self.leaving(lambda one: len(one.placed) > 3 and one.faults[-1].ranks == [1])
        for event in outcome.events[0][:2]:
            event.update(lost(schedule, 3, text=rules.LEFT), event=event["event"])
        self.assertIn("it names rank 3, not one of [1]", self.found(schedule, outcome))
        for event in outcome.events[3][:2]:
            event["call"] = rules.HALF
        self.assertEqual(self.found(schedule, outcome), "")

    def test_who_leaves_because_of_a_connection_of_its_half_may_be_named_on_the_other(self):
        schedule = seed_of("reset_data", lambda one: one.placed[:4] == [0, 0, 1, 1] and len(one.placed) == 4)
        outcome = outcome_of(schedule, lambda rank: lost(schedule, 3, text=rules.LEFT) if rank % 2 == 0 else lost(
            schedule, 3, text=f"to rank 1 (host{schedule.placed[1]}) broke: reset") | {"call": rules.HALF})
        self.assertEqual(self.found(schedule, outcome), "")
        for event in outcome.events[3][:2]:
            event["call"] = "allreduce"
        self.assertIn("its message does not say ' broke: '", self.found(schedule, outcome))
        for event in outcome.events[1][:2] + outcome.events[3][:2]:
            event["message"] = event["message"].replace(" broke: ", " ended: ")
        self.assertIn("no rank says that a connection broke", self.found(schedule, outcome))


def run():
    result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromModule(__import__(__name__)))
    return 0 if result.wasSuccessful() else 1

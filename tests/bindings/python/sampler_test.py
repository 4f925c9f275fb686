# SPDX-License-Identifier: Apache-2.0
"""The sampler: PyTorch's order, blocks and weights against plain Python, batches, and jobs that go on."""

import array
import bisect
import collections
import itertools
import json
import os
import pickle
import resource
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dt

BITS = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value):
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & BITS
    value = (value ^ value >> 27) * 0x94D049BB133111EB & BITS
    return value ^ value >> 31


def derive(key, value):
    return mix(key ^ mix((value + GOLDEN) & BITS))


def epoch_key(seed, epoch):
    return derive(mix((seed + GOLDEN) & BITS), epoch)


def permutation(size, key):
    """docs/sampler.md, word for word."""
    bits = (size - 1).bit_length()
    low_bits = (bits + 1) // 2
    low_mask, high_mask = 2**low_bits - 1, 2**(bits - low_bits) - 1

    def at(value):
        while True:
            high, low = value >> low_bits, value & low_mask
            for i in (0, 2, 4, 6):
                high ^= mix((key + GOLDEN * (i + 1) + low) & BITS) & high_mask
                low ^= mix((key + GOLDEN * (i + 2) + high) & BITS) & low_mask
            value = high << low_bits | low
            if value < size:
                return value
    return at


def blocks_order(size, block, window, seed, epoch):
    key = epoch_key(seed, epoch)
    count = -(-size // block)
    at = permutation(count, derive(key, 1))
    listed = [sample for slot in range(count)
              for sample in range(at(slot) * block, min((at(slot) + 1) * block, size))]
    order = []
    for number, begin in enumerate(range(0, size, window)):
        end = min(begin + window, size)
        within = permutation(end - begin, derive(derive(key, 2), number))
        order += [listed[begin + within(i)] for i in range(end - begin)]
    return order


def draws_of(weights, draws, seed, epoch):
    key = epoch_key(seed, epoch)
    scale = 1.0
    while sum(weights) * scale >= 2**62:
        scale /= 2
    while sum(weights) * scale < 2**61:
        scale *= 2
    ends = list(itertools.accumulate(max(int(weight * scale), 1) if weight else 0 for weight in weights))
    return [bisect.bisect_right(ends, ends[-1] * mix((key + GOLDEN * (p + 1)) & BITS) >> 64) for p in range(draws)]


class Orders(unittest.TestCase):
    def test_blocks_are_those_of_the_formulas(self):
        for size, block, window in ((1, 1, 1), (10, 3, 4), (100, 7, 30), (100, 10, 1), (64, 64, 64), (257, 1, 1000),
                                    (1000, 16, 0)):
            for seed, epoch in ((0, 0), (5, 3), (-1, 2**40)):
                sampler = dt.Sampler(size, seed=seed, block=block, window=window)
                sampler.set_epoch(epoch)
                wanted = blocks_order(size, block, window or 16 * block, seed % 2**64, epoch)
                self.assertEqual(list(sampler), wanted)
                self.assertEqual(sorted(wanted), list(range(size)))

    def test_weights_are_those_of_the_formulas(self):
        weights = [0.0, 0.1, 0.7, 3.0, 0.0, 1e-3, 2.5]
        for seed, epoch in ((0, 0), (5, 3), (2**64 - 1, 1)):
            for draws in (0, 3, 500):
                sampler = dt.Sampler(7, seed=seed, weights=weights, draws=draws)
                sampler.set_epoch(epoch)
                self.assertEqual(list(sampler), draws_of(weights, draws or 7, seed, epoch))

    def test_what_other_languages_expect(self):
        self.assertEqual(list(dt.Sampler(10, seed=5, block=3, window=4)), blocks_order(10, 3, 4, 5, 0))
        self.assertEqual(list(dt.Sampler(10, seed=5, block=3, window=4)), [2, 1, 0, 6, 7, 8, 4, 3, 5, 9])
        self.assertEqual(list(dt.Sampler(4, seed=5, weights=[0, 1, 2, 3], draws=8)), [3, 3, 3, 2, 1, 2, 2, 2])

    def test_weights_come_in_any_form(self):
        wanted = list(dt.Sampler(3, weights=[1.0, 2.0, 3.0]))
        forms = [(1, 2, 3), array.array("d", [1, 2, 3]), array.array("i", [1, 2, 3]), bytes([1, 2, 3])]
        try:
            import numpy
            forms += [numpy.array([1.0, 2, 3]), numpy.array([1, 2, 3]), numpy.array([1.0, 9, 2, 9, 3])[::2]]
        except ImportError:
            pass
        for weights in forms:
            self.assertEqual(list(dt.Sampler(3, weights=weights)), wanted)

    def test_ranks_share_each_order(self):
        weights = [1 + i % 3 for i in range(50)]
        for options in ({"block": 4}, {"weights": weights}, {"shuffle": False}, {}):
            whole = list(dt.Sampler(50, seed=9, **options))
            for rank in range(4):
                part = list(dt.Sampler(50, 4, rank, seed=9, **options))
                self.assertEqual(part, [whole[(rank + 4 * i) % 50] for i in range(13)])

    def test_a_billion_samples_take_no_memory(self):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for options in ({"shuffle": False}, {"block": 4096}):
            sampler = dt.Sampler(10**9, 2, 1, **options)
            self.assertEqual(len(sampler), 5 * 10**8)
            first = list(itertools.islice(sampler, 1000))
            self.assertEqual(first, list(sampler.next(1000)))
            self.assertEqual(len(set(first)), 1000)
            sampler.load_state_dict({**sampler.state_dict(), "consumed": 10**9 - 10})
            self.assertEqual(len(list(sampler)), 5)
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 64 << 10)

    def test_what_is_refused(self):
        for wanted, options in {
            "2 weights for 10 samples; give one for each sample": {"weights": [1, 2]},
            r"Sampler: weights\[1\] is -1; weights are finite and >= 0": {"weights": [1, -1] * 5},
            "give at least one sample a weight above 0": {"weights": [0] * 10},
            "draws is 4 without weights; set both": {"draws": 4},
            "window is 4 without block; set both": {"window": 4},
            "shuffle=False and block are both set; choose one order": {"shuffle": False, "block": 2},
            "weights and block are both set": {"weights": [1] * 10, "block": 2},
            "block is -1; it must be in": {"block": -1},
        }.items():
            with self.assertRaisesRegex(dt.InvalidArgumentError, wanted):
                dt.Sampler(10, **options)


class Progress(unittest.TestCase):
    def test_batches_are_the_epoch(self):
        sampler = dt.Sampler(100, 3, 1, seed=4)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            batches = list(sampler.batches(8))
            self.assertEqual([len(batch) for batch in batches], [8, 8, 8, 8, 2])
            self.assertEqual([index for batch in batches for index in batch], list(sampler))
        whole = dt.Sampler(100, 3, 1, seed=4, whole_batches=True)
        self.assertEqual([len(batch) for batch in whole.batches(8)], [8, 8, 8, 8])
        with self.assertRaisesRegex(dt.InvalidStateError, "rank 1 has taken its 34 samples of epoch 1.*set_epoch"):
            sampler.next(1)
        with self.assertRaisesRegex(dt.InvalidArgumentError, "count is 0; it must be >= 1"):
            dt.Sampler(4).next(0)
        self.assertEqual(list(dt.Sampler(4, shuffle=False).next(2**62)), [0, 1, 2, 3])

    def test_a_job_is_cut_anywhere_and_goes_on(self):
        """The loop of docs/sampler.md, ended after each number of batches in turn."""
        def train(checkpoint, batches):
            sampler, seen = dt.Sampler(20, 2, 0, seed=3), []
            if checkpoint:
                sampler.load_state_dict(json.loads(checkpoint))
            for epoch in range(sampler.state_dict()["epoch"], 3):
                sampler.set_epoch(epoch)
                for batch in sampler.batches(4):
                    seen += batch
                    checkpoint = json.dumps(sampler.state_dict())
                    if len(seen) >= 4 * batches:
                        return checkpoint, seen
            return checkpoint, seen

        _, whole = train(None, 100)
        self.assertEqual(len(whole), 30)
        for batches in range(1, 10):
            checkpoint, before = train(None, batches)
            _, after = train(checkpoint, 100)
            self.assertEqual(before + after, whole)

    def test_another_number_of_ranks_takes_the_rest(self):
        weights = [1 + i % 5 for i in range(101)]
        for options in ({}, {"shuffle": False}, {"block": 10}, {"weights": weights, "draws": 120}):
            size = options.get("draws", 101)
            order = list(dt.Sampler(101, seed=1, **options))
            first = [dt.Sampler(101, 4, rank, seed=1, drop_last=True, **options) for rank in range(4)]
            seen = [index for sampler in first for index in sampler.next(11)]
            states = [sampler.state_dict() for sampler in first]
            self.assertEqual(states, [states[0]] * 4)
            self.assertEqual(states[0]["consumed"], 44)
            for world in (1, 3, 7):
                ranks = [dt.Sampler(101, world, rank, seed=1, **options) for rank in range(world)]
                for sampler in ranks:
                    sampler.load_state_dict(states[0])
                    self.assertEqual(len(sampler), -(-(size - 44) // world))
                parts = [list(sampler) for sampler in ranks]
                rest = [index for round in zip(*parts) for index in round]
                self.assertEqual(rest, (order[44:] + order)[:len(rest)])
                self.assertEqual(collections.Counter(seen + rest[:size - 44]), collections.Counter(order))

    def test_a_loader_that_reads_ahead_says_what_it_used(self):
        sampler = dt.Sampler(100, 5, 2)
        sampler.next(10)
        self.assertEqual(sampler.state_dict()["consumed"], 50)
        self.assertEqual(sampler.state_dict(4)["consumed"], 20)
        for taken in (-2, 21):
            with self.assertRaisesRegex(dt.InvalidArgumentError, f"taken is {taken}; this rank has 20 samples"):
                sampler.state_dict(taken)

    def test_a_state_of_something_else_is_refused(self):
        state = pickle.loads(pickle.dumps(dt.Sampler(100, seed=1).state_dict()))
        dt.Sampler(100, 4, 3, seed=1, drop_last=True).load_state_dict(state)
        for sampler, wanted in ((dt.Sampler(99, seed=1), "size is 100, the sampler's data set has 99 samples"),
                                (dt.Sampler(100, seed=2), "another seed or another order"),
                                (dt.Sampler(100, shuffle=False), "another seed or another order"),
                                (dt.Sampler(100, seed=1, block=1), "another seed or another order")):
            with self.assertRaisesRegex(dt.InvalidArgumentError, wanted):
                sampler.load_state_dict(state)
            self.assertEqual(sampler.state_dict()["consumed"], 0)
        with self.assertRaisesRegex(dt.InvalidArgumentError, "the state has no epoch, order; give what"):
            dt.Sampler(100).load_state_dict({"consumed": 0, "size": 100})


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Parameter servers of this process, and workers that are its threads."""

import array
import asyncio
import contextlib
import gc
import os
import sys
import tempfile
import threading
import unittest
import weakref

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import LIMIT_S

ROWS, COLUMNS = 10, 3


@contextlib.contextmanager
def serving(count=2, workers=2, **options):
    """The servers, and the config of their workers."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(dt.PsServer(dt.Config(settings={
            "ps.servers": ",".join(["127.0.0.1:0"] * count), "ps.index": index, "ps.workers": workers}), **options))
            for index in range(count)]
        addresses = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        yield servers, dt.Config(settings={"ps.servers": addresses, "ps.workers": workers})


def run_workers(config, body, count=2):
    """body(ps, index) on a thread for each worker."""
    failures = []
    connected = threading.Barrier(count, timeout=LIMIT_S)  # the clock waits for nobody else

    def one(index):
        try:
            with dt.Ps(config, worker=index, timeout_ms=LIMIT_S * 1000) as ps:
                connected.wait()
                body(ps, index)
        except BaseException as error:  # pylint: disable=broad-exception-caught
            failures.append(error)
    threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    if failures:
        raise failures[0]


def floats(values):
    return array.array("f", values)


class Ps(unittest.TestCase):
    def test_two_workers_and_two_servers(self):
        rows = [7, 2, 7, 0]

        def body(ps, index):
            weight = ps.variable("w", ROWS, COLUMNS, rate=0.5, initial_value=1)
            whole = floats(range(ROWS * COLUMNS))
            weight.push(whole)
            weight.push(floats([index + 1] * len(rows) * COLUMNS), rows, rate=1)
            ps.clock(0)
            wanted = [1 - 2 * 0.5 * value for value in whole]
            for row in rows:
                for column in range(COLUMNS):
                    wanted[row * COLUMNS + column] -= 1 + 2
            self.assertEqual(weight.pull(floats([0] * len(whole))).tolist(), wanted)
            view = weight.pull(rows=array.array("q", [9, 2]))
            self.assertEqual(view.shape, (2, COLUMNS))
            self.assertEqual(view.tolist(), [wanted[row * COLUMNS:][:COLUMNS] for row in (9, 2)])
            self.assertEqual(weight.pull(rows=[]).tolist(), [])
            ps.clock(0)
            if index == 0:
                weight.set(floats([5] * COLUMNS), range(4, 5))
                self.assertEqual(weight.pull(rows=[4]).tolist(), [[5] * COLUMNS])
            seen = ps.statistics()
            self.assertEqual((seen.pushes, seen.pushed_rows, seen.clock, seen.reconnects),
                             (3 - index, ROWS + 4 + (1 - index), 2, 0))
            self.assertEqual((seen.pulls, seen.pulled_rows), (4 - index, ROWS + 2 + (1 - index)))
            self.assertIn("'w' of 10 rows, 3 columns", repr(weight))
        with serving() as (servers, config):
            place = dt.ps_info(config)
            self.assertEqual(place, dt.PsPlace(dt.PsRole.WORKER, 0, 2, 2, 0))
            run_workers(config, body)
            for server in servers:
                self.assertTrue(server.wait(LIMIT_S))
            seen = [server.statistics() for server in servers]
            self.assertEqual(sum(each.pushed_rows for each in seen), 2 * (ROWS + 3) + 1)
            self.assertEqual([each.workers for each in seen], [0, 0])

    def test_optimizers_and_initial_values(self):
        def body(ps, _):
            adagrad = ps.variable("a", optimizer=dt.PsOptimizer.ADAGRAD, rate=2, epsilon=0)
            adagrad.push(floats([3]))  # 2 * 3 / sqrt(3 * 3)
            self.assertEqual(adagrad.pull().tolist(), [[-2]])
            momentum = ps.variable("m", optimizer="momentum", rate=1, momentum=0.5, nesterov=True)
            momentum.push(floats([1]))
            self.assertEqual(momentum.pull().tolist(), [[-1.5]])
            adam = ps.variable("d", optimizer="adam", rate=1, beta1=0.5, beta2=0.5, epsilon=0)
            adam.push(floats([4]))
            self.assertAlmostEqual(adam.pull()[0, 0], -1, 6)
            random = ps.variable("u", 100, 2, initial="uniform", initial_value=0.5, seed=2**64 - 1)
            values = [value for row in random.pull().tolist() for value in row]
            self.assertGreater(len(set(values)), 190)
            self.assertTrue(-0.5 <= min(values) < -0.4 and 0.4 < max(values) <= 0.5)
            with self.assertRaisesRegex(dt.MismatchError, "columns is 2 there and 3 here"):
                ps.variable("u", 100, 3, initial="uniform", initial_value=0.5, seed=2**64 - 1)
        with serving(workers=1) as (_, config):
            run_workers(config, body, 1)

    def test_works(self):
        def body(ps, _):
            weight = ps.variable("w", ROWS, COLUMNS, rate=1)
            works = [weight.push_async(floats([-1] * ROWS * COLUMNS)) for _ in range(5)]  # each is copied
            works.append(weight.set_async(floats([8] * COLUMNS), [3]))
            out = floats([0] * ROWS * COLUMNS)
            works.append(weight.pull_async(out))

            async def main():
                await asyncio.wait_for(asyncio.gather(*map(wait, works)), LIMIT_S)

            async def wait(work):
                await work
            asyncio.run(main())
            self.assertEqual(out.tolist(), ([5] * 3 * COLUMNS) + [8] * COLUMNS + [5] * 6 * COLUMNS)
            self.assertIn("dt.Work pull, done", repr(works[-1]))
            self.assertEqual(dt.wait_any(works, 0), 0)
            # Arrays of pulls live until these are done, whoever lets go.
            refs = []
            for _ in range(20):
                array_ = WeakArray("f", [0] * ROWS * COLUMNS)
                refs.append(weakref.ref(array_))
                weight.pull_async(array_)
                del array_
                gc.collect()
            weight.pull()
            weight.push_async(floats([0] * ROWS * COLUMNS)).wait()  # lets go of those that are done
            self.assertEqual([ref() for ref in refs], [None] * 20)
        with serving(workers=1) as (_, config):
            run_workers(config, body, 1)

    def test_clock_names_who_is_behind(self):
        with serving() as (_, config), dt.Ps(config, worker=0, timeout_ms=2000) as slow:
            with dt.Ps(config, worker=1):
                slow.clock(-1)
                slow.clock(2)
                with self.assertRaisesRegex(dt.TimeoutError, "worker 1"):
                    slow.clock(0)

    def test_leave_and_close(self):
        with serving(workers=1) as (servers, config):
            with self.assertRaises(KeyError), dt.Ps(config) as ps:
                weight = ps.variable("w")
                raise KeyError
            with self.assertRaisesRegex(dt.InvalidArgumentError, "^PsVariable.push: ps is closed"):
                weight.push(floats([1]))
            self.assertFalse(servers[0].wait(0))  # it did not leave
            ps = dt.Ps(config)
            weight = ps.variable("w")
            self.assertGreaterEqual(ps.fileno(), 0)
            ps.leave()
            ps.leave()
            with self.assertRaisesRegex(dt.InvalidStateError, "has left"):
                weight.push(floats([1]))
            ps.close()
            ps.close()
            self.assertTrue(servers[0].wait(LIMIT_S))
        servers[0].close()
        with self.assertRaisesRegex(dt.InvalidArgumentError, "^PsServer.port: server is closed"):
            servers[0].port  # pylint: disable=pointless-statement

    def test_works_of_what_is_closed(self):
        # A worker whose server is gone has all under way until it is closed itself.
        with serving(1, 1) as (servers, config):
            ps = dt.Ps(config)
            weight = ps.variable("w")
            servers[0].close()
            out = floats([0])
            work = weight.pull_async(out)

            async def main():
                asyncio.get_running_loop().call_soon(ps.close)  # once the work is waited for
                await work
            with self.assertRaises(dt.AbortedError):
                asyncio.run(asyncio.wait_for(main(), LIMIT_S))

    def test_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            with serving(1, 1, checkpoint=folder, save_every_ms=0) as (servers, config):
                with dt.Ps(config) as ps:
                    ps.variable("w", initial_value=3)
                    ps.save()
                    self.assertEqual(servers[0].statistics().saves, 1)
                    self.assertEqual(os.listdir(folder), ["server-0-of-1.safetensors"])
            with serving(1, 1, checkpoint=folder) as (_, config), dt.Ps(config) as ps:
                self.assertEqual(ps.variable("w", initial_value=3).pull().tolist(), [[3]])

    def test_wrong_calls(self):
        with serving(workers=1) as (_, config), dt.Ps(config) as ps:
            weight = ps.variable("w", 4, 2)
            for wrong, text in (
                    (lambda: weight.push(floats([1] * 7)),
                     "^PsVariable.push: gradients has 7 elements, but there are 4 rows of 2 columns; give one for"),
                    (lambda: weight.push(floats([1] * 8), [1]), "gradients has 8 elements, but there are 1 rows"),
                    (lambda: weight.set(array.array("d", [1] * 8)), "PsVariable.set: values is not of f32"),
                    (lambda: weight.pull(floats([1] * 2), [1, 2]), "^PsVariable.pull: out has 2 elements"),
                    (lambda: weight.pull(b"12345678"), "PsVariable.pull: out.*read-only"),
                    (lambda: weight.pull(rows=[4]), r"^PsVariable.pull: rows\[0\] is 4; variable \"w\" has 4 rows"),
                    (lambda: weight.push(floats([1] * 2), array.array("i", [1])),
                     "^PsVariable.push: rows are of I32; give int64 in host memory, or a list"),
                    (lambda: weight.push(floats([1] * 8), rate=float("nan")), "it must be finite, or negative"),
                    (lambda: ps.variable("w", 0), r"^Ps.variable: rows is 0; it must be in \[1"),
                    (lambda: ps.variable(""), "name has 0 bytes"),
                    (lambda: ps.variable("w", rate=-1), "^Ps.variable: rate is -1; it must be at least 0"),
                    (lambda: ps.variable("w", seed=2**64), "^Ps.variable: seed is 18446744073709551616; give"),
                    (lambda: ps.variable("w", optimizer="lamb"), "'lamb' is none; give one of 'sgd', 'momentum'"),
                    (lambda: ps.clock(-2), "^Ps.clock: ahead is -2; it must be at least -1"),
                    (lambda: dt.Ps(config, queue_bytes=0), "^Ps: queue_bytes is 0; it must be at least 1"),
                    (lambda: dt.PsServer(absent_ms=-1), "^PsServer: absent_ms is -1; it must be at least 0")):
                with self.assertRaisesRegex(dt.InvalidArgumentError, text):
                    wrong()
            with self.assertRaisesRegex(dt.InvalidStateError, "^Ps.save: "):
                ps.save()  # no checkpoint
            with self.assertRaisesRegex(dt.ConfigError, "^PsServer: this process is no parameter server.*call Ps in"):
                dt.PsServer(config)
        with self.assertRaisesRegex(dt.ConfigError, "^ps_info: .*dt run --servers N"):
            dt.ps_info()


class WeakArray(array.array):
    """One that can be referred to weakly."""


if __name__ == "__main__":
    unittest.main()

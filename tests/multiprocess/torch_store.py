#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_store.py DT TORCH_RANK: ranks of PyTorch and of dt meet in one store. Needs python3-torch."""
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launchers"))
from free_ports import free_ports  # noqa: E402
PYTHON = "/usr/bin/python3"  # the one that Debian's python3-torch belongs to
LIMIT_S = 100
FORK = multiprocessing.get_context("fork")  # of this process, which loads PyTorch once for all


class Forked:
    """A function in a process of its own, used like a Popen."""

    def __init__(self, function, *args, output=None, environment=None):
        self.args = [function.__name__, *args]
        self.child = FORK.Process(target=self.run, args=(function, args, output, environment))
        self.child.start()

    @staticmethod
    def run(function, args, output, environment):
        if output is not None:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        function(*args)

    def poll(self):
        return self.child.exitcode

    def wait(self, limit_s=None):
        self.child.join(limit_s)
        if self.child.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, limit_s)
        return self.child.exitcode

    def kill(self):
        self.child.kill()

    def terminate(self):
        self.child.terminate()


class Processes:
    """Started together; all must end well. Killed at the end, whatever happens."""

    def __init__(self):
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, _ in self.running:
            if process.poll() is None:
                process.kill()
                process.wait()

    def start(self, command, **variables):
        """A list is a program and its arguments, a tuple a function of this process and its arguments."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DT_")}
        environment.update({name: str(value) for name, value in variables.items()})
        output = tempfile.TemporaryFile("w+", encoding="utf-8")
        if isinstance(command, tuple):
            process = Forked(*command, output=output, environment=environment)
        else:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        self.running.append((process, output))
        return process

    def finish(self, *lines):
        """Waits for all; each of the lines must have been printed exactly once. Returns all output."""
        text = ""
        failed = []
        for process, output in self.running:
            try:
                if process.wait(LIMIT_S) != 0:
                    failed.append(f"{process.args} ended with {process.returncode}")
            except subprocess.TimeoutExpired:
                failed.append(f"{process.args} did not end within {LIMIT_S} s")
                process.kill()
                process.wait()
            output.seek(0)
            text += output.read()
        for line in lines:
            if text.count(line) != 1:
                failed.append(f"{line!r} was printed {text.count(line)} times")
        if failed:
            sys.exit("\n".join(failed) + "\n" + text)
        return text


def first_line(process, limit_s=LIMIT_S):
    """The first line of a server, which must come in time."""
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    line = process.stdout.readline().strip()
    timer.cancel()
    if not line:
        sys.exit(f"{process.args} said no address")
    return line


class Server:
    """One that says its address in its first line and serves until it is ended."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return first_line(self.process)

    def __exit__(self, *_):
        end(self.process)


class TorchServer:
    """PyTorch's store."""

    def __init__(self):
        self.address, theirs = FORK.Pipe(duplex=False)
        self.process = Forked(torch_rank_py().serve, theirs.send, signal.pause)
        theirs.close()

    def __enter__(self):
        if not self.address.poll(LIMIT_S):
            sys.exit("PyTorch's store said no address")
        return self.address.recv()

    def __exit__(self, *_):
        end(self.process)


def end(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def torch_rank_py():
    """The module, with all of PyTorch; the first call takes seconds."""
    return __import__("torch_rank")


def python_rank(*args):
    """A rank of PyTorch, forked."""
    return (torch_rank_py().main, list(map(str, args)))


def python_command(*args):
    """The same as a command, for others to start."""
    return [PYTHON, os.path.join(HERE, "torch_rank.py"), *map(str, args)]


def said(python_ranks, cpp_ranks):
    return ([f"python rank {i} of {python_ranks}: exchanged" for i in range(python_ranks)] +
            [f"cpp rank {i} of {cpp_ranks}: exchanged" for i in range(cpp_ranks)])


def dt_serves(dt, torch_rank):
    """Two ranks of dt and two of PyTorch exchange keys in a store that dt serves."""
    with Server([dt, "store", "serve", "--torch-compat", "--world-size", "2"]) as address, Processes() as all_ranks:
        host, port = address.rsplit(":", 1)
        for rank in range(2):
            all_ranks.start(python_rank(address, rank, 2, 2))
            all_ranks.start([torch_rank, "2"], DT_RANK=rank, DT_WORLD_SIZE=2, DT_MASTER_ADDR=host,
                            DT_MASTER_PORT=port, DT_STORE_SERVED="true")
        all_ranks.finish(*said(2, 2))


def gloo_on_dt(dt, torch_rank):
    """A gloo group of three over dt's store: given the store, and from the environment under dt run."""
    del torch_rank
    lines = [f"gloo rank {rank} of 3: right" for rank in range(3)]
    with Server([dt, "store", "serve", "--torch-compat"]) as address, Processes() as all_ranks:
        for rank in range(3):
            all_ranks.start(python_rank("gloo", address, rank, 3))
        all_ranks.finish(*lines)
    with Processes() as all_ranks:
        all_ranks.start([dt, "run", "-n", "3", *python_command("gloo")], DT_STORE_TORCH_COMPAT="true")
        all_ranks.finish(*lines)


def torch_serves(dt, torch_rank):
    """A rank of PyTorch serves; the ranks of dt, with a store of their own or without, join it as clients."""
    for _ in range(2):
        with TorchServer() as address, Processes() as all_ranks:
            for rank in range(2):
                all_ranks.start(python_rank(address, rank, 2, 2))
            all_ranks.start([dt, "run", "-n", "2", torch_rank, "2"], DT_STORE_TORCH_ADDRESS=address)
            all_ranks.finish(*said(2, 2))
    host, port = free_address()
    with TorchServer() as address, Processes() as all_ranks:
        all_ranks.start(python_rank(address, 0, 1, 2))
        for rank in range(2):
            # Nothing listens at the address of the job, and nobody is to: all meet at PyTorch's.
            all_ranks.start([torch_rank, "1"], DT_RANK=rank, DT_WORLD_SIZE=2, DT_MASTER_ADDR=host,
                            DT_MASTER_PORT=port, DT_JOB_ID="meeting", DT_STORE_TORCH_ADDRESS=address)
        all_ranks.finish(*said(1, 2))
    with TorchServer() as address, Processes() as all_ranks:
        all_ranks.start(python_rank(address, 0, 1, 1))
        all_ranks.start([torch_rank, "1"], DT_STORE_TORCH_ADDRESS=address)
        all_ranks.finish(*said(1, 1))


def free_address():
    return "127.0.0.1", free_ports(1)[0]


def torchrun(processes, folder, *command, address=None):
    """Debian's needs the options for redirection."""
    host, port = address or free_address()
    return (torch_rank_py().torchrun, ["-r", "1", "-t", "1", "--log_dir", folder, "--no_python",
            "--master_addr", host, "--master_port", str(port), "--nproc_per_node", str(processes), *command])


def agent_serves(dt, torch_rank):
    """torchrun starts ranks of dt, which find each other, and ranks of PyTorch, in the agent's store."""
    del dt
    address = free_address()
    with tempfile.TemporaryDirectory() as folder, Processes() as all_ranks:
        all_ranks.start(torchrun(3, folder, torch_rank, "1", address=address))
        all_ranks.start(python_rank(f"127.0.0.1:{address[1]}", 0, 1, 3))
        all_ranks.finish(*said(1, 3))


def agent_starts_both(dt, torch_rank):
    """Two of torchrun's four processes are ranks of dt, two of PyTorch."""
    del dt
    script = ('if [ "$RANK" -ge 2 ]; then exec "$1" "$2" "$MASTER_ADDR:$MASTER_PORT" $((RANK - 2)) 2 2; fi; '
              'export DT_RANK=$RANK DT_WORLD_SIZE=2 DT_MASTER_ADDR=$MASTER_ADDR DT_MASTER_PORT=$MASTER_PORT '
              'DT_JOB_ID=meeting DT_STORE_TORCH_ADDRESS=$MASTER_ADDR:$MASTER_PORT; exec "$3" 2')
    with tempfile.TemporaryDirectory() as folder, Processes() as all_ranks:
        all_ranks.start(torchrun(4, folder, "/bin/sh", "-c", script, "sh", *python_command(), torch_rank))
        all_ranks.finish(*said(2, 2))


def torch_holds_port(dt, torch_rank):
    """PyTorch's store listens on MASTER_PORT, as where torch.distributed came first: the ranks of dt meet there."""
    del dt
    for launcher in ({}, {"LOCAL_WORLD_SIZE": 3}, {"DT_TOKEN": "5a" * 32}):
        with TorchServer() as address, Processes() as all_ranks:
            host, port = address.rsplit(":", 1)
            all_ranks.start(python_rank(address, 0, 1, 3))
            for rank in (1, 2, 0):
                all_ranks.start([torch_rank, "1"], RANK=rank, WORLD_SIZE=3, LOCAL_RANK=rank, MASTER_ADDR=host,
                                MASTER_PORT=port, DT_LOG_LEVEL="info", **launcher)
            text = all_ranks.finish(*said(1, 3))
            if text.count(" holds the port of MASTER_PORT: the ranks of dt meet there") != 3:
                sys.exit("nobody says where the ranks meet\n" + text)


def stranger_holds_port(dt, torch_rank):
    """What holds MASTER_PORT speaks neither protocol: rank 0 says so at once, the others when their time is over."""
    del dt
    with socket.socket() as stranger, Processes() as all_ranks:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        threading.Thread(target=answer_all, args=(stranger,), daemon=True).start()
        for rank in range(2):
            all_ranks.start([torch_rank, "0"], RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                            DT_RENDEZVOUS_TIMEOUT_MS=4000)
        for process, _ in all_ranks.running:
            if process.wait(LIMIT_S) == 0:
                sys.exit("a rank took a stranger for a store")
        text = "".join((output.seek(0), output.read())[1] for _, output in all_ranks.running)
        for part in (f"cannot serve the store on 127.0.0.1 port {port}: ", "Address already in use",
                     f"what listens at 127.0.0.1:{port} does not greet as a store of dt: ",
                     "; MASTER_ADDR and MASTER_PORT must name the host of rank 0"):
            if part not in text:
                sys.exit(f"nobody says {part!r}\n{text}")
        stranger.shutdown(socket.SHUT_RDWR)


def answer_all(stranger):
    while True:
        try:
            connection, _ = stranger.accept()
        except OSError:
            return
        connection.sendall(b"SSH-2.0-what else\r\n")
        connection.close()


def stranger_serves(dt, torch_rank):
    """What holds the agent's port is no store that is known: the ranks meet at the derived port, and say so."""
    del dt
    with socket.socket() as stranger, Processes() as all_ranks:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        threading.Thread(target=answer_all, args=(stranger,), daemon=True).start()
        for rank in range(2):
            all_ranks.start([torch_rank, "0"], RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2,
                            MASTER_ADDR="127.0.0.1", MASTER_PORT=stranger.getsockname()[1],
                            TORCHELASTIC_RUN_ID="one", TORCHELASTIC_RESTART_COUNT=0,
                            TORCHELASTIC_USE_AGENT_STORE="True", DT_LOG_LEVEL="info")
        text = all_ranks.finish(*said(0, 2))
        if text.count("; the ranks meet at port ") != 2:
            sys.exit("nobody says why the ranks meet elsewhere\n" + text)
        stranger.shutdown(socket.SHUT_RDWR)


def main():
    if os.path.realpath(sys.executable) != os.path.realpath(PYTHON) and os.path.exists(PYTHON):
        os.execv(PYTHON, [PYTHON, *sys.argv])
    try:
        torch_rank_py()
    except ImportError:
        print("no PyTorch for /usr/bin/python3: apt-get install python3-torch")
        sys.exit(77)
    for case in (dt_serves, gloo_on_dt, torch_serves, agent_serves, agent_starts_both, stranger_serves, torch_holds_port,
                 stranger_holds_port):
        print(case.__doc__, flush=True)
        case(*sys.argv[1:])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""command.py JAVA JAR CLASS_PATH VERSION: the command dt that the jar is, `java -jar dt.jar run ...`."""

import errno
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile

LIMIT_S = 100
java, jar, class_path, version = sys.argv[1:]
RANK = """
import os, signal, sys
signal.signal(signal.SIG{0}, lambda *_: (os.write(1, b"{0}"), sys.exit(5)))
print("ready", flush=True)
signal.pause()
"""


def command(folder, *arguments):
    return [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={folder}", "-jar", jar, *arguments]


def run(folder, *arguments, text=""):
    done = subprocess.run(command(folder, *arguments), input=text, capture_output=True, text=True, timeout=LIMIT_S,
                          check=False)
    print(done.stdout + done.stderr, end="")
    return done


def waiting_rank(folder, name):
    return command(folder, "run", "-n", "1", "--no-prefix", sys.executable, "-c", RANK.format(name))


def stop(folder, number):
    """Sends a signal to the virtual machine alone while a rank runs; gives its exit code and what was said."""
    process = subprocess.Popen(waiting_rank(folder, "TERM"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        said, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


def control_c(folder):
    """The same with control-C in a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(java, waiting_rank(folder, "INT"))
    said, typed = b"", False
    try:
        while select.select([terminal], [], [], LIMIT_S)[0]:
            said += os.read(terminal, 4096)
            if b"ready" in said and not typed:
                os.write(terminal, b"\x03")
                typed = True
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        assert error.errno == errno.EIO  # all have closed it
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode()


def main():
    with tempfile.TemporaryDirectory() as folder:
        ranks = [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path, "dttest.RankProgram", "2"]
        done = run(folder, "run", "-n", "2", *ranks)
        assert (done.returncode, done.stdout.count("rank ended well"), done.stderr) == (0, 2, "")
        done = run(folder, "--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"dt {version}\n", "")
        done = run(folder, "run", "-n", "2", "sh", "-c", "exit 7")
        assert done.returncode == 7 and "exited with code 7" in done.stderr
        done = run(folder, "run", "-n", "1", "--no-prefix", "cat", text="as it came\n")
        assert (done.returncode, done.stdout, done.stderr) == (0, "as it came\n", "")
        done = run(folder, "bench", "allreduce", "-n", "2", "-b", "8", "-e", "8")
        assert done.returncode == 0

        for stopped, code, name in ((stop(folder, signal.SIGTERM), 143, "TERM"),
                                    (stop(folder, signal.SIGINT), 130, "TERM"), (control_c(folder), 5, "INT")):
            print(stopped)
            assert stopped[0] == code and name in stopped[1] and "killed" not in stopped[1]
        assert os.listdir(folder) == []  # it cleans up

        done = run(os.path.join(folder, "none"), "--version")
        assert done.returncode == 0


if __name__ == "__main__":
    main()

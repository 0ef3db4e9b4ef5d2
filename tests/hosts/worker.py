"""A workload that can be held to account: every step that it makes is on the disk, with the instant at which it did.

    python worker.py FOLDER

The file `FOLDER/JOB.GENERATION.RANK.PID` has the GPUs in its first line, and then a line for each step: a count from 1,
and the boot-time clock in nanoseconds, which all hosts of one kernel share. The instant is read before the line is
written, and the line is synced before the next step. It uses the standard library only and starts at once.
"""

import os
import sys
import time

STEP_SECONDS = 0.02


def main(folder: str) -> None:
    who = (os.environ["VOLT_JOB_ID"], os.environ["VOLT_GENERATION"], os.environ["RANK"], str(os.getpid()))
    descriptor = os.open(f"{folder}/{'.'.join(who)}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    os.write(descriptor, os.environ["CUDA_VISIBLE_DEVICES"].encode() + b"\n")
    step = 0
    while True:
        step += 1
        os.write(descriptor, f"{step} {time.clock_gettime_ns(time.CLOCK_BOOTTIME)}\n".encode())
        os.fsync(descriptor)
        time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])

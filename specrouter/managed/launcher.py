"""Linux: become the given command, pinned to cores, and die when the parent dies.

    python -I -S launcher.py PARENT_PID CORES COMMAND...      CORES: "0,1", or "-" for all

A program between fork and exec, where `preexec_fn` would run Python code in the forked copy of a process that
has threads. Both settings outlive `exec`, so the command keeps the process id that its parent knows.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, cores, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the setting took effect
        sys.exit(f"{command[0]}: whoever started this is gone")
    if cores != "-":
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    try:
        os.execvp(command[0], command)  # noqa: S606  (no shell is wanted)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")

"""Runs a program as a container does: ``python sandbox.py SPECIFICATION.json``.

It has its own processes (it is the first of them, so that a signal that it does not handle does not end it, and all
others end with it), host name, ``/etc/hosts`` and mounts. The files and the network are those of this machine.

Only the standard library, and nothing of the tests: it starts in 20 ms.
"""

import ctypes
import json
import os
import select
import signal
import sys

NEW_MOUNTS, NEW_HOST_NAME, NEW_USERS, NEW_PROCESSES = 0x20000, 0x4000000, 0x10000000, 0x20000000
BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18
END_WITH_PARENT = 1
#: The exit code where the program could not be started, as containerd has it.
NOT_STARTED = 128

libc = ctypes.CDLL(None, use_errno=True)


def check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source, target, kind=None, flags=0):
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    check(libc.mount(*words, ctypes.c_ulong(flags), None), f"mount {source} at {target}")


def separate():
    flags = NEW_MOUNTS | NEW_HOST_NAME | NEW_PROCESSES
    user, group = os.geteuid(), os.getegid()
    check(libc.unshare(flags if user == 0 else flags | NEW_USERS), "unshare")
    if user != 0:
        for name, text in ("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1"):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    # After the change of the user, which ends this setting.
    libc.prctl(END_WITH_PARENT, signal.SIGKILL)
    mount(None, "/", None, RECURSIVE | PRIVATE)


def set_up(specification):
    name = os.fsencode(specification["hostname"])
    check(libc.sethostname(name, ctypes.c_size_t(len(name))), "sethostname")
    # Folders can be made in it: those of volumes.
    mount("tmpfs", "/run", "tmpfs")
    for source, target in specification["mounts"]:
        if target.startswith(("/run/", "/var/run/")):
            os.makedirs(target, exist_ok=True)
        mount(source, target, None, BIND | RECURSIVE)


def run(specification, alive):
    libc.prctl(END_WITH_PARENT, signal.SIGKILL)
    if select.select([alive], [], [], 0)[0]:
        os._exit(NOT_STARTED)  # its parent had ended before
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    mount("proc", "/proc", "proc")
    os.chdir(specification["folder"])
    os.execvpe(specification["command"][0], specification["command"], specification["env"])


def main():
    with open(sys.argv[1]) as file:
        specification = json.load(file)
    try:
        separate()
        set_up(specification)
        first = []
        # It ends with this process: the first process of a namespace does not see its parent.
        alive, held = os.pipe()
        signal.signal(signal.SIGTERM, lambda *_: [os.kill(pid, signal.SIGTERM) for pid in first])
        first.append(os.fork())
        if first == [0]:
            os.close(held)
            run(specification, alive)
    except BaseException as error:
        with open(specification["error"], "w") as file:
            file.write(str(error))
        os._exit(NOT_STARTED)
    _, status = os.waitpid(first[0], 0)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()

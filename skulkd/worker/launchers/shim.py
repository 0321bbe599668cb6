"""The program between the daemon and an engine: prepares this process, then becomes the engine.

Run as `python -I -S shim.py STATUS_FD PARENT_PID LIFETIME_FD -- ARGV...`, already in a session of
its own. It may import the standard library only, and little of that: each import is paid at every
spawn (measured on a 2-core x86_64 virtual machine: 16 ms from spawn to exec, 6 of them ctypes).

An engine must not outlive its daemon. Linux says so to the kernel (PR_SET_PDEATHSIG, which survives
exec and follows the thread that spawned us). Elsewhere this process stays, as the engine's parent,
and kills the group when the pipe LIFETIME_FD, whose other end only the daemon holds, closes.

STATUS_FD tells how the exec went: it closes without a word when the engine runs, and carries one
line when it does not.
"""

import fcntl
import os
import resource
import select
import signal
import sys

EXEC_FAILED = 127
PARENT_GONE = 126
PR_SET_PDEATHSIG = 1
OOM_SCORE = 500
"""Of 1000: when memory runs out the kernel shall take an engine, not the daemon."""
NICENESS = 5
"""An engine's threads spin on every core; the daemon, and whoever is logged in, then still get one
for the microseconds that they need. Measured with two engine threads on two cores: one client got
0.97 instead of 0.94 of the tokens that the engine gives when it is asked directly."""


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process, and what it becomes, when the spawning thread ends."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"PR_SET_PDEATHSIG: {os.strerror(code)}")
    if os.getppid() != parent_pid:
        # The daemon died before the signal was set.
        os._exit(PARENT_GONE)


def reset_process() -> None:
    """Undo what was inherited: signal mask, ignored signals, core dumps, file mode mask."""
    for number in signal.valid_signals():
        if number in {signal.SIGKILL, signal.SIGSTOP}:
            continue
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o077)


def offer_to_oom_killer() -> None:
    """Make this process the kernel's first choice; raising the score needs no privilege."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, str(OOM_SCORE).encode())
        os.close(fd)
    except OSError:
        # A container may mount /proc read-only; the engine runs all the same.
        return


def give_way() -> None:
    """Let everything else on this machine go first; raising the niceness needs no privilege."""
    os.nice(NICENESS)


def close_on_exec(fd: int) -> None:
    """Keep a descriptor from the engine."""
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)


def become(argv: list[str], status_fd: int) -> None:
    """Replace this process by the engine; says why on `status_fd` when that fails."""
    try:
        # ruff: ignore[start-process-with-no-shell]  an argv list, and never a shell
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(status_fd, f"{error.errno} {error.strerror}".encode())
    os._exit(EXEC_FAILED)


def watch(argv: list[str], status_fd: int, lifetime_fd: int) -> None:
    """Run the engine as a child; kill the group when the daemon is gone; end as the child ends."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, on_child)
    signal.set_wakeup_fd(wake_write)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(lifetime_fd)
        become(argv, status_fd)
    os.close(status_fd)
    # The group's SIGTERM is for the engine; this process ends when the engine has.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([lifetime_fd, wake_read], [], [])
        if lifetime_fd in ready:
            os.killpg(0, signal.SIGKILL)
        os.read(wake_read, 64)
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            end_like(status)


def on_child(_number: int, _frame: object) -> None:
    """Have SIGCHLD delivered, so that it wakes the select."""


def end_like(status: int) -> None:
    """End with the exit code or the signal that a wait status tells of."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def main() -> None:
    """Prepare and become the engine."""
    status_fd, parent_pid, lifetime_fd = (int(text) for text in sys.argv[1:4])
    argv = sys.argv[5:]
    close_on_exec(status_fd)
    try:
        reset_process()
        offer_to_oom_killer()
        give_way()
        if lifetime_fd < 0:
            die_with(parent_pid)
    except OSError as error:
        os.write(status_fd, f"{error.errno} {error.strerror}".encode())
        os._exit(EXEC_FAILED)
    if lifetime_fd < 0:
        become(argv, status_fd)
    close_on_exec(lifetime_fd)
    watch(argv, status_fd, lifetime_fd)


if __name__ == "__main__":
    main()

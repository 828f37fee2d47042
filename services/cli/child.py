"""``python -m services.cli.child PARENT_PID COMMAND...``: becomes COMMAND, which the kernel kills with its parent.

A program of its own because the tie must be made after the fork and before the command runs, and a Python process
with threads (gRPC has some) must not run code there.
"""

import os
import sys

from services.common.process import die_with_parent


def main(arguments: list[str]) -> None:
    """Never returns."""
    parent, command = int(arguments[0]), arguments[1:]
    die_with_parent()
    # The parent may have died before the tie was made.
    if os.getppid() != parent:
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Take files, TCP and the powers of root away from a process for good, before it runs untrusted
code.

By Linux's Landlock, from kernel 5.13 on (TCP from 6.7, signals to other processes from 6.12); it
needs no rights, and holds for root as well. Elsewhere nothing is taken, and `shield` says so. A
child process begins with this as a script.
"""

import ctypes
import json
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

# system calls; landlock(7) has these and what follows
_CREATE = 444
_ADD = 445
_RESTRICT = 446
# the names in a folder; these, contents, and programs to start
_LIST = 8
_READ = 1 | 4 | 8
_OF_A_FILE = 1 | 2 | 4 | 1 << 14 | 1 << 15  # the rights that mean anything for what is no folder
_NO_NEW_PRIVILEGES = 38  # prctl(2)
_CAPABILITIES = 0x20080522  # the version of capset(2)


def shield(readable: Iterable[str], listable: Iterable[str], own: str) -> bool:
    """Let this thread and its children open only what is below these paths, write below `own`, and connect to nothing.

    Return whether the system can; call it before there are other threads. OSError where it fails.
    """
    kernel = ctypes.CDLL(None, use_errno=True)
    version = kernel.syscall(_CREATE, None, 0, 1) if sys.platform == "linux" else 0
    if version < 1:
        return False
    everything = (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1
    handled = struct.pack("QQQ", everything, 3, 3)[
        : 8 if version < 4 else 16 if version < 6 else 24
    ]
    rules = _checked(kernel.syscall(_CREATE, handled, len(handled), 0))
    granted = (
        [(path, _READ) for path in readable]
        + [(path, _LIST) for path in listable]
        + [(own, everything)]
    )
    for path, rights in granted:
        place = os.open(path, os.O_PATH)
        allowed = (rights if Path(path).is_dir() else rights & _OF_A_FILE) & everything
        _checked(kernel.syscall(_ADD, rules, 1, struct.pack("=Qi", allowed, place), 0))
        os.close(place)
    _checked(kernel.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _checked(kernel.syscall(_RESTRICT, rules, 0))
    _checked(kernel.capset(struct.pack("Ii", _CAPABILITIES, 0), bytes(24)))
    return True


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


if __name__ == "__main__":
    root, descriptor, files = sys.argv[1:]
    sys.path.insert(0, root)
    shielded = shield(**json.loads(files))
    from programs.isolation.child import main

    main(int(descriptor), shielded=shielded)

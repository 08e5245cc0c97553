"""Errors that a signal handler raises, such as a timeout, which are no faults of the rows that it interrupts."""

from __future__ import annotations

import signal
import threading
from traceback import walk_tb
from types import CodeType
from typing import Any


def raised_by_handler(error: BaseException) -> bool:
    """Whether an error comes from a signal handler, which Python calls between any two lines of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return False
    frames = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    return any(_code_of(signal.getsignal(number)) in frames for number in signal.valid_signals())


def _code_of(handler: Any) -> CodeType | None:
    """The code of a handler that is a function, a method, or an object that is called."""
    for found in (handler, getattr(handler, "__func__", None), vars(type(handler)).get("__call__")):
        code = getattr(found, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None

"""Work that is spread over processes, each with a ground of its own."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from queue import Empty
from typing import Any, TypeVar

Ground = TypeVar("Ground")
Unit = TypeVar("Unit")
Result = TypeVar("Result")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(
    make: Callable[[], AbstractContextManager[Ground]],
    work: Callable[[Ground, Unit], Result],
    units: Iterable[Unit],
    processes: int,
) -> Iterator[Result]:
    """Work on every unit and give the results as they come, in any order.

    Each process makes one ground and closes it at the end, or when nobody takes results any more.
    The processes are forked: call this before any thread is started. Raises RuntimeError with the
    traceback where work raised, or with the number of a process that died.
    """
    context = multiprocessing.get_context("fork")
    todo = list(units)
    taken, finished = context.Value("q", 0), context.Queue()

    def take() -> int | None:
        with taken.get_lock():
            taken.value += 1
            return taken.value - 1 if taken.value <= len(todo) else None

    def run() -> None:
        try:
            with make() as ground:
                while (number := take()) is not None:
                    finished.put((work(ground, todo[number]), None))
        except KeyboardInterrupt:
            pass
        except BaseException:
            finished.put((None, traceback.format_exc()))

    workers = [context.Process(target=run) for _ in range(min(processes, len(todo)))]
    for worker in workers:
        worker.start()
    try:
        for _ in todo:
            result, failure = _next(finished, workers)
            if failure is not None:
                raise RuntimeError(f"a process failed:\n{failure}")
            yield result
    finally:
        # Whoever still works finds nothing more to do, and cleans up.
        with taken.get_lock():
            taken.value = len(todo)
        for worker in workers:
            worker.join(120)


def _next(finished: Any, workers: list[Any]) -> Any:
    while True:
        try:
            return finished.get(timeout=5.0)
        except Empty:
            dead = [worker.exitcode for worker in workers if worker.exitcode]
            if dead:
                raise RuntimeError(f"a process died: {dead}") from None

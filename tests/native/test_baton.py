"""Python's lock goes from thread to thread by turns: nobody is left out, nothing hangs, whatever else uses the lock."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from racing import at_once, race

from litegpu import native
from litegpu.native import compiling

US = 1000
#: Whether calls keep the lock, and lend it meanwhile.
WAYS = [(False, False), (True, False), (True, True)]


def compute(units: int) -> int:
    total = 0
    for i in range(units):
        total += i
    return total


@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_every_thread_finishes(library: native.NativeLibrary, count: int) -> None:
    """What threads do under the lock is not mixed up."""
    shared = {"number": 0}
    rounds = 3000 // count

    def work() -> None:
        for i in range(rounds):
            before = shared["number"]
            compute(20)
            shared["number"] = before + 1  # no other bytecode of ours runs in between but by Python's own switches
            library.work(i % 7 * 5 * US, i % 3 == 0, i % 2 == 0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    try:
        at_once([work] * count, 60)
    finally:
        sys.setswitchinterval(interval)
    assert shared["number"] == rounds * count


@pytest.mark.parametrize(("keeps", "lends"), WAYS)
def test_nobody_starves(library: native.NativeLibrary, keeps: bool, lends: bool) -> None:
    """Sixteen threads that want the lock all the time: each one gets it again and again, at least every second (the
    bound is a turn of 10 ms for each of the others and 60 ms, where there are processors to run on)."""
    stop = time.perf_counter() + 4
    longest = [0.0] * 16

    def work(number: int) -> None:
        last = time.perf_counter()
        while last < stop:
            compute(100)
            library.work(25 * US if lends else 5 * US, keeps, lends)
            now = time.perf_counter()
            longest[number] = max(longest[number], now - last)
            last = now

    race(work, 16, 60)
    assert max(longest) < 1, longest


@pytest.mark.parametrize(("keeps", "lends"), WAYS)
@pytest.mark.parametrize("other", ["computes", "sleeps"])
def test_beside_threads_that_know_nothing_of_turns(
    library: native.NativeLibrary, other: str, keeps: bool, lends: bool
) -> None:
    """They get the lock, and those who take turns as well."""
    stop = time.perf_counter() + 2
    done = {"turns": 0, "other": 0}

    def turns() -> None:
        while time.perf_counter() < stop:
            compute(50)
            library.work(25 * US if lends else 10 * US, keeps, lends)
            done["turns"] += 1

    def beside() -> None:
        while time.perf_counter() < stop:
            if other == "sleeps":
                time.sleep(1e-4)
            else:
                compute(1000)
            done["other"] += 1

    at_once([turns, turns, turns, turns, beside], 60)
    assert done["turns"] > 100 and done["other"] > 20, done


def test_one_that_sleeps_while_it_has_the_turn(library: native.NativeLibrary) -> None:
    """The lock is free while the turn is not: the others do not wait for the sleeper."""
    finished: list[float] = []
    asleep = threading.Event()

    def sleeper() -> None:
        library.work(US)
        asleep.set()
        time.sleep(3)

    def others() -> None:
        asleep.wait()
        begin = time.perf_counter()
        for _ in range(20):
            library.work(US)
        finished.append(time.perf_counter() - begin)

    at_once([sleeper, *[others] * 4], 60)
    assert len(finished) == 4 and max(finished) < 2


def test_a_short_call_keeps_the_lock(library: native.NativeLibrary) -> None:
    """But not for long, where others wait."""
    order: list[int] = []

    def work(number: int) -> None:
        stop = time.perf_counter() + 1
        while time.perf_counter() < stop:
            order.append(number)
            library.work(5 * US, True)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    try:
        race(work, 2, 60)
    finally:
        sys.setswitchinterval(interval)
    changes = sum(a != b for a, b in pairwise(order))
    assert 5 < changes < len(order) / 10, (changes, len(order))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no threads that stay on a processor here")
def test_a_turn_begins_where_the_one_before_it_ended(library: native.NativeLibrary) -> None:
    """On the same processor, and then the thread may run wherever it could before."""
    processor = ctypes.PyDLL(None).sched_getcpu
    everywhere = os.sched_getaffinity(0)
    rounds: list[tuple[int, int]] = []
    left: list[set[int]] = []

    def work(number: int) -> None:
        stop = time.perf_counter() + 1.5
        while time.perf_counter() < stop:
            compute(100)
            library.work(5 * US, True)
            rounds.append((number, processor()))
        left.append(os.sched_getaffinity(0))

    race(work, 6, 60)
    changes = [(a, b) for (i, a), (j, b) in pairwise(rounds) if i != j]
    assert left == [everywhere] * 6
    if len(everywhere) > 1:
        assert len(changes) > 50 and sum(a == b for a, b in changes) > 0.6 * len(changes), changes


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no threads that stay on a processor here")
def test_threads_stay_where_they_may_run(library: native.NativeLibrary) -> None:
    """Who has processors of his own is woken on these, whoever wakes him."""
    everywhere = sorted(os.sched_getaffinity(0))
    if len(everywhere) < 2:
        pytest.skip("there is one processor")
    own = [{everywhere[i % 2]} for i in range(4)]
    wrong: list[int] = []

    def work(number: int) -> None:
        os.sched_setaffinity(0, own[number])
        processor = ctypes.PyDLL(None).sched_getcpu
        stop = time.perf_counter() + 1
        while time.perf_counter() < stop:
            compute(100)
            library.work(5 * US, True)
            if processor() not in own[number] or os.sched_getaffinity(0) != own[number]:
                wrong.append(number)

    race(work, 4, 60)
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no threads that stay on a processor here")
def test_processors_that_others_choose_meanwhile(library: native.NativeLibrary) -> None:
    """As taskset does, mostly of threads that are asleep: what they choose holds, but where a thread is being woken
    with the same."""
    everywhere = sorted(os.sched_getaffinity(0))
    if len(everywhere) < 2:
        pytest.skip("there is one processor")
    begun, ended = threading.Barrier(5), threading.Event()
    threads = [0] * 4
    lost: list[int] = []

    def work(number: int) -> None:
        threads[number] = threading.get_native_id()
        begun.wait()
        while not ended.is_set():
            compute(100)
            library.work(5 * US, True)

    def choose() -> None:
        begun.wait()
        for attempt in range(16):
            chosen = {thread: everywhere[(i + attempt) % 2] for i, thread in enumerate(threads)}
            for thread, processor in chosen.items():
                os.sched_setaffinity(thread, {processor})
            time.sleep(0.1)  # each has been woken
            lost.extend(thread for thread, one in chosen.items() if os.sched_getaffinity(thread) != {one})
        ended.set()

    at_once([*(functools.partial(work, i) for i in range(4)), choose], 60)
    assert len(lost) < 16, lost  # of 64


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no threads that stay on a processor here")
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_turn_is_lent_while_the_device_works(library: native.NativeLibrary, count: int) -> None:
    """Two at a time work by turns, on one processor, from which both go where they like; each gets its share."""
    everywhere = os.sched_getaffinity(0)
    done, wrong, order = [0] * count, [], []
    before = library.counts()["lent"]
    stop = time.perf_counter() + 1.5

    def work(number: int) -> None:
        while time.perf_counter() < stop:
            begin = time.perf_counter()
            library.work(28 * US, True, True)
            if time.perf_counter() - begin < 28e-6:  # the lock is back before the device is done
                wrong.append(number)
            done[number] += 1
            order.append(number)
        if os.sched_getaffinity(0) != everywhere:
            wrong.append(number)

    race(work, count, 60)
    assert not wrong
    assert library.counts()["lent"] - before > 100
    assert min(done) > max(done) / 8, done
    lent = [(a, c) for (a, b), (_, c) in pairwise(pairwise(order)) if a != b != c]
    assert len(lent) > 50 and sum(a == c for a, c in lent) > 0.7 * len(lent)


KEPT = """
#include "baton.c"
struct python python;
PUBLIC int lent(int64_t without, int64_t with, int windows) { /* after so many windows in which a call takes so long */
  litegpu_baton_start(16);
  int found = 0;
  for (int i = 0; i < windows; i++) {
    int64_t call = trial.lends ? with : without;
    trial.last = litegpu_now(), trial.calls = 1 + 25 * MS / call, trial.begin = trial.last - trial.calls * call;
    found += lends();
  }
  return found;
}
PUBLIC int kept(int64_t age, int asleep, int others) {
  litegpu_baton_start(16);
  baton.asleep = asleep, baton.awake = 1, baton.others = others; /* of whom one has been woken */
  baton.turn = STATES + HELD, baton.since = litegpu_now() - age * US;
  return litegpu_keep(5 * US);
}
"""


@pytest.mark.parametrize(
    ("age", "asleep", "others", "kept"),
    [
        (4_000, 14, 1, True),
        (6_000, 14, 1, False),
        (8_000, 14, 0, True),
        (12_000, 14, 0, False),
        (8_000, 60, 0, False),
        (4_000, 60, 0, True),
    ],
)
def test_how_long_a_turn_is_kept(
    library: native.NativeLibrary, tmp_path: Path, age: int, asleep: int, others: int, kept: bool
) -> None:
    """5 ms, or 10 where nobody waits who would not keep one, as every change costs time; not where very many wait."""
    assert bool(inner(tmp_path).kept(ctypes.c_int64(age), asleep, others)) == kept


@pytest.mark.parametrize(("without", "lending", "least", "most"), [(40, 30, 84, 95), (30, 40, 1, 12), (30, 400, 1, 12)])
def test_turns_are_lent_where_more_is_done_so(
    library: native.NativeLibrary, tmp_path: Path, without: int, lending: int, least: int, most: int
) -> None:
    """Of a hundred windows; the other way has its chance now and then."""
    found = inner(tmp_path).lent(ctypes.c_int64(without * US), ctypes.c_int64(lending * US), 100)
    assert least <= found <= most


def inner(folder: Path) -> ctypes.CDLL:
    """What baton.c keeps to itself."""
    source, target = folder / "kept.c", folder / "kept.so"
    source.write_text(KEPT)
    options = ["-O2", "-fPIC", "-shared", f"-I{Path(native.__file__).parent}", str(source), "-o", str(target)]
    subprocess.run([*compiling.compiler(), *options, "-pthread"], check=True)
    return ctypes.CDLL(str(target))


def test_one_that_sleeps_between_short_calls_keeps_nobody_waiting(library: native.NativeLibrary) -> None:
    """As if it kept the lock: they would come in turn, each for 5 ms or more, while the lock is nobody's."""
    stop = time.perf_counter() + 1.5
    late: list[float] = []

    def work(number: int) -> None:
        last = time.perf_counter()
        while last < stop:
            compute(900)
            library.work(15 * US, True)
            time.sleep(3e-4)
            now = time.perf_counter()
            if now - last > 0.06:
                late.append(now - last)
            last = now

    race(work, 16, 60)
    assert len(late) < 40, sorted(late)


def test_one_that_ends_with_the_turn(library: native.NativeLibrary) -> None:
    """Threads end, or fail, after each call."""
    library.work(US)
    at_once([lambda: library.work(US)] * 50, 60)
    library.work(US)


IN_CHILD = """
import os, signal, sys, threading, time
from litegpu import native
library = native.build()
stop = False
def work():
    while not stop:
        library.work(2000)
threads = [threading.Thread(target=work, daemon=True) for _ in range(6)]
for thread in threads:
    thread.start()
"""


def told(code: str, timeout: float = 60) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_CHILD + code], capture_output=True, text=True, timeout=timeout,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_fork_while_threads_wait(library: native.NativeLibrary) -> None:
    code = """
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        others = [threading.Thread(target=lambda: [library.work(1000) for _ in range(50)]) for _ in range(3)]
        for other in others:
            other.start()
        for other in others:
            other.join()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
stop = True
for thread in threads:
    thread.join()
print("done")
"""
    assert told(code) == "done"


def test_the_end_of_python_while_threads_wait(library: native.NativeLibrary) -> None:
    code = """
import atexit
atexit.register(lambda: [library.work(1000) for _ in range(50)])
time.sleep(0.1)
"""
    assert told(code) == ""


def test_an_interruption(library: native.NativeLibrary) -> None:
    """Ctrl-C comes through though the main thread waits for the lock nearly all the time."""
    code = """
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.perf_counter()
try:
    while time.perf_counter() - begin < 30:
        library.work(5000)
except KeyboardInterrupt:
    print(time.perf_counter() - begin < 10)
stop = True
for thread in threads:
    thread.join()
"""
    assert told(code) == "True"


def test_it_is_counted(library: native.NativeLibrary) -> None:
    before = library.counts()
    assert list(before) == ["asked", "stolen", "slept", "rested", "lent"]

    def work() -> None:
        for _ in range(300):
            compute(100)
            library.work(US)

    at_once([work] * 8, 60)
    after = library.counts()
    assert sum(after.values()) > sum(before.values())


def test_other_interpreters_of_the_process(library: native.NativeLibrary) -> None:
    """They take turns for the lock that they share with the first one."""
    code = f"""
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
inner = '''
import ctypes
work = ctypes.PyDLL({str(library.path)!r}).litegpu_work
work.argtypes = ctypes.c_int64, ctypes.c_int
for i in range(300):
    work(2000, i % 2)
'''
def other():
    made = interpreters.create(isolated=False) if sys.version_info < (3, 13) else interpreters.create("legacy")
    interpreters.run_string(made, inner)
    interpreters.destroy(made)
others = [threading.Thread(target=other) for _ in range(2)]
for thread in others:
    thread.start()
for thread in others:
    thread.join()
stop = True
for thread in threads:
    thread.join()
print("done")
"""
    assert told(code) == "done"

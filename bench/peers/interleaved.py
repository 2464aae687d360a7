"""Timing of programs in turn, so that what else the machine does meets all of them alike."""
import time


def interleaved_seconds(programs, rounds, clock=time.perf_counter):
    """Seconds of each round by name, by `clock`. `programs`: name to call. A round before the first, for memory and caches, is not counted."""
    seconds = {name: [] for name in programs}
    for turn in range(rounds + 1):
        for name, run in programs.items():
            begin = clock()
            run()
            if turn:
                seconds[name].append(clock() - begin)
    return seconds

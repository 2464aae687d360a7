// INT and TERM: the first asks the work to stop where all is whole, the second leaves at once. And what other signals say.
#pragma once
#include "base/stop.h"

namespace megaslide {

// Writing to a closed pipe, or past a limit on file sizes, is an error of the write and no signal.
void ignore_write_signals();

// A mapped file that cannot be read ends the program with status 1 and a message "NAME: error: read FILE: …", and not by
// SIGBUS alone. `name` must stay.
void report_bus_errors(const char* name);

// From here on the first INT or TERM only sets the token (and says so on standard error unless `quiet`). Installed
// even where INT was ignored, as a shell does for background jobs: `kill -INT` must reach a run.
StopToken catch_stop_signals(bool quiet);

// The signal that was caught, or 0.
int caught_signal();

// Ends the process by `signal`, so that the shell sees what happened.
[[noreturn]] void die_by_signal(int signal);

}  // namespace megaslide

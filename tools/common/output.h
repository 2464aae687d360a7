// Standard output with every write checked, and messages on standard error.
#pragma once
#include <exception>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace megaslide {

// The reader of standard output has gone.
class BrokenPipe : public std::exception {};

// Makes sure that descriptors 0 to 2 are open, so that no file of ours lands there. One that was closed gets /dev/null,
// opened the wrong way round: using it fails, as it should.
void secure_standard_streams();

void write_stdout(std::string_view text);  // buffered; throws Error or BrokenPipe
void flush_stdout();
std::string json_quoted(std::string_view text);  // a JSON string with its quotes; bytes that are no UTF-8 become U+FFFD
void close_stdout();  // flushes and closes; throws Error when data did not arrive

// Messages: "name: error: text". Colour only on a terminal and without NO_COLOR.
void set_message_name(const std::string& name);
void print_error(const std::string& text);
LogSink stderr_log_sink(bool quiet, bool verbose);
bool stderr_is_terminal();

// Writes whole lines to standard error; a status line on the terminal is moved below them.
void write_stderr(std::string_view text);
// The one line that is redrawn in place on a terminal, cut to its width; "" removes it.
void set_status_line(const std::string& text);

}  // namespace megaslide

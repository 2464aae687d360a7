// How the requests of a BlockFile reach the kernel (io/block_file.h): one after another to nobody's order, a bounded number
// at once.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/block_file.h"

namespace megaslide {

// One block on its way; `request` is what is still to be done of it.
struct BlockJob {
  BlockRequest request;
  int extent = 0;
  size_t index = 0;  // of its checksum
  int tries = 0;     // in a row that moved nothing
};

// What the file does about a job, whichever engine carries it.
class BlockJobs {
 public:
  virtual ~BlockJobs() = default;
  virtual void begin(BlockJob& job) = 0;  // before its first request
  // Takes the system's answer: true when the whole block is done. Throws Error.
  virtual bool advance(BlockJob& job, int64_t answer) = 0;
  virtual const std::string& path() const = 0;
};

class BlockEngine {
 public:
  virtual ~BlockEngine() = default;
  // Returns when all jobs are done, or, with the first failure, when none is under way any more.
  virtual void run(std::span<BlockJob> jobs, BlockJobs& owner) = 0;
  // False where the kernel does not allow it.
  virtual bool register_memory(std::span<const std::span<std::byte>>) { return false; }
  virtual std::string name() const = 0;
};

// nullptr, and the reason in `why`, where the kernel or a container forbids io_uring.
std::unique_ptr<BlockEngine> make_uring_engine(int fd, int depth, std::string& why);
std::unique_ptr<BlockEngine> make_thread_engine(int fd, int threads);

}  // namespace megaslide

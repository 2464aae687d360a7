// Host emulation of the CUDA execution model: runs a kernel block by block on the calling thread, each CUDA thread a
// fibre.
//
// Shared memory starts as NaN in each block and has its exact size. Warp-wide calls complete when all their lanes have
// arrived; lanes at different places are an error, and so are threads at different __syncthreads. cp.async leaves NaN
// behind until its wait. Four schedules decide which thread runs next and in which order blocks run; a correct kernel
// gives the same bits in all of them.
//
// Where the kernel's source is compiled with race instrumentation (ms_cuda_races in cmake/cuda.cmake), every access to
// shared memory is compared with the last writer and readers of its two bytes: two threads of which one writes, with
// no barrier between them (within a warp, __syncwarp), are an error, as is touching what a copy is still on its way to.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <vector>

namespace megaslide::simt {

enum class Order {
  kLockstep,  // every warp one step at a time
  kForward,   // a warp runs until it must wait; lowest first
  kReverse,   // highest warp first, last block first
  kRandom,    // warps and blocks shuffled, by the seed
};
inline constexpr Order kAllOrders[] = {Order::kLockstep, Order::kForward, Order::kReverse, Order::kRandom};
const char* order_name(Order order);

// A barrier in a kernel's source.
struct Barrier {
  const char* file = nullptr;
  unsigned line = 0;
  bool operator==(const Barrier&) const = default;
};
struct Options {
  Order order = Order::kLockstep;
  uint64_t seed = 17;
  Barrier left_out = {};       // threads walk past this one, to see whether that is noticed
  std::vector<Barrier>* met = nullptr;  // to which the barriers that threads come to are added, each once
};
// Of this host thread's launches.
void set_options(const Options& options);
const Options& options();

// A fault of the kernel; says which threads at which places.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Extent {
  unsigned x = 1, y = 1, z = 1;
};
// Shared memory that every supported architecture can give a block (sm_80: 163 KiB).
inline constexpr size_t kMaxSharedBytes = 163 * 1024;

// Runs `body` once a thread. Throws Error; also what the body throws.
void run_grid(Extent grid, Extent block, size_t shared_bytes, const std::function<void()>& body);

// Where launches on a stream other than nullptr go: by default they run at once.
using Queue = void (*)(void* stream, std::function<void()> work);
void set_queue(Queue queue);
void submit(void* stream, const std::function<void()>& launch);

// Thread switches of this host thread so far.
unsigned long switches();

// ---- for prim_emulated.h ----
using Place = std::source_location;
void sync_block(const Place& place);
// Gives `bytes` (≤ kExchangeBytes) of every lane of the warp to all: lane i's at [i·kExchangeBytes]. Valid until this
// thread's next warp-wide call.
inline constexpr size_t kExchangeBytes = 64;
const unsigned char* exchange(unsigned mask, const void* value, size_t bytes, const char* operation, const Place& place);
unsigned lane();
void copy_async(void* dst, const void* src, size_t bytes, const Place& place);
void commit_async();
void wait_async(size_t groups_left);
unsigned char* shared_memory();
// An access that instrumentation does not see (those of ldmatrix).
void touch_shared(const void* address, size_t bytes, bool write);

}  // namespace megaslide::simt

#include "kernels/simt/simt.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/device.h"
#include "kernels/simt/fiber.h"
#include "kernels/simt/races.h"

namespace megaslide::simt {
namespace {

constexpr unsigned kWarp = 32;

enum class State { kReady, kAtBlock, kAtWarp, kDone };

// What the lanes of a warp gave, until the last of them has gone on.
struct Snapshot {
  alignas(16) unsigned char value[kWarp * kExchangeBytes];
  int readers = 0;
};

struct Copy {
  void* dst;
  const void* src;
  size_t bytes;
};

struct Thread {
  Fiber fiber;
  State state = State::kReady;
  uint3 index{};
  unsigned rank = 0, mask = 0;
  Place place;
  const char* operation = "start";
  bool orders_memory = false;  // of the warp-wide call at which it waits
  alignas(16) unsigned char value[kExchangeBytes];
  Snapshot* snapshot = nullptr;
  std::vector<Copy> open;                 // not yet committed
  std::deque<std::vector<Copy>> groups;   // committed, oldest first
};

struct Machine {
  std::vector<std::unique_ptr<Thread>> threads;  // of the block; the first `count` are in use
  size_t count = 0;
  Fiber host;
  Thread* running = nullptr;
  const std::function<void()>* body = nullptr;
  std::vector<unsigned char> shared;
  std::exception_ptr failure;
  RaceDetector races;
  uint32_t block_epoch = 1;
  std::vector<uint32_t> warp_epoch;
  std::vector<std::unique_ptr<Snapshot>> snapshots;
  std::vector<Snapshot*> free_snapshots;
  Options options;
  unsigned long switches = 0;
};
// Of this host thread, made on first use; a plain pointer, since every instrumented access looks at it.
constinit thread_local Machine* machine = nullptr;
Machine& own_machine() {
  thread_local Machine owner;
  machine = &owner;
  return owner;
}
// The bounds that every instrumented access is compared with.
constinit thread_local const unsigned char* shared_begin = nullptr;
constinit thread_local size_t shared_bytes = 0;

std::string describe(const Thread& t) {
  return fmt::format("thread ({},{},{}) of block ({},{},{}) at {} ({}:{})", t.index.x, t.index.y, t.index.z, blockIdx.x,
                     blockIdx.y, blockIdx.z, t.operation, t.place.file_name(), t.place.line());
}

// Kept until the thread yields: accesses are reported from code that cannot unwind.
void fail(const std::string& what) {
  if (machine->failure == nullptr) machine->failure = std::make_exception_ptr(Error(what));
}

void yield(bool last = false) {
  ++machine->switches;
  Fiber::switch_to(machine->running->fiber, machine->host, last);
}

void run_thread() {
  Fiber::entered(machine->host);
  try {
    (*machine->body)();
  } catch (...) {
    if (machine->failure == nullptr) machine->failure = std::current_exception();
  }
  Thread& t = *machine->running;
  if (!t.open.empty() || !t.groups.empty()) fail("cp.async without a wait before the end: " + describe(t));
  t.state = State::kDone;
  t.operation = "exit";
  yield(true);
}

void resume(Thread& t) {
  machine->running = &t;
  threadIdx = t.index;
  Fiber::switch_to(machine->host, t.fiber);
  if (machine->failure != nullptr) std::rethrow_exception(machine->failure);
}

void drop_snapshot(Thread& t) {
  if (t.snapshot != nullptr && --t.snapshot->readers == 0) machine->free_snapshots.push_back(t.snapshot);
  t.snapshot = nullptr;
}

bool same_place(const Thread& a, const Thread& b) {
  return a.place.line() == b.place.line() && std::strcmp(a.place.file_name(), b.place.file_name()) == 0;
}

// Completes a warp-wide call whose lanes have all arrived.
void release_warp(size_t first) {
  auto& threads = machine->threads;
  Thread* waiting = nullptr;
  for (size_t i = first; i < first + kWarp; ++i) {
    if (threads[i]->state == State::kAtWarp) {
      if (waiting != nullptr && !same_place(*waiting, *threads[i]))
        throw Error("divergent warp: " + describe(*waiting) + ", " + describe(*threads[i]));
      waiting = threads[i].get();
    }
  }
  if (waiting == nullptr) return;
  for (size_t i = first; i < first + kWarp; ++i) {
    if (threads[i]->state == State::kAtWarp) continue;
    if (threads[i]->state == State::kReady) return;
    throw Error("a warp-wide call waits for a lane that is elsewhere: " + describe(*waiting) + ", " + describe(*threads[i]));
  }
  if (machine->free_snapshots.empty()) {
    machine->snapshots.push_back(std::make_unique<Snapshot>());
    machine->free_snapshots.push_back(machine->snapshots.back().get());
  }
  Snapshot* s = machine->free_snapshots.back();
  machine->free_snapshots.pop_back();
  s->readers = kWarp;
  for (size_t i = 0; i < kWarp; ++i) {
    Thread& t = *threads[first + i];
    std::memcpy(s->value + i * kExchangeBytes, t.value, kExchangeBytes);
    drop_snapshot(t);
    t.snapshot = s;
    t.state = State::kReady;
  }
  // Shuffles, votes and matrix products exchange registers; of memory they promise nothing.
  if (waiting->orders_memory) ++machine->warp_epoch[first / kWarp];
}

// Opens the block's barrier when all threads that still run stand at it. False when there is nobody to let go on.
bool release_block() {
  Thread* first = nullptr;
  for (size_t i = 0; i < machine->count; ++i) {
    Thread& t = *machine->threads[i];
    if (t.state == State::kDone) continue;
    if (t.state != State::kAtBlock) return false;
    if (first != nullptr && !same_place(*first, t))
      throw Error("divergent __syncthreads: " + describe(*first) + ", " + describe(t));
    if (first == nullptr) first = &t;
  }
  if (first == nullptr) return false;
  for (size_t i = 0; i < machine->count; ++i)
    if (machine->threads[i]->state == State::kAtBlock) machine->threads[i]->state = State::kReady;
  ++machine->block_epoch;
  return true;
}

bool step_warp(size_t first) {
  bool ran = false;
  for (size_t i = first; i < first + kWarp; ++i) {
    if (machine->threads[i]->state != State::kReady) continue;
    resume(*machine->threads[i]);
    ran = true;
  }
  release_warp(first);
  return ran;
}

[[noreturn]] void report_deadlock() {
  std::string text = "deadlock:";
  int named = 0;
  for (size_t i = 0; i < machine->count && named < 4; ++i)
    if (machine->threads[i]->state != State::kDone) text += "\n  " + describe(*machine->threads[i]), ++named;
  throw Error(text);
}

void schedule_block(std::mt19937_64& random) {
  const Order order = machine->options.order;
  std::vector<size_t> warps(machine->count / kWarp);
  std::iota(warps.begin(), warps.end(), size_t{0});
  if (order == Order::kReverse) std::reverse(warps.begin(), warps.end());
  for (;;) {
    if (order == Order::kRandom) std::shuffle(warps.begin(), warps.end(), random);
    bool ran = false;
    for (const size_t w : warps) {
      bool more = step_warp(w * kWarp);
      ran = ran || more;
      while (more && order != Order::kLockstep) more = step_warp(w * kWarp);
    }
    if (ran || release_block()) continue;
    for (size_t i = 0; i < machine->count; ++i)
      if (machine->threads[i]->state != State::kDone) report_deadlock();
    return;
  }
}

void start_block(Extent block, size_t bytes) {
  machine->shared.assign(bytes, 0xff);  // NaN in any type
  machine->shared.shrink_to_fit();      // of exact size: AddressSanitizer sees what lies outside
  shared_begin = machine->shared.data();
  shared_bytes = bytes;
  machine->races.reset(bytes);
  machine->block_epoch = 1;
  machine->failure = nullptr;
  machine->warp_epoch.assign(machine->count / kWarp, 0);
  for (unsigned i = 0; i < machine->count; ++i) {
    Thread& t = *machine->threads[i];
    drop_snapshot(t);
    t.state = State::kReady;
    t.rank = i;
    t.index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
    t.operation = "start";
    t.place = Place();
    t.open.clear();
    t.groups.clear();
    t.fiber.prepare(&run_thread);
  }
}

void check_launch(Extent grid, Extent block, size_t bytes) {
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || threads % kWarp != 0)
    throw Error(fmt::format("{} threads a block: must be whole warps, at most 1024", threads));
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    throw Error(fmt::format("grid ({},{},{}) cannot be launched", grid.x, grid.y, grid.z));
  if (bytes > kMaxSharedBytes) throw Error(fmt::format("{} bytes of shared memory, more than {}", bytes, kMaxSharedBytes));
}

std::string name_of(uint32_t rank) {
  if (rank >= machine->count) return "several threads";
  return describe(*machine->threads[rank]);
}

void report(const Race& race) {
  if (race.kind == Race::Kind::kNone) return;
  const char* what[] = {"", "reads what was written by", "writes what was read by", "writes what was written by",
                        "touches what a cp.async is still bringing, of"};
  fail(fmt::format("race on byte {} of shared memory: {} {} {}, with no barrier between", race.offset,
                   describe(*machine->running), what[static_cast<int>(race.kind)], name_of(race.other)));
}

Moment moment() {
  const unsigned rank = machine->running->rank;
  return {rank, machine->block_epoch, machine->warp_epoch[rank / kWarp]};
}

}  // namespace

const char* order_name(Order order) {
  const char* names[] = {"lockstep", "forward", "reverse", "random"};
  return names[static_cast<int>(order)];
}
void set_options(const Options& options) { own_machine().options = options; }
const Options& options() { return own_machine().options; }
namespace {
std::atomic<Queue> launch_queue{nullptr};
}
void set_queue(Queue queue) { launch_queue = queue; }
void submit(void* stream, const std::function<void()>& launch) {
  const Queue queue = launch_queue;
  if (stream && queue) queue(stream, launch);
  else launch();
}

unsigned long switches() { return own_machine().switches; }

void run_grid(Extent grid, Extent block, size_t bytes, const std::function<void()>& body) {
  check_launch(grid, block, bytes);
  own_machine();
  machine->body = &body;
  machine->count = size_t{block.x} * block.y * block.z;
  while (machine->threads.size() < machine->count) machine->threads.push_back(std::make_unique<Thread>());
  std::mt19937_64 random(machine->options.seed);
  std::vector<uint64_t> blocks(uint64_t{grid.x} * grid.y * grid.z);
  std::iota(blocks.begin(), blocks.end(), uint64_t{0});
  if (machine->options.order == Order::kReverse) std::reverse(blocks.begin(), blocks.end());
  if (machine->options.order == Order::kRandom) std::shuffle(blocks.begin(), blocks.end(), random);
  struct Leave {
    ~Leave() { shared_bytes = 0, machine->running = nullptr; }
  } leave;
  for (const uint64_t i : blocks) {
    blockIdx = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                static_cast<unsigned>(i / grid.x / grid.y)};
    start_block(block, bytes);
    schedule_block(random);
  }
}

namespace {
bool left_out(const Place& place) {
  const Barrier here{place.file_name(), place.line()};
  if (std::vector<Barrier>* met = options().met; met && std::find(met->begin(), met->end(), here) == met->end()) met->push_back(here);
  return here == options().left_out;
}
}  // namespace

void sync_block(const Place& place) {
  if (left_out(place)) return;
  Thread& t = *machine->running;
  t.operation = "__syncthreads";
  t.place = place;
  t.state = State::kAtBlock;
  yield();
}

unsigned lane() { return machine->running->rank % kWarp; }
unsigned char* shared_memory() { return machine->shared.data(); }

const unsigned char* exchange(unsigned mask, const void* value, size_t bytes, const char* operation, const Place& place) {
  Thread& t = *machine->running;
  if (bytes == 0 && left_out(place)) return nullptr;
  t.operation = operation;
  t.orders_memory = bytes == 0;
  t.place = place;
  if (mask != ~0u) throw Error("warp-wide calls take whole warps: " + describe(t));
  if (bytes > 0) std::memcpy(t.value, value, bytes);
  t.state = State::kAtWarp;
  yield();
  return t.snapshot->value;
}

namespace {
[[gnu::noinline]] void touch_inside(size_t offset, size_t bytes, bool write) {
  const Race race = machine->races.access(moment(), offset, bytes, write);
  if (race.kind != Race::Kind::kNone) report(race);
}
}  // namespace
void touch_shared(const void* address, size_t bytes, bool write) {
  const size_t offset = static_cast<size_t>(static_cast<const unsigned char*>(address) - shared_begin);
  if (offset < shared_bytes) touch_inside(offset, bytes, write);
}

void copy_async(void* dst, const void* src, size_t bytes, const Place& place) {
  Thread& t = *machine->running;
  t.operation = "cp.async";
  t.place = place;
  if ((reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src)) % bytes != 0)
    throw Error("cp.async between addresses that are not aligned: " + describe(t));
  const size_t offset = static_cast<size_t>(static_cast<unsigned char*>(dst) - shared_begin);
  if (offset + bytes > shared_bytes) throw Error("cp.async to outside of shared memory: " + describe(t));
  report(machine->races.begin_copy(moment(), offset, bytes));
  std::memset(dst, 0xff, bytes);
  t.open.push_back({dst, src, bytes});
}

void commit_async() {
  Thread& t = *machine->running;
  t.groups.push_back(std::move(t.open));
  t.open.clear();
}

void wait_async(size_t groups_left) {
  Thread& t = *machine->running;
  while (t.groups.size() > groups_left) {
    for (const Copy& c : t.groups.front()) {
      std::memcpy(c.dst, c.src, c.bytes);
      report(machine->races.end_copy(moment(), static_cast<size_t>(static_cast<unsigned char*>(c.dst) - shared_begin), c.bytes));
    }
    t.groups.pop_front();
  }
}

}  // namespace megaslide::simt

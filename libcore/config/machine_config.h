// A machine: sizes and rates that plan-memory reckons with. Read from configs/machines/*.yaml or written by
// `plan-memory --calibrate`; keys in megaslide-config(5).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace megaslide {

// Rates in units a second; 0 means unlimited or not known.
struct MachineConfig {
  std::string name = "machine";
  std::string sources;              // where the figures come from
  bool measured = false;            // by --calibrate, not from data sheets
  std::string device = "cpu";       // "cpu" or "cuda"

  int64_t threads = 1;
  int64_t host_memory = 0;          // bytes
  double host_bandwidth = 0;        // DRAM, bytes/s
  double optimizer_bandwidth = 0;   // bytes/s of state that the optimizer gets through
  int64_t disk_bytes = 0;           // free for checkpoints and the tier on disk; 0: not known
  double disk_bandwidth = 0;        // bytes/s, sequential writes
  double disk_read_bandwidth = 0;   // sequential reads; 0: as fast as writes

  int64_t device_memory = 0;        // bytes; for "cpu" the part of host memory that a run may use
  double peak_flops = 0;            // dense 16-bit, what MFU is measured against
  double gemm_bf16 = 0, gemm_fp32 = 0, attention = 0;  // flop/s reached
  double vector_bandwidth = 0;      // elementwise kernels, bytes/s
  double pack_bandwidth = 0;        // re-layout of weights, bytes/s
  double launch_latency = 0;        // seconds a kernel

  double link_up = 0, link_down = 0;  // host to device and back, each alone, bytes/s
  double link_both = 0;             // sum of both ways at once, bytes/s
  double link_derating = 1;         // factor while the host streams its DRAM under the optimizer
  bool unified = true;              // the device is the host's processor
};

std::vector<std::string> machine_config_keys();

}  // namespace megaslide

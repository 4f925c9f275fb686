// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace dt::cuda {

/// cudaStream_t and cudaEvent_t; null is CUDA's default stream, never "none".
using Stream = struct StreamTag*;
using Event = struct EventTag*;

/// Whether both handles are one stream, whose work is in one order. Not of cudaStreamPerThread:
/// that is another stream in each thread.
inline bool is_same_stream(Stream one, Stream other) {
  constexpr uintptr_t kPerThread = 0x2;  // in CUDA's header
  return one == other && reinterpret_cast<uintptr_t>(one) != kPerThread;
}

/// What a GPU is to other processes.
struct DeviceInfo {
  int32_t index = -1;
  std::string name;
  std::string uuid;    ///< "GPU-8f2c...": the same in every process and container
  std::string bus_id;  ///< "0000:3b:00.0", as below /sys/bus/pci/devices
  int64_t memory_bytes = 0;
  int32_t compute_major = 0;
  int32_t compute_minor = 0;
  int32_t multiprocessors = 0;
};

/// Whose memory a pointer is.
enum class Memory { kHost, kPinned, kDevice, kManaged };
struct PointerInfo {
  Memory memory = Memory::kHost;
  int32_t device = -1;  ///< of device and managed memory
};

enum class StreamPriority { kNormal, kHigh };

/// The part of the CUDA runtime that dt uses, for one device: the real one, or one that tests make
/// of threads. Every function works on its device whatever the calling thread has selected, and
/// leaves that as it was. None waits for the GPU, except where it says so: where something must be
/// waited for, the caller queries, under its deadline.
///
/// Threads: any thread may call. Errors are Code::kCuda (OUT_OF_MEMORY, and INVALID_STATE in a
/// forked child) and name the call, the device and CUDA's own text; those of a kernel stay (CUDA
/// reports them again at every later call).
class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual const DeviceInfo& device() const = 0;
  /// Selects the device for the rest of the calling thread's life, one of dt's own: for libraries
  /// that ask which one is current, as NCCL does.
  virtual Status select_for_thread() = 0;

  /// Non-blocking towards the default stream.
  virtual Result<Stream> create_stream(StreamPriority priority) = 0;
  virtual Status destroy_stream(Stream stream) = 0;
  /// Whether the stream records a graph at the moment: it may not be given work then.
  virtual Result<bool> is_capturing(Stream stream) = 0;

  /// `timed`: elapsed_ms() may be asked. Recording one costs more, so only statistics use them.
  virtual Result<Event> create_event(bool timed) = 0;
  virtual Status destroy_event(Event event) = 0;
  virtual Status record(Event event, Stream stream) = 0;
  /// Of an event that was recorded: whether the stream has come to it. One that was never recorded
  /// counts as passed, so a caller must know that it was.
  virtual Result<bool> passed(Event event) = 0;
  /// Later work of `stream` waits for what `event` last recorded. The same warning.
  virtual Status wait(Stream stream, Event event) = 0;
  /// Between two timed events that have passed.
  virtual Result<float> elapsed_ms(Event begin, Event end) = 0;

  /// May synchronise the device: not in a training step. Aligned to 256 bytes; null for 0 bytes.
  virtual Result<void*> allocate(int64_t bytes) = 0;
  virtual Status release(void* pointer) = 0;
  /// Host memory that the GPU reads directly. The same warning.
  virtual Result<void*> allocate_pinned(int64_t bytes) = 0;
  virtual Status release_pinned(void* pointer) = 0;

  /// Between any two memories, in the order of `stream`. With host memory that is not pinned the
  /// call may wait for the stream.
  virtual Status copy(void* to, const void* from, int64_t bytes, Stream stream) = 0;
  virtual Status fill_zero(void* to, int64_t bytes, Stream stream) = 0;
  /// Waits for all work of all streams: not in a training step, and not while something that waits
  /// for a peer is under way.
  virtual Status synchronize() = 0;
  virtual Result<PointerInfo> pointer_info(const void* pointer) = 0;
};

/// What a machine says of its GPUs before anything is done with them. Recorded, so that what to
/// tell the user can be tested on any machine.
struct Answers {
  bool built = false;            ///< this dt contains CUDA code
  int32_t runtime_version = 0;   ///< that it was built with, 13000
  int32_t driver_version = 0;    ///< cudaDriverGetVersion: 0 no driver at all
  int32_t driver_error = 0;      ///< of that call
  int32_t count_error = 0;       ///< of cudaGetDeviceCount
  std::string count_error_text;  ///< in CUDA's words
  int32_t device_count = 0;
  std::string visible;  ///< CUDA_VISIBLE_DEVICES
  bool visible_is_set = false;
};

enum class State {
  kReady,
  kNotBuilt,
  kNoDriver,
  kDriverTooOld,
  kStubDriver,  ///< the toolkit's libcuda for linking was found instead of the driver's
  kNoDevice,    ///< a driver, and no device that this process may see
  kBroken,      ///< CUDA says something else
};

/// Asks the machine. Cheap where there is no driver; makes no context.
Answers ask();
State judge(const Answers& answers);
/// Ok for kReady; else CUDA (or UNSUPPORTED for kNotBuilt) with what is wrong and what to do:
/// "the NVIDIA driver is too old: it speaks CUDA 12.4, this dt needs 13.0 (driver 580 or newer);
/// ..."
Status explain(const Answers& answers);

/// "12.4" of 12040.
std::string version_text(int32_t version);
/// "13.0 (sm_80, sm_90, PTX 90)": what this dt was built with; empty: without CUDA. Asks nobody.
std::string build_text();

/// Of all devices this process sees, in CUDA's order. Only where judge() says kReady.
Result<std::vector<DeviceInfo>> list_devices();
/// The real one. CUDA where there is no such device.
Result<std::shared_ptr<Runtime>> open_device(int32_t index);

}  // namespace dt::cuda

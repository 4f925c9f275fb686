// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/guarded.h"
#include "base/wait.h"
#include "cuda/runtime.h"

namespace dt::test {

/// A GPU made of threads: each stream is a queue that a thread of its own works off, device memory
/// is host memory. Several may be in one process; streams and events of one may be used with
/// another, as in CUDA. Null is this device's default stream, here a stream like the others;
/// per_thread() is another stream in each thread.
///
/// The destructor waits until all streams are idle, and ends the program where one does not become
/// so: operations that wait for peers must have been aborted.
class FakeCuda final : public cuda::Runtime {
 public:
  struct Options {
    int32_t index = 0;
    int64_t delay_us = 0;  ///< before each enqueued operation
    /// Index, and by default name, uuid and bus_id, follow from `index`.
    cuda::DeviceInfo device;
  };
  /// How often something was done; a step that allocates nothing changes the first two by nothing.
  struct Counters {
    int64_t allocations = 0;  ///< of device memory
    int64_t pinned_allocations = 0;
    int64_t releases = 0;    ///< of both
    int64_t streams = 0;     ///< made
    int64_t events = 0;      ///< made
    int64_t operations = 0;  ///< enqueued, by dt or by launch()
    int64_t queries = 0;     ///< of events
    int64_t host_waits = 0;  ///< queries that found the event not yet passed
    int64_t live_allocations = 0;
    int64_t live_streams = 0;
    int64_t live_events = 0;
  };

  explicit FakeCuda(Options options);
  explicit FakeCuda(int32_t index = 0) : FakeCuda(Options{index, 0, {}}) {}
  ~FakeCuda() override;
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  // ---- for tests; any thread ----

  /// A kernel: `function` runs in the order of `stream`.
  Status launch(cuda::Stream stream, std::function<void()> function);
  /// The same for a stream of any FakeCuda, as FakeNccl wants it; at once on the null stream.
  /// False: the stream captures, and the function will not run.
  static bool enqueue(cuda::Stream stream, std::function<void()> function);
  /// Whether all that is enqueued has run, waited for until the deadline.
  bool finish(cuda::Stream stream, Deadline deadline = Deadline::after_ms(30'000));
  /// As in CUDA, a stream that captures accepts work and does not run it. An event that is recorded
  /// there cannot be queried. A stream that waits for it belongs to the capture from then on; once
  /// the capture has ended, such a wait is refused.
  void set_capturing(cuda::Stream stream, bool capturing);
  void set_delay_us(int64_t delay_us);
  /// Call number `after` and those behind it, `times` of them (negative: all), of the CUDA function
  /// that stands behind one of dt's: "cudaEventRecord", "cudaMalloc", "cudaMemcpyAsync".
  void fail(const std::string& call, int after = 0, int times = -1);
  Counters counters() const;
  /// Frees what is left behind on purpose, once all streams are idle. Else a leak is found as one.
  void free_left_behind();
  /// cudaStreamPerThread
  static cuda::Stream per_thread() { return reinterpret_cast<cuda::Stream>(uintptr_t{0x2}); }
  /// What the calling thread has selected; 0 where it has not, as in CUDA.
  static int32_t selected();

  // ---- cuda::Runtime ----

  const cuda::DeviceInfo& device() const override { return device_; }
  Status select_for_thread() override;
  Result<cuda::Stream> create_stream(cuda::StreamPriority priority) override;
  Status destroy_stream(cuda::Stream stream) override;
  Result<bool> is_capturing(cuda::Stream stream) override;
  Result<cuda::Event> create_event(bool timed) override;
  Status destroy_event(cuda::Event event) override;
  Status record(cuda::Event event, cuda::Stream stream) override;
  Result<bool> passed(cuda::Event event) override;
  Status wait(cuda::Stream stream, cuda::Event event) override;
  Result<float> elapsed_ms(cuda::Event begin, cuda::Event end) override;
  Result<void*> allocate(int64_t bytes) override;
  Status release(void* pointer) override;
  Result<void*> allocate_pinned(int64_t bytes) override;
  Status release_pinned(void* pointer) override;
  Status copy(void* to, const void* from, int64_t bytes, cuda::Stream stream) override;
  Status fill_zero(void* to, int64_t bytes, cuda::Stream stream) override;
  Status synchronize() override;
  Result<cuda::PointerInfo> pointer_info(const void* pointer) override;

 private:
  struct Capture;
  struct Queue;      // a stream
  struct Recording;  // one record() of an event
  struct Mark;       // an event
  struct Failure {
    int after = 0;
    int times = 0;
  };
  struct State {
    std::vector<std::shared_ptr<Queue>> queues;
    std::map<std::thread::id, std::shared_ptr<Queue>> per_thread;
    std::vector<std::unique_ptr<Mark>> marks;
    std::map<std::string, Failure> failures;
    Counters counters;
    std::vector<void*> released;  ///< while streams had work, which may use it
  };

  Status check(const char* call);
  Status error(const char* call, const char* reason) const;
  /// `captured` gives the capture that the stream belongs to, so that the function will not run.
  Status put(const char* call, cuda::Stream stream, std::function<void()> function,
             std::shared_ptr<Capture>* captured = nullptr);
  std::shared_ptr<Queue> start_queue();
  Queue* queue_of(cuda::Stream stream);
  Result<void*> allocate_memory(const char* call, cuda::Memory memory, int64_t bytes);
  Status release_memory(const char* call, cuda::Memory memory, void* pointer);
  template <class F>
  void count(F&& change) {
    state_.with([&](State& state) { change(state.counters); });
  }

  cuda::DeviceInfo device_;
  std::atomic<int64_t> delay_us_;
  Guarded<State> state_;
  std::shared_ptr<Queue> default_;
};

}  // namespace dt::test

// SPDX-License-Identifier: Apache-2.0
#include "fake_cuda.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/fifo.h"

namespace dt::test {
namespace {

thread_local int32_t t_selected = 0;

using Clock = std::chrono::steady_clock;
constexpr int64_t kMemoryBytes = int64_t{16} << 30;  // that it has
constexpr auto kStuck = std::chrono::seconds(60);    // nothing in a test takes that long
constexpr size_t kAlignment = 256;                   // as cudaMalloc's
constexpr int kFresh = 0xa5;                         // in memory that nobody has written
// At both ends: the page faults of staging buffers, with ThreadSanitizer also of what it keeps
// about them, took a quarter of the time of all tests.
constexpr size_t kFreshBytes = 128 << 10;

struct Range {
  int64_t bytes = 0;
  cuda::PointerInfo info;
  const FakeCuda* owner = nullptr;
};
/// All memory of all devices, by its first byte.
Guarded<std::map<uintptr_t, Range>>& memory_ranges() {
  static Guarded<std::map<uintptr_t, Range>> ranges;
  return ranges;
}

[[noreturn]] void give_up(const char* what) {
  fprintf(stderr, "fake CUDA: %s for a minute\n", what);
  abort();
}

}  // namespace

/// Between set_capturing(true) and (false), of all streams that it has come to.
struct FakeCuda::Capture {
  std::atomic<bool> open{true};
};

struct FakeCuda::Recording {
  std::mutex mutex;
  std::condition_variable change;
  std::optional<Clock::time_point> at;  // when the stream came to it
  std::shared_ptr<Capture> captured;    // not null: it never will; set before others see this

  void set() {
    std::lock_guard lock(mutex);
    at = Clock::now();
    change.notify_all();
  }
  bool is_set() {
    std::lock_guard lock(mutex);
    return at.has_value();
  }
  void await() {
    std::unique_lock lock(mutex);
    if (!change.wait_for(lock, kStuck, [&] { return at.has_value(); })) {
      give_up("a stream waits for an event");
    }
  }
};

struct FakeCuda::Mark {
  FakeCuda* owner = nullptr;
  bool timed = false;
  bool destroyed = false;
  Guarded<std::shared_ptr<Recording>> last;  // null: never recorded

  std::shared_ptr<Recording> recording() const {
    return last.with([](const std::shared_ptr<Recording>& each) { return each; });
  }
};

struct FakeCuda::Queue {
  FakeCuda* owner = nullptr;
  std::mutex mutex;
  std::condition_variable change;
  Fifo<std::function<void()>> waiting;
  bool running = false;    // an operation is
  bool destroyed = false;  // ends when empty
  bool ended = false;
  std::shared_ptr<Capture> capture;  // null: none yet
  std::thread worker;

  bool capturing() const { return capture != nullptr && capture->open; }

  void push(std::function<void()> function) {
    std::lock_guard lock(mutex);
    waiting.push_back(std::move(function));
    change.notify_all();
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      change.wait(lock, [&] { return !waiting.empty() || destroyed; });
      if (waiting.empty()) break;
      const std::function<void()> function = std::move(waiting.front());
      waiting.pop_front();
      running = true;
      const auto start = Clock::now() + std::chrono::microseconds(owner->delay_us_.load());
      change.wait_until(lock, start, [&] { return Clock::now() >= start; });
      lock.unlock();
      function();
      lock.lock();
      running = false;
      change.notify_all();
    }
    ended = true;
    change.notify_all();
  }
};

FakeCuda::FakeCuda(Options options)
    : device_(std::move(options.device)), delay_us_(options.delay_us) {
  device_.index = options.index;
  if (device_.name.empty()) device_.name = "fake GPU";
  if (device_.uuid.empty()) device_.uuid = format("GPU-fake-%04d", device_.index);
  if (device_.bus_id.empty()) device_.bus_id = format("0000:%02x:00.0", device_.index);
  default_ = start_queue();
}

FakeCuda::~FakeCuda() {
  const auto queues = state_.with([](State& state) { return state.queues; });
  for (const auto& queue : queues) {
    std::unique_lock lock(queue->mutex);
    queue->destroyed = true;
    queue->change.notify_all();
  }
  for (const auto& queue : queues) {
    std::unique_lock lock(queue->mutex);
    if (!queue->change.wait_for(lock, kStuck, [&] { return queue->ended; })) {
      give_up("a stream has had work that does not end");
    }
    lock.unlock();
    queue->worker.join();
  }
  state_.with([](State& state) {
    for (void* const memory : state.released) free(memory);
  });
}

std::shared_ptr<FakeCuda::Queue> FakeCuda::start_queue() {
  auto queue = std::make_shared<Queue>();
  queue->owner = this;
  queue->worker = std::thread([raw = queue.get()] { raw->work(); });
  state_.with([&](State& state) { state.queues.push_back(queue); });
  return queue;
}

FakeCuda::Queue* FakeCuda::queue_of(cuda::Stream stream) {
  if (stream == per_thread()) {
    const auto me = std::this_thread::get_id();
    auto mine = state_.with([&](State& state) { return state.per_thread[me]; });
    if (mine == nullptr) {
      mine = start_queue();
      state_.with([&](State& state) { state.per_thread[me] = mine; });
    }
    return mine.get();
  }
  return stream == nullptr ? default_.get() : reinterpret_cast<Queue*>(stream);
}

Status FakeCuda::error(const char* call, const char* reason) const {
  const bool allocates = strcmp(call, "cudaMalloc") == 0 || strcmp(call, "cudaHostAlloc") == 0;
  return Status(allocates ? Code::kOutOfMemory : Code::kCuda,
                format("%s on device %d: %s", call, device_.index, reason));
}

Status FakeCuda::check(const char* call) {
  const bool failed = state_.with([&](State& state) {
    const auto found = state.failures.find(call);
    if (found == state.failures.end()) return false;
    Failure& failure = found->second;
    if (failure.after > 0) {
      --failure.after;
      return false;
    }
    if (failure.times == 0) return false;
    if (failure.times > 0) --failure.times;
    return true;
  });
  return failed ? error(call, "a failure that the test ordered") : Status();
}

Status FakeCuda::put(const char* call, cuda::Stream stream, std::function<void()> function,
                     std::shared_ptr<Capture>* captured) {
  DT_TRY(check(call));
  Queue* queue = queue_of(stream);
  {
    std::lock_guard lock(queue->mutex);
    if (queue->destroyed) return error(call, "the stream was destroyed");
    if (queue->capturing()) {
      if (captured != nullptr) *captured = queue->capture;
      return {};
    }
  }
  count([](Counters& counters) { ++counters.operations; });
  queue->push(std::move(function));
  return {};
}

// ---- for tests ----

Status FakeCuda::launch(cuda::Stream stream, std::function<void()> function) {
  return put("cudaLaunchKernel", stream, std::move(function));
}

bool FakeCuda::enqueue(cuda::Stream stream, std::function<void()> function) {
  if (stream == nullptr) {
    function();
    return true;
  }
  Queue* queue = reinterpret_cast<Queue*>(stream);
  {
    std::lock_guard lock(queue->mutex);
    if (queue->capturing()) return false;
  }
  queue->owner->count([](Counters& counters) { ++counters.operations; });
  queue->push(std::move(function));
  return true;
}

bool FakeCuda::finish(cuda::Stream stream, Deadline deadline) {
  Queue* queue = queue_of(stream);
  std::unique_lock lock(queue->mutex);
  return queue->change.wait_for(lock, std::chrono::nanoseconds(deadline.remaining_ns()),
                                [&] { return queue->waiting.empty() && !queue->running; });
}

void FakeCuda::set_capturing(cuda::Stream stream, bool capturing) {
  Queue* queue = queue_of(stream);
  std::lock_guard lock(queue->mutex);
  if (queue->capture != nullptr) queue->capture->open = false;
  queue->capture = capturing ? std::make_shared<Capture>() : nullptr;
}

void FakeCuda::set_delay_us(int64_t delay_us) { delay_us_ = delay_us; }

void FakeCuda::fail(const std::string& call, int after, int times) {
  state_.with([&](State& state) { state.failures[call] = {after, times}; });
}

FakeCuda::Counters FakeCuda::counters() const {
  return state_.with([](const State& state) { return state.counters; });
}

// ---- streams and events ----

Status FakeCuda::select_for_thread() {
  DT_TRY(check("cudaSetDevice"));
  t_selected = device_.index;
  return {};
}

int32_t FakeCuda::selected() { return t_selected; }

Result<cuda::Stream> FakeCuda::create_stream(cuda::StreamPriority) {
  DT_TRY(check("cudaStreamCreateWithPriority"));
  count([](Counters& counters) { ++counters.streams, ++counters.live_streams; });
  return reinterpret_cast<cuda::Stream>(start_queue().get());
}

// The memory stays until this device ends, so that a later use is an error and no crash.
Status FakeCuda::destroy_stream(cuda::Stream stream) {
  DT_TRY(check("cudaStreamDestroy"));
  if (stream == nullptr) return error("cudaStreamDestroy", "the default stream");
  Queue* queue = queue_of(stream);
  std::lock_guard lock(queue->mutex);
  if (queue->destroyed) return error("cudaStreamDestroy", "the stream was destroyed");
  queue->destroyed = true;
  queue->change.notify_all();
  count([](Counters& counters) { --counters.live_streams; });
  return {};
}

Result<bool> FakeCuda::is_capturing(cuda::Stream stream) {
  DT_TRY(check("cudaStreamIsCapturing"));
  Queue* queue = queue_of(stream);
  std::lock_guard lock(queue->mutex);
  return queue->capturing();
}

Result<cuda::Event> FakeCuda::create_event(bool timed) {
  DT_TRY(check("cudaEventCreateWithFlags"));
  auto mark = std::make_unique<Mark>();
  mark->owner = this;
  mark->timed = timed;
  Mark* raw = mark.get();
  state_.with([&](State& state) {
    state.marks.push_back(std::move(mark));
    ++state.counters.events;
    ++state.counters.live_events;
  });
  return reinterpret_cast<cuda::Event>(raw);
}

Status FakeCuda::destroy_event(cuda::Event event) {
  DT_TRY(check("cudaEventDestroy"));
  Mark* mark = reinterpret_cast<Mark*>(event);
  const bool first = state_.with([&](State& state) {
    if (mark->destroyed) return false;
    --state.counters.live_events;
    return mark->destroyed = true;
  });
  return first ? Status() : error("cudaEventDestroy", "the event was destroyed");
}

Status FakeCuda::record(cuda::Event event, cuda::Stream stream) {
  const auto recording = std::make_shared<Recording>();
  DT_TRY(put(
      "cudaEventRecord", stream, [recording] { recording->set(); }, &recording->captured));
  Mark* mark = reinterpret_cast<Mark*>(event);
  mark->last.with([&](std::shared_ptr<Recording>& last) { last = recording; });
  return {};
}

Result<bool> FakeCuda::passed(cuda::Event event) {
  DT_TRY(check("cudaEventQuery"));
  const auto recording = reinterpret_cast<Mark*>(event)->recording();
  if (recording != nullptr && recording->captured) {
    return error("cudaEventQuery",
                 "operation not permitted on an event last recorded in a capture");
  }
  const bool passed = recording == nullptr || recording->is_set();
  count([&](Counters& counters) {
    ++counters.queries;
    if (!passed) ++counters.host_waits;
  });
  return passed;
}

Status FakeCuda::wait(cuda::Stream stream, cuda::Event event) {
  const auto recording = reinterpret_cast<Mark*>(event)->recording();
  if (recording != nullptr && recording->captured) {
    DT_TRY(check("cudaStreamWaitEvent"));
    if (!recording->captured->open) {
      return error("cudaStreamWaitEvent", "the event was last recorded in a capture");
    }
    Queue* queue = queue_of(stream);
    std::lock_guard lock(queue->mutex);
    queue->capture = recording->captured;
    return {};
  }
  return put("cudaStreamWaitEvent", stream, [recording] {
    if (recording != nullptr) recording->await();
  });
}

Result<float> FakeCuda::elapsed_ms(cuda::Event begin, cuda::Event end) {
  DT_TRY(check("cudaEventElapsedTime"));
  Clock::time_point times[2];
  for (int i = 0; i < 2; ++i) {
    Mark* mark = reinterpret_cast<Mark*>(i == 0 ? begin : end);
    const auto recording = mark->recording();
    if (!mark->timed || recording == nullptr) {
      return error("cudaEventElapsedTime", "invalid resource handle");
    }
    std::lock_guard lock(recording->mutex);
    if (!recording->at) return error("cudaEventElapsedTime", "device not ready");
    times[i] = *recording->at;
  }
  return std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
}

// ---- memory ----

Result<void*> FakeCuda::allocate_memory(const char* call, cuda::Memory memory, int64_t bytes) {
  DT_TRY(check(call));
  if (bytes < 0) return error(call, "invalid argument");
  if (bytes == 0) return static_cast<void*>(nullptr);
  const size_t whole = (static_cast<size_t>(bytes) / kAlignment + 1) * kAlignment;
  // Sanitizers end a program that asks for too much.
  void* pointer = bytes > kMemoryBytes ? nullptr : aligned_alloc(kAlignment, whole);
  if (pointer == nullptr) return Status(Code::kOutOfMemory, error(call, "out of memory").message());
  const size_t fresh = std::min(whole, kFreshBytes);
  memset(pointer, kFresh, fresh);
  memset(static_cast<char*>(pointer) + whole - fresh, kFresh, fresh);
  const int32_t device = memory == cuda::Memory::kDevice ? device_.index : -1;
  memory_ranges().with([&](auto& ranges) {
    ranges[reinterpret_cast<uintptr_t>(pointer)] = {bytes, {memory, device}, this};
  });
  count([&](Counters& counters) {
    ++(memory == cuda::Memory::kDevice ? counters.allocations : counters.pinned_allocations);
    ++counters.live_allocations;
  });
  return pointer;
}

Status FakeCuda::release_memory(const char* call, cuda::Memory memory, void* pointer) {
  DT_TRY(check(call));
  if (pointer == nullptr) return {};
  const bool known = memory_ranges().with([&](auto& ranges) {
    const auto found = ranges.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == ranges.end() || found->second.info.memory != memory) return false;
    ranges.erase(found);
    return true;
  });
  if (!known) return error(call, "invalid argument");
  // CUDA waits for the device here. This one keeps the memory instead, as long as its streams live.
  const auto queues = state_.with([](State& state) { return state.queues; });
  const bool busy = std::any_of(queues.begin(), queues.end(), [](const auto& queue) {
    std::lock_guard lock(queue->mutex);
    return queue->running || !queue->waiting.empty();
  });
  if (busy) {
    state_.with([&](State& state) { state.released.push_back(pointer); });
  } else {
    free(pointer);
  }
  count([](Counters& counters) { ++counters.releases, --counters.live_allocations; });
  return {};
}

void FakeCuda::free_left_behind() {
  const auto queues = state_.with([](State& state) { return state.queues; });
  for (const auto& queue : queues) (void)finish(reinterpret_cast<cuda::Stream>(queue.get()));
  memory_ranges().with([&](auto& ranges) {
    for (auto next = ranges.begin(); next != ranges.end();) {
      if (next->second.owner != this) {
        ++next;
        continue;
      }
      free(reinterpret_cast<void*>(next->first));
      next = ranges.erase(next);
    }
  });
}

Result<void*> FakeCuda::allocate(int64_t bytes) {
  return allocate_memory("cudaMalloc", cuda::Memory::kDevice, bytes);
}
Status FakeCuda::release(void* pointer) {
  return release_memory("cudaFree", cuda::Memory::kDevice, pointer);
}
Result<void*> FakeCuda::allocate_pinned(int64_t bytes) {
  return allocate_memory("cudaHostAlloc", cuda::Memory::kPinned, bytes);
}
Status FakeCuda::release_pinned(void* pointer) {
  return release_memory("cudaFreeHost", cuda::Memory::kPinned, pointer);
}

Status FakeCuda::copy(void* to, const void* from, int64_t bytes, cuda::Stream stream) {
  if (bytes < 0) return error("cudaMemcpyAsync", "invalid argument");
  return put("cudaMemcpyAsync", stream, [=] {
    if (bytes > 0) memmove(to, from, static_cast<size_t>(bytes));
  });
}

Status FakeCuda::fill_zero(void* to, int64_t bytes, cuda::Stream stream) {
  if (bytes < 0) return error("cudaMemsetAsync", "invalid argument");
  return put("cudaMemsetAsync", stream, [=] {
    if (bytes > 0) memset(to, 0, static_cast<size_t>(bytes));
  });
}

Status FakeCuda::synchronize() {
  DT_TRY(check("cudaDeviceSynchronize"));
  const auto queues = state_.with([](State& state) { return state.queues; });
  for (const auto& queue : queues) {
    if (!finish(reinterpret_cast<cuda::Stream>(queue.get()))) {
      return error("cudaDeviceSynchronize", "a stream has work that does not end");
    }
  }
  return {};
}

Result<cuda::PointerInfo> FakeCuda::pointer_info(const void* pointer) {
  DT_TRY(check("cudaPointerGetAttributes"));
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return memory_ranges().with([&](const auto& ranges) {
    auto next = ranges.upper_bound(address);
    if (next == ranges.begin()) return cuda::PointerInfo();
    --next;
    const bool inside = address < next->first + static_cast<uint64_t>(next->second.bytes);
    return inside ? next->second.info : cuda::PointerInfo();
  });
}

}  // namespace dt::test

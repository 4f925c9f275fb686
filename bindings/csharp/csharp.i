// SPDX-License-Identifier: Apache-2.0
// Bytes, texts, errors and log messages in C#. Everything generated is internal: the public classes
// are in src/.

%pragma(csharp) moduleclassmodifiers="internal static class"
%pragma(csharp) imclassclassmodifiers="internal class"
%typemap(csclassmodifiers) SWIGTYPE "internal class"

// Errors: the thread that failed keeps its error here until C# fetches it, which it does at once. Native
// code calls nothing of C#: the library is loaded once, its users may be several domains that come and go.
%pragma(csharp) imclasscode=%{
  /// SWIG asks this after each call.
  internal static class SWIGPendingException {
    internal static bool Pending { get { return global::Dt.PendingError.IsThere; } }
    internal static global::System.Exception Retrieve() { return global::Dt.PendingError.Take(); }
  }
%}
%insert(runtime) %{
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
extern "C" SWIGEXPORT void SWIGSTDCALL DtFreeGiven(void* given) { free(given); }

/** Bytes for C#, which copies them and frees this: their number as an int64_t, then they. */
static void* dt_give(const std::string& bytes) {
  const long long size = static_cast<long long>(bytes.size());
  char* const given = static_cast<char*>(malloc(sizeof size + bytes.size()));
  if (given == nullptr) throw std::bad_alloc();
  memcpy(given, &size, sizeof size);
  memcpy(given + sizeof size, bytes.data(), bytes.size());
  return given;
}
%}
%{
/** Of this thread's last call, for DtTakeError(); null: none. */
static thread_local void* dt_error = nullptr;
/** Stands for an error that there was no memory to keep. */
static char dt_no_memory;
/** Threads with an error: while it is 0, C# need not ask. */
static std::atomic<int32_t> dt_error_count{0};

extern "C" SWIGEXPORT const void* SWIGSTDCALL DtErrorCount() { return &dt_error_count; }
extern "C" SWIGEXPORT int SWIGSTDCALL DtHasError() { return dt_error != nullptr ? 1 : 0; }
/** status, rank, pid, sequence as numbers; host, operation, message as items. Null: no memory. */
extern "C" SWIGEXPORT void* SWIGSTDCALL DtTakeError() {
  void* const error = std::exchange(dt_error, nullptr);
  if (error != nullptr) --dt_error_count;
  return error == &dt_no_memory ? nullptr : error;
}
/** A thread that was aborted before it fetched its error has it no more. */
static inline void dt_forget_error() {
  if (dt_error != nullptr) free(DtTakeError());
}
static void dt_keep(int status, int rank, long long pid, long long sequence, const std::string& host,
                    const std::string& operation, const char* message) {
  dt::raw::Packer packed;
  packed.add_number(status);
  packed.add_number(rank);
  packed.add_number(pid);
  packed.add_number(sequence);
  packed.add(host);
  packed.add(operation);
  packed.add(message);
  dt_error = dt_give(packed.take().data);
}
template <class F>
static void dt_keep_or_no_memory(F&& keep) {
  dt_forget_error();
  try {
    keep();
  } catch (const std::bad_alloc&) {
    dt_error = &dt_no_memory;
  }
  ++dt_error_count;
}
static void dt_throw(const dt::Error& error) {
  dt_keep_or_no_memory([&] {
    dt_keep(static_cast<int>(error.status()), error.rank(), error.pid(), error.sequence(),
            error.host(), error.operation(), error.what());
  });
}
static void dt_throw_own(dt_status status, const char* message) {
  dt_keep_or_no_memory([&] { dt_keep(static_cast<int>(status), -1, 0, -1, "", "", message); });
}
%}
%{
/** Calls of C# that are under way on this thread: it is one of C#'s. */
static thread_local int dt_calls = 0;
struct DtCall {
  DtCall() { ++dt_calls; }
  ~DtCall() { --dt_calls; }
};
%}
%exception {
  dt_forget_error();
  try {
    const DtCall call;
    $action
  } catch (const dt::Error& error) {
    dt_throw(error);
    return $null;
  } catch (const std::bad_alloc&) {
    dt_throw_own(DT_ERR_OUT_OF_MEMORY, "out of memory");
    return $null;
  } catch (const std::exception& error) {
    dt_throw_own(DT_ERR_SYSTEM, error.what());
    return $null;
  }
}

// Texts are UTF-8 in both directions, whatever the runtime's own marshalling thinks of bytes.
%typemap(ctype) const std::string& "const char*"
%typemap(imtype) const std::string& "byte[]"
%typemap(cstype) const std::string& "string"
%typemap(csin) const std::string& "global::Dt.Text.Terminated($csinput)"
%typemap(in) const std::string& (std::string text) %{
  if ($input != nullptr) text = $input;
  $1 = &text;
%}
%typemap(ctype) const char* PATH, const char* MESSAGE "const char*"
%typemap(imtype) const char* PATH, const char* MESSAGE "byte[]"
%typemap(cstype) const char* PATH, const char* MESSAGE "string"
%typemap(csin) const char* PATH, const char* MESSAGE "global::Dt.Text.TerminatedOrNull($csinput)"
%typemap(in) const char* PATH, const char* MESSAGE "$1 = const_cast<char*>($input);"
// A name is terminated once, where the caller gives it, and fixed by the layer above: that is cheaper.
%typemap(imtype) const char* NAME "global::System.IntPtr"
%typemap(cstype) const char* NAME "global::System.IntPtr"
%typemap(imtype) const char* DATA "byte[]"
%typemap(cstype) const char* DATA "byte[]"
%typemap(ctype) const char* DATA, const char* NAME "const char*"
%typemap(csin) const char* DATA, const char* NAME "$csinput"
%typemap(in) const char* DATA, const char* NAME "$1 = const_cast<char*>($input);"
%typemap(freearg) const char* PATH, const char* MESSAGE, const char* NAME, const char* DATA ""

// A handle is given as its object, which throws where it was disposed of, and which the call keeps.
%typemap(cstype) int64_t config, int64_t job, int64_t comm, int64_t named, int64_t optimizer,
  int64_t outer, int64_t ps, int64_t reducer, int64_t sampler, int64_t shard, int64_t server
  "global::Dt.DtObject"
%typemap(csin, post="      global::System.GC.KeepAlive($csinput);")
  int64_t config, int64_t job, int64_t comm, int64_t named, int64_t optimizer, int64_t outer, int64_t ps,
  int64_t reducer, int64_t sampler, int64_t shard, int64_t server "global::Dt.DtObject.NumberOf($csinput)"

// The copy is made inside what %exception guards not, so it must not throw.
%typemap(ctype) std::string, dt::raw::Bytes "void*"
%typemap(imtype) std::string, dt::raw::Bytes "global::System.IntPtr"
%typemap(cstype) std::string "string"
%typemap(cstype) dt::raw::Bytes "byte[]"
%typemap(out) std::string %{
  try {
    $result = dt_give($1);
  } catch (const std::bad_alloc&) {
    dt_throw_own(DT_ERR_OUT_OF_MEMORY, "out of memory");
    return nullptr;
  }
%}
%typemap(out) dt::raw::Bytes %{
  try {
    $result = dt_give($1.data);
  } catch (const std::bad_alloc&) {
    dt_throw_own(DT_ERR_OUT_OF_MEMORY, "out of memory");
    return nullptr;
  }
%}
%typemap(csout, excode=SWIGEXCODE) std::string {
    global::System.IntPtr given = $imcall;$excode
    return global::Dt.Text.Take(given);
  }
%typemap(csout, excode=SWIGEXCODE) dt::raw::Bytes {
    global::System.IntPtr given = $imcall;$excode
    return global::Dt.Text.TakeBytes(given);
  }

// Log messages wait in a queue for a thread of C#, and so do calls of functions. No thread of dt
// enters the runtime: they block every signal, and a garbage collector that stops threads by signals
// would wait for them for ever; with signals open Mono does not end before they do.
%ignore dt::raw::Bytes;
%ignore dt::raw::LogSink;
%ignore dt::raw::config_set_log_sink;
%ignore dt::raw::stop_upcalls;
%ignore dt::raw::Upcall;
%ignore dt::raw::upcall_number;
%ignore dt::raw::reducer_set_hook;
%{
#include <pthread.h>

#include <condition_variable>
#include <deque>

namespace dt::raw {

/** condition.wait(lock, ready) would need the libstdc++ of GCC 12. */
template <class Ready>
void wait_for(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, Ready ready) {
  while (!ready()) pthread_cond_wait(condition.native_handle(), lock.mutex()->native_handle());
}

/** Of one domain of C#. Never destroyed: jobs keep its address. */
class LogQueue {
 public:
  void push(int64_t sink, int32_t level, const std::string& message) {
    constexpr std::size_t kMost = 65536;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return;
      if (messages_.size() >= kMost) {
        ++lost_;
        return;
      }
      messages_.push_back({sink, level, message});
    }
    filled_.notify_one();
  }
  /** sink and level as numbers, how many messages were lost before it, the message as an item;
   * empty once the queue is stopped and empty. */
  Bytes next() {
    std::unique_lock lock(mutex_);
    wait_for(filled_, lock, [this] { return stopped_ || !messages_.empty(); });
    Packer packed;
    if (messages_.empty()) return packed.take();
    packed.add_number(messages_.front().sink);
    packed.add_number(messages_.front().level);
    packed.add_number(lost_);
    packed.add(messages_.front().text);
    messages_.pop_front();
    lost_ = 0;
    return packed.take();
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    filled_.notify_all();
  }

 private:
  struct Message {
    int64_t sink;
    int32_t level;
    std::string text;
  };
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Message> messages_;  // under mutex_, as all below
  int64_t lost_ = 0;
  bool stopped_ = false;
};

/**
 * Functions of one domain of C#, which threads of C# call themselves; for others a thread of C#'s
 * does it, and they wait. Never destroyed: threads may wait in it.
 */
class CallQueue {
 public:
  using Function = int32_t(SWIGSTDCALL*)(int64_t id, int64_t first, int64_t second, int64_t third);

  explicit CallQueue(Function function) : function_(function) {}
  int32_t call(int64_t id, int64_t first, int64_t second, int64_t third) {
    if (dt_calls > 0) return function_(id, first, second, third);
    One one{id, first, second, third, 0, false};
    std::unique_lock lock(mutex_);
    waiting_.push_back(&one);
    filled_.notify_one();
    wait_for(answered_, lock, [&] { return one.done; });  // for ever, once the queue is stopped
    return one.result;
  }
  /** On a thread of C#'s, until the queue is stopped. */
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wait_for(filled_, lock, [this] { return stopped_ || !waiting_.empty(); });
      if (stopped_) return;
      One* const one = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const int32_t result = function_(one->id, one->first, one->second, one->third);
      lock.lock();
      one->result = result;
      one->done = true;
      answered_.notify_all();
    }
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    filled_.notify_all();
  }

 private:
  struct One {
    int64_t id, first, second, third;
    int32_t result;
    bool done;
  };
  const Function function_;
  std::mutex mutex_;
  std::condition_variable filled_, answered_;
  std::deque<One*> waiting_;  // under mutex_, as all below
  bool stopped_ = false;
};

class QueuedUpcall : public Upcall {
 public:
  QueuedUpcall(CallQueue* queue, int64_t id) : queue_(queue), id_(id) {}
  int32_t call(int64_t first, int64_t second, int64_t third) override {
    return queue_->call(id_, first, second, third);
  }

 private:
  CallQueue* const queue_;
  const int64_t id_;
};

/** Never destroyed: jobs keep its address. */
class QueuedSink : public LogSink {
 public:
  QueuedSink(LogQueue* queue, int64_t id) : queue_(queue), id_(id) {}
  void log(int32_t level, const std::string& message) override {
    queue_->push(id_, level, message);
  }

 private:
  LogQueue* const queue_;
  const int64_t id_;
};

}  // namespace dt::raw
%}
%inline %{
namespace dt::raw {

inline int64_t log_queue_create() { return number(new LogQueue); }
/** Messages of the config's jobs go into the queue under the sink's number. */
inline void config_queue_log(int64_t config, int64_t queue, int64_t sink) {
  auto made = std::make_unique<QueuedSink>(handle<LogQueue>(queue), sink);
  config_set_log_sink(config, made.get());
  (void)made.release();
}
inline void config_unqueue_log(int64_t config) { config_set_log_sink(config, nullptr); }
inline dt::raw::Bytes log_queue_next(int64_t queue) { return handle<LogQueue>(queue)->next(); }
/** Takes no more; what is in it still comes out. */
inline void log_queue_stop(int64_t queue) { handle<LogQueue>(queue)->stop(); }
inline int64_t call_queue_create(int64_t function) {
  return number(new CallQueue(reinterpret_cast<CallQueue::Function>(memory(function))));
}
inline void call_queue_run(int64_t queue) { handle<CallQueue>(queue)->run(); }
inline void call_queue_stop(int64_t queue) { handle<CallQueue>(queue)->stop(); }
/** For launch(). */
inline int64_t upcall_create(int64_t queue, int64_t id) {
  return number(static_cast<Upcall*>(new QueuedUpcall(handle<CallQueue>(queue), id)));
}
inline void upcall_destroy(int64_t upcall) { delete handle<Upcall>(upcall); }
/** Whether this process can read the byte there: that of a GPU it cannot. */
inline bool readable(int64_t address) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(strerror(errno));
  const bool read = write(ends[1], reinterpret_cast<const void*>(address), 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return read;
}

}  // namespace dt::raw
%}

// SPDX-License-Identifier: Apache-2.0
#include "backend/self/self.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "base/fork.h"
#include "collective/blocks.h"
#include "kernels/host/reduce.h"

namespace dt::backend {
namespace {

class SelfBackend final : public Backend, public std::enable_shared_from_this<SelfBackend> {
 public:
  explicit SelfBackend(std::string communicator) : communicator_(std::move(communicator)) {}

  ~SelfBackend() override {
    state_.with([](State& state) {
      for (const auto& [pointer, bytes] : state.allocations) munmap(pointer, bytes);
      release_fd_from_fork_guard(state.completion_fd);
      if (state.completion_fd >= 0) close(state.completion_fd);
    });
  }

  const char* name() const override { return "self"; }

  /// Everything is done at once. dt.h has no messages of a rank to itself.
  Status submit(const Collective& collective, std::shared_ptr<Work> work) override {
    DT_TRY(broken());
    work->complete(transfer(collective));
    const int fd = state_.with([](const State& state) { return state.completion_fd; });
    if (fd >= 0) (void)eventfd_write(fd, 1);
    return {};
  }

  Status run(const Collective& collective) override {
    DT_TRY(broken());
    return transfer(collective);
  }

  bool wait(Work& work, const Wait&) override { return work.done(); }

  Result<int> completion_fd() override {
    return state_.with([&](State& state) -> Result<int> {
      if (state.completion_fd >= 0) return state.completion_fd;
      state.completion_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      guard_fd_from_fork(state.completion_fd);
      if (state.completion_fd >= 0) return state.completion_fd;
      return Status(Code::kSystem, "eventfd: " + errno_text(errno));
    });
  }

  Result<void*> allocate(int64_t bytes) override {
    if (bytes > 0) {
      const auto length = static_cast<size_t>(bytes);
      void* pointer =
          mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pointer != MAP_FAILED) {
        state_.with([&](State& state) { state.allocations[pointer] = length; });
        return pointer;
      }
      return Status(Code::kOutOfMemory, format("cannot allocate %lld bytes; ask for less, or look "
                                               "at the memory limit",
                                               static_cast<long long>(bytes)));
    }
    return Status(Code::kInvalidArgument, format("cannot allocate %lld bytes: must be positive",
                                                 static_cast<long long>(bytes)));
  }

  Status release(void* pointer) override {
    if (pointer == nullptr) return {};
    size_t length = 0;
    state_.with([&](State& state) {
      auto found = state.allocations.find(pointer);
      if (found == state.allocations.end()) return;
      length = found->second;
      state.allocations.erase(found);
    });
    if (length == 0) {
      return Status(Code::kInvalidArgument,
                    format("%p was not allocated here, or was released before", pointer));
    }
    munmap(pointer, length);
    return {};
  }

  void interrupt(Status status) override { interrupt_.fire(std::move(status)); }

  Status broken() const override { return interrupt_.status(); }

  Result<Split> split(int32_t color, int32_t, const std::string& split_name, Deadline) override {
    DT_TRY(broken());
    if (color < 0) return Split{};
    return Split{create_self(split_name), {0}};
  }

 private:
  struct State {
    std::map<void*, size_t> allocations;  ///< bytes of each
    int completion_fd = -1;
  };

  Status transfer(const Collective& collective) {
    if (collective.withheld) {
      return failure(Code::kInvalidState, collective.kind, *collective.withheld);
    }
    if (collective.op == ReduceOp::kAvg && collective.divisor > 0 && reduces(collective.kind)) {
      kernels::reduce({collective.dtype, collective.op, collective.divisor}, collective.recv,
                      &collective.send, 1, collective.count);
      return {};
    }
    if (moves_blocks(collective.kind)) {
      const collective::Extent from = collective::outgoing(collective, 0, 1, 0);
      const collective::Extent to = collective::incoming(collective, 0, 1, 0);
      const int64_t element = collective.element_bytes();
      Collective block = collective;
      block.count = std::min(from.count, to.count);
      if (block.count == 0) return {};
      copy(static_cast<const char*>(collective.send) + from.offset * element,
           static_cast<char*>(collective.recv) + to.offset * element, block);
      return {};
    }
    // The reduction of one contribution is the contribution, the mean of one value the value.
    if (collective.kind != Kind::kBarrier) copy(collective.send, collective.recv, collective);
    return {};
  }

  static void copy(const void* from, void* to, const Collective& collective) {
    if (from == to || collective.count == 0) return;
    memmove(to, from, static_cast<size_t>(collective.count * collective.element_bytes()));
  }

  Status failure(Code code, Kind kind, const std::string& why) const {
    ErrorInfo info;
    info.code = code;
    info.message = format("%s on comm \"%s\", rank 0: %s", kind_name(kind), communicator_.c_str(),
                          why.c_str());
    info.operation = kind_name(kind);
    info.rank = 0;
    info.pid = getpid();
    return Status(std::move(info));
  }

  const std::string communicator_;
  Guarded<State> state_;
  Interrupt interrupt_;
};

}  // namespace

std::shared_ptr<Backend> create_self(const std::string& communicator_name) {
  return std::make_shared<SelfBackend>(communicator_name);
}

}  // namespace dt::backend

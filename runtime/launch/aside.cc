// SPDX-License-Identifier: Apache-2.0
#include "launch/aside.h"

#include <pthread.h>

#include <csignal>
#include <memory>
#include <optional>

#include "base/guarded.h"

namespace dt::launch {
namespace {

struct Call {
  std::function<Result<std::string>()> function;
  Guarded<std::optional<Result<std::string>>> result;
  Event done;
};

void* run(void* argument) {
  const std::unique_ptr<std::shared_ptr<Call>> owned(static_cast<std::shared_ptr<Call>*>(argument));
  Call& call = **owned;
  Result<std::string> result = call.function();
  call.result.with([&](auto& mine) { mine.emplace(std::move(result)); });
  call.done.set();
  return nullptr;
}

/// The signals of the process are not for this thread, nor for those that foreign code starts
/// there.
int start_thread(void* argument) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, run, argument);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

}  // namespace

Result<std::string> run_aside(std::function<Result<std::string>()> call, const std::string& what,
                              const Wait& wait) {
  const auto shared = std::make_shared<Call>();
  shared->function = std::move(call);
  auto argument = std::make_unique<std::shared_ptr<Call>>(shared);
  if (const int error = start_thread(argument.get()); error != 0) {
    return Status(Code::kSystem, what + ": cannot start a thread: " + errno_text(error) +
                                     "; look at ulimit -u and the memory limit");
  }
  (void)argument.release();  // the thread's
  if (!shared->done.wait(wait)) {
    if (wait.interrupted()) return wait.interrupt->status();
    return Status(Code::kTimeout, what);
  }
  return shared->result.with([](auto& mine) { return std::move(*mine); });
}

}  // namespace dt::launch

// SPDX-License-Identifier: Apache-2.0
// What workers say to a parameter server. The input is a script: each step is a message of one of
// two workers, with bytes of the script or with what a client would send. Properties: no crash; a
// worker that sends what cannot be is dropped, and the server goes on; what is decoded encodes to
// the same bytes.
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ps/server_core.h"

namespace {

using namespace dt::ps;

constexpr size_t kStepsMost = 64;

void require_ps(bool holds, const char* what) {
  if (holds) return;
  (void)std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

dt::net::Loop* ps_loop() {
  // Never ended: what libuv and the sanitizers keep for its thread goes with the process.
  static dt::net::Loop* const loop = std::move(dt::net::Loop::start()).value().release();
  return loop;
}

template <class T>
void check_same(std::string_view bytes) {
  T value;
  if (!decode(bytes, &value)) return;
  T again;
  require_ps(decode(encode(value), &again), "what was decoded can be encoded");
  require_ps(encode(value) == encode(again), "and is the same");
}

class PsScript {
 public:
  explicit PsScript(std::string_view rest) : rest_(rest) {}
  bool over() const { return rest_.empty(); }
  size_t below(size_t limit) {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return byte % limit;
  }
  std::string bytes() {
    const std::string taken(rest_.substr(0, below(256)));
    rest_.remove_prefix(std::min(taken.size(), rest_.size()));
    return taken;
  }
  int64_t number() {
    constexpr int64_t kNumbers[] = {0, 1, 2, 3, 7, -1, 100, INT64_MAX, INT64_MIN, 1 << 20};
    return kNumbers[below(std::size(kNumbers))];
  }

 private:
  std::string_view rest_;
};

std::string enter_of(uint64_t nonce, int64_t clock, bool keeps_clock) {
  Enter enter;
  enter.nonce = nonce;
  enter.clock = clock;
  enter.keeps_clock = keeps_clock;
  enter.host = "h";
  return encode(enter);
}

std::string variable_of(PsScript* script) {
  Variable variable;
  variable.name = script->below(2) == 0 ? "a" : "b";
  variable.rows = script->below(4) == 0 ? script->number() : 8;
  variable.columns = static_cast<int32_t>(script->below(4));
  variable.method = static_cast<Method>(script->below(5));
  variable.initial = static_cast<Initial>(script->below(4));
  dt::ByteWriter out;
  put(out, variable);
  // Memory is not what is tested.
  return variable.rows > 1 << 16 ? out.take().substr(1) : out.take();
}

std::string rows_of(PsScript* script, What what, int64_t count) {
  RowsHead head;
  head.first = script->below(2) == 0 ? -1 : script->number();
  std::string payload(reinterpret_cast<const char*>(&head), sizeof head);
  for (int64_t i = 0; head.first < 0 && i < count && i < 8; ++i) {
    const int64_t place = script->number();
    payload.append(reinterpret_cast<const char*>(&place), sizeof place);
  }
  if (what != What::kPull && count >= 0 && count <= 8) {
    payload.append(static_cast<size_t>(count) * script->below(4) * 4, '\1');
  }
  return payload;
}

void step(ServerCore* core, Session* session, PsScript* script) {
  dt::tcp::Header header;
  const size_t kind = script->below(14);
  header.what = kind < 10 ? static_cast<uint32_t>(kind) : 101;
  header.sequence = script->below(8);
  header.signature = static_cast<uint64_t>(script->below(3) == 0 ? script->number() : 0);
  header.count = script->number();
  const auto what = static_cast<What>(header.what);
  std::string payload;
  if (script->below(4) == 0) {
    payload = script->bytes();
  } else if (what == What::kEnter) {
    payload = enter_of(script->below(2), script->number(), script->below(4) != 0);
  } else if (what == What::kOpen) {
    payload = encode(OpenRequest{script->below(3) == 0, variable_of(script)});
  } else if (what == What::kPush || what == What::kSet || what == What::kPull) {
    payload = rows_of(script, what, header.count);
  }
  payload.reserve(32);  // aligned, as a session's memory is
  core->on_message(*session, header, payload);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  check_same<Enter>(text);
  check_same<Welcome>(text);
  check_same<OpenRequest>(text);
  check_same<Refusal>(text);
  check_same<Waiting>(text);
  ps_loop()->run([&] {
    Server::Options options;
    options.arrival_ms = INT64_MAX / 2'000'000;
    Server::Statistics statistics;
    ServerCore core(options, &statistics, ps_loop(), ps_loop());
    std::shared_ptr<Session> sessions[2];
    std::vector<dt::tcp::Socket> peers;
    PsScript script(text);
    for (size_t steps = 0; steps < kStepsMost && !script.over(); ++steps) {
      auto& session = sessions[script.below(2)];
      if (session == nullptr || session->closed()) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return;
        peers.emplace_back(ends[1]);
        session = core.admit(static_cast<int32_t>(&session - sessions), dt::tcp::Socket(ends[0]));
        if (script.below(4) != 0) {
          dt::tcp::Header header;
          header.what = static_cast<uint32_t>(What::kEnter);
          core.on_message(*session, header, enter_of(1, kNoClock, true));
          header.what = static_cast<uint32_t>(What::kOpen);
          if (session->closed()) continue;
          Variable variable;
          variable.name = "a";
          variable.rows = 8;
          variable.columns = 2;
          dt::ByteWriter out;
          put(out, variable);
          core.on_message(*session, header, encode(OpenRequest{false, out.take()}));
          if (session->closed()) continue;
        }
      }
      step(&core, session.get(), &script);
    }
    require_ps(statistics.workers >= 0 && statistics.workers <= 2, "workers are counted");
  });
  return 0;
}

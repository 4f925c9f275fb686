// SPDX-License-Identifier: Apache-2.0
#include "store/client.h"

#include "store/client_impl.h"
#include "store/text.h"

namespace dt::store {
namespace {

// The server answers a wait at its deadline, with a text that knows who is missing. Only a server
// that stays silent for this long after it leaves the text to the client.
constexpr int64_t kAnswerGraceMs = 1'000;
constexpr size_t kFrameRoomBytes = 1 << 10;  // what a request holds beside keys and values

bool server_watches_deadline(FrameType type) {
  return type == FrameType::kGet || type == FrameType::kWait || type == FrameType::kBarrier ||
         type == FrameType::kJoin || type == FrameType::kGoodbye || type == FrameType::kAskPeer ||
         type == FrameType::kDumpTraces || type == FrameType::kGather;
}

Status bad_reply(const std::string& what) {
  return Status(Code::kInternal, what + ": the store's answer makes no sense");
}

Status check_request(const Request& request) {
  if (request.type != FrameType::kList) {
    for (const std::string& key : request.keys) DT_TRY(check_key(key));
  }
  size_t total_bytes = 0;
  size_t key_bytes = request.keys.size() * 2 * sizeof(uint32_t);  // with both lengths of a pair
  for (const std::string& key : request.keys) key_bytes += key.size();
  for (const std::string& value : request.values) {
    DT_TRY(check_value(value));
    total_bytes += value.size();
  }
  if (request.expected.has_value()) DT_TRY(check_value(*request.expected));
  if (request.keys.size() > kMaxKeysPerCall) {
    return Status(Code::kInvalidArgument, format("%zu keys in one call are over the limit of %zu",
                                                 request.keys.size(), kMaxKeysPerCall));
  }
  // Half of a frame, as for the server's answers; the rest is room for keys and lengths.
  if (total_bytes > kMaxPayloadBytes / 2) {
    return Status(Code::kInvalidArgument,
                  format("%zu bytes of values in one call are over the limit of %zu bytes",
                         total_bytes, kMaxPayloadBytes / 2));
  }
  // The server would cut the connection at a larger frame, which ends the job.
  if (key_bytes + total_bytes > kMaxPayloadBytes - kFrameRoomBytes) {
    return Status(Code::kInvalidArgument,
                  format("%zu bytes of keys and values in one call are over the limit of %zu bytes",
                         key_bytes + total_bytes, kMaxPayloadBytes - kFrameRoomBytes));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Client>> Client::connect(net::Loop* loop, ClientOptions options,
                                                const Wait& wait) {
  DT_TRY(loop->check_not_forked());
  if (loop->on_thread()) {
    return Status(Code::kInvalidState, "store: the I/O thread must not wait for a connection");
  }
  if (options.host.empty() || options.port == 0) {
    return Status(Code::kInvalidArgument,
                  format("store: the address \"%s\" port %u is incomplete; give a host and a port",
                         options.host.c_str(), unsigned{options.port}));
  }
  auto impl = std::make_shared<Impl>(loop, std::move(options));
  // Owned from here on: whatever happens below, the destructor closes what was begun.
  std::shared_ptr<Client> client(new Client(loop, impl));
  const auto ready = std::make_shared<Call>();
  if (!loop->post([impl, ready, deadline = wait.deadline] { impl->start(ready, deadline); })) {
    return Status(Code::kInvalidState, "store: the I/O thread has stopped");
  }
  if (!ready->done.wait(wait)) {
    std::string progress;
    loop->run([&] {
      if (!ready->done.is_set()) progress = impl->give_up();
    });
    if (!ready->done.is_set()) {
      if (wait.interrupted()) return wait.interrupt->status();
      return Status(Code::kTimeout,
                    format("no store at %s within %s (%s); check that rank 0 or dt run is started "
                           "and that the address is right",
                           impl->address.c_str(), seconds_text(wait.deadline.limit_ms()).c_str(),
                           progress.c_str()));
    }
  }
  DT_TRY(ready->status);
  return client;
}

Client::~Client() {
  loop_->run([this] { impl_->close(); });
}

Result<std::string> Client::call(Request request, const Wait& wait, const std::string& what) {
  DT_TRY(loop_->check_not_forked());
  if (loop_->on_thread()) {
    return Status(Code::kInvalidState,
                  what + ": the I/O thread must not wait for the store; call from another thread");
  }
  if (Status checked = check_request(request); !checked.ok()) return checked.within(what);
  const int64_t timeout_ms = wait.deadline.is_never() ? -1 : wait.deadline.remaining_ms();
  request.timeout_ms = timeout_ms;
  Deadline deadline = wait.deadline;
  if (server_watches_deadline(request.type) && timeout_ms >= 0) {
    deadline = Deadline::after_ms(timeout_ms + kAnswerGraceMs);
  }
  const auto pending = std::make_shared<Call>();
  if (!loop_->post([impl = impl_, pending, type = request.type, payload = encode_request(request)] {
        impl->begin(pending, type, payload);
      })) {
    return Status(Code::kInvalidState, what + ": the I/O thread has stopped");
  }
  if (pending->done.wait({deadline, wait.interrupt})) {
    if (!pending->status.ok()) return pending->status;
    return std::move(pending->payload);
  }
  loop_->post([impl = impl_, pending] { impl->withdraw(pending); });
  if (wait.interrupted()) return wait.interrupt->status();
  return Status(Code::kTimeout,
                format("%s: no answer from the store at %s within %s; its process "
                       "may be stopped or its network down",
                       what.c_str(), impl_->address.c_str(), seconds_text(timeout_ms).c_str()));
}

// ---- keys and values ----

Status Client::set(const std::string& key, const std::string& value, const Wait& wait) {
  Request request;
  request.type = FrameType::kSet;
  request.keys = {key};
  request.values = {value};
  return call(std::move(request), wait, "set " + store::quoted(key)).status();
}

Result<std::string> Client::get(const std::string& key, const Wait& wait) {
  Request request;
  request.type = FrameType::kGet;
  request.keys = {key};
  return call(std::move(request), wait, "get " + store::quoted(key));
}

Result<int64_t> Client::add(const std::string& key, int64_t delta, const Wait& wait) {
  Request request;
  request.type = FrameType::kAdd;
  request.keys = {key};
  request.number = delta;
  DT_TRY_VALUE(const std::string payload,
               call(std::move(request), wait, "add " + store::quoted(key)));
  Reader reader(payload);
  const int64_t sum = reader.i64();
  if (!reader.done()) return bad_reply("add");
  return sum;
}

Status Client::wait_for(const std::vector<std::string>& keys, const Wait& wait) {
  Request request;
  request.type = FrameType::kWait;
  request.keys = keys;
  return call(std::move(request), wait, "wait for " + key_list(keys)).status();
}

Result<Swap> Client::compare_set(const std::string& key, const std::optional<std::string>& expected,
                                 const std::string& desired, const Wait& wait) {
  Request request;
  request.type = FrameType::kCompareSet;
  request.keys = {key};
  request.expected = expected;
  request.values = {desired};
  DT_TRY_VALUE(const std::string payload,
               call(std::move(request), wait, "compare_set " + store::quoted(key)));
  Reader reader(payload);
  Swap swap;
  swap.swapped = reader.u8() != 0;
  const bool present = reader.u8() != 0;
  std::string current = reader.text(kMaxValueBytes);
  if (!reader.done()) return bad_reply("compare_set");
  if (present) swap.current = std::move(current);
  return swap;
}

Result<bool> Client::erase(const std::string& key, const Wait& wait) {
  Request request;
  request.type = FrameType::kErase;
  request.keys = {key};
  DT_TRY_VALUE(const std::string payload,
               call(std::move(request), wait, "erase " + store::quoted(key)));
  return payload == std::string(1, '\1');
}

Result<std::vector<std::string>> Client::list(const std::string& prefix, const Wait& wait) {
  Request request;
  request.type = FrameType::kList;
  request.keys = {prefix};
  DT_TRY_VALUE(const std::string payload,
               call(std::move(request), wait, "list " + store::quoted(prefix)));
  Reader reader(payload);
  std::vector<std::string> keys(reader.count(sizeof(uint32_t)));
  for (std::string& key : keys) key = reader.text(kMaxKeyBytes);
  if (!reader.done()) return bad_reply("list");
  return keys;
}

Result<std::vector<std::optional<std::string>>> Client::multi_get(
    const std::vector<std::string>& keys, const Wait& wait) {
  Request request;
  request.type = FrameType::kMultiGet;
  request.keys = keys;
  DT_TRY_VALUE(const std::string payload,
               call(std::move(request), wait, "multi_get of " + key_list(keys)));
  Reader reader(payload);
  std::vector<std::optional<std::string>> values(reader.count(1 + sizeof(uint32_t)));
  for (auto& value : values) {
    const bool present = reader.u8() != 0;
    std::string text = reader.text(kMaxValueBytes);
    if (present) value = std::move(text);
  }
  if (!reader.done() || values.size() != keys.size()) return bad_reply("multi_get");
  return values;
}

Status Client::multi_set(const std::vector<std::pair<std::string, std::string>>& pairs,
                         const Wait& wait) {
  Request request;
  request.type = FrameType::kMultiSet;
  for (const auto& pair : pairs) {
    request.keys.push_back(pair.first);
    request.values.push_back(pair.second);
  }
  const std::string what = "multi_set of " + key_list(request.keys);
  return call(std::move(request), wait, what).status();
}

Status Client::barrier(const std::string& name, int32_t count, const Wait& wait) {
  Request request;
  request.type = FrameType::kBarrier;
  request.keys = {name};
  request.number = count;
  return call(std::move(request), wait, "barrier " + store::quoted(name)).status();
}

Status Client::ping(const Wait& wait) {
  Request request;
  request.type = FrameType::kPing;
  return call(std::move(request), wait, "ping").status();
}

Result<bool> Client::answers(int32_t rank, const Wait& wait) {
  Request request;
  request.type = FrameType::kAskPeer;
  request.number = rank;
  DT_TRY_VALUE(const std::string payload, call(std::move(request), wait, "ask_peer"));
  return payload == std::string(1, '\1');
}

Result<std::vector<DumpAnswer>> Client::dump_traces(const std::string& directory,
                                                    const Wait& wait) {
  Request request;
  request.type = FrameType::kDumpTraces;
  request.text = directory;
  DT_TRY_VALUE(const std::string payload, call(std::move(request), wait, "dump_traces"));
  std::vector<DumpAnswer> answers;
  if (!decode(payload, &answers)) return bad_reply("dump_traces");
  return answers;
}

void Client::on_dump_request(std::function<void(const std::string&, DumpAnswerer)> callback) {
  loop_->run([&] { impl_->set_dumper(std::move(callback)); });
}

// ---- the job ----

Result<Verdict> Client::join(const JoinRecord& record, const Wait& wait) {
  Request request;
  request.type = FrameType::kJoin;
  request.join = record;
  DT_TRY_VALUE(const std::string payload, call(std::move(request), wait, "join"));
  Verdict verdict;
  if (!decode(payload, &verdict)) return bad_reply("join");
  return verdict;
}

Status Client::goodbye(const Wait& wait) {
  Request request;
  request.type = FrameType::kGoodbye;
  return call(std::move(request), wait, "goodbye").status();
}

Result<GatherVerdict> Client::gather(const std::string& name, const std::vector<int32_t>& members,
                                     const std::string& says, const Wait& wait) {
  Request request;
  request.type = FrameType::kGather;
  request.keys = {name};
  request.ranks = members;
  request.values = {says};
  DT_TRY_VALUE(const std::string payload, call(std::move(request), wait, name));
  GatherVerdict verdict;
  if (!decode(payload, &verdict)) return bad_reply(name);
  return verdict;
}

void Client::forgive(const std::vector<int32_t>& ranks) {
  loop_->run([&] { impl_->forgive(ranks); });
}

void Client::know(const ErrorInfo& info) { impl_->know(info); }

Status Client::abort(const std::string& message, const Wait& wait) {
  Request request;
  request.type = FrameType::kAbort;
  request.text = message;
  return call(std::move(request), wait, "abort").status();
}

Status Client::report_failure(const std::string& scope, const ErrorInfo& info, const Wait& wait) {
  Request request;
  request.type = FrameType::kReportFailure;
  request.failure.scope = scope;
  request.failure.info = info;
  return call(std::move(request), wait, "report_failure").status();
}

void Client::report_failure_soon(const std::string& scope, const ErrorInfo& info,
                                 std::function<void()> handed_over) {
  Request request;
  request.type = FrameType::kReportFailure;
  request.failure.scope = scope;
  request.failure.info = info;
  const bool posted = loop_->post([impl = impl_, payload = encode_request(request), handed_over] {
    impl->begin(std::make_shared<Call>(), FrameType::kReportFailure, payload);
    handed_over();
  });
  if (!posted) handed_over();
}

void Client::on_failure(std::function<void(const Failure&)> callback) {
  loop_->run([&] { impl_->set_callback(std::move(callback)); });
}

void Client::observe(Observers observers) {
  loop_->run([&] {
    impl_->set_observers(std::move(observers));
    impl_->begin_beats();
  });
}

Status Client::heed_stop(const Wait& wait) {
  Request request;
  request.type = FrameType::kHeedsStop;
  return call(std::move(request), wait, "heed_stop").status();
}

Status Client::busy(const std::string& what, int64_t max_ms, const Wait& wait) {
  Request request;
  request.type = FrameType::kBusy;
  request.busy = {-1, what, max_ms};
  return call(std::move(request), wait, "busy").status();
}

const Welcome& Client::welcome() const { return impl_->welcome; }

const std::string& Client::peer_host() const { return impl_->peer_host; }

}  // namespace dt::store

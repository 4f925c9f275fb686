// SPDX-License-Identifier: Apache-2.0
#include "store/torch_client.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <random>

#include "net/address.h"
#include "net/interfaces.h"
#include "net/tcp.h"
#include "store/protocol.h"
#include "store/text.h"
#include "store/torch_service.h"

namespace dt::store {
namespace {

// A store of the new dialect whose server is the newer one answers the probe by silence.
constexpr int64_t kSilenceMs = 1'000;
constexpr int64_t kAnswerMs = 5'000;  // to a probe that each server answers
constexpr int64_t kFirstRetryMs = 20;
constexpr int64_t kMaxRetryMs = 1'000;
constexpr size_t kMaxIdle = 4;
constexpr size_t kMaxNewValueBytes = 8 << 20;  // PyTorch's newer server closes at more
constexpr int kReadTries = 3;
constexpr char kClientCounter[] = "init/";  // as PyTorch's clients name it on the wire
constexpr char kProbeKey[] = "/dt/probe";

std::string wire(const std::string& key) { return torch_wire_key(key); }

Status check_value(const std::string& what, const std::string& value, const std::string& store) {
  if (value.size() <= kMaxNewValueBytes) return {};
  return Status(Code::kInvalidArgument,
                format("%s: a value of %zu bytes is over the limit of %zu bytes of %s",
                       what.c_str(), value.size(), kMaxNewValueBytes, store.c_str()));
}

/// As a call of dt names those keys that begin with the prefix.
std::vector<std::string> named(const std::vector<std::string>& wire_keys,
                               const std::string& prefix) {
  std::vector<std::string> keys;
  for (const std::string& each : wire_keys) {
    std::string key = torch_key(each);
    if (key.rfind(prefix, 0) == 0 && !out_of_reach(key)) keys.push_back(std::move(key));
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace

// Written on the loop's thread: `is_open` before `begun`, the rest before `done`.
struct TorchClient::Call {
  Call(std::string asked, std::string shape) : bytes(std::move(asked)), reply(std::move(shape)) {}

  std::string bytes;
  TorchReply reply;
  bool alone = false;  ///< on a new connection, closed afterwards
  bool is_open = false;
  bool only_local = false;  ///< failed by what keeps only this host from connecting
  Event begun;              ///< there is a connection, or the call has failed
  Event done;
  Status status;
};

// Loop's thread only, except what is const and what is written before connect() returns.
class TorchClient::Impl : public std::enable_shared_from_this<TorchClient::Impl> {
 public:
  Impl(net::Loop* loop, TorchClientOptions given)
      : options(std::move(given)),
        text("PyTorch's store at " + net::host_port_text(options.host, options.port)),
        loop_(loop) {}

  void begin(const std::shared_ptr<Call>& call);
  void abandon(const std::shared_ptr<Call>& call);
  void close();

  const TorchClientOptions options;
  const std::string text;
  TorchDialect dialect = TorchDialect::kOld;  // by find_dialect()
  std::string local_host;                     // likewise

 private:
  struct Line {
    std::unique_ptr<net::Connection> connection;
    std::shared_ptr<Call> call;  // null: idle
    std::vector<net::Address> addresses;
    size_t next = 0;
    bool open = false;
    bool only_local = true;  // so far no address failed by what may lie elsewhere
  };

  void dial(uint64_t id);
  void opened(uint64_t id);
  void received(uint64_t id, const char* data, size_t bytes);
  void closed(uint64_t id, const std::string& reason);
  static void finish(Call* call, Status status);

  net::Loop* const loop_;
  uint64_t last_line_ = 0;
  std::map<uint64_t, Line> lines_;
  bool closed_ = false;
};

// ---- connections ----

void TorchClient::Impl::finish(Call* call, Status status) {
  if (call->done.is_set()) return;
  call->status = std::move(status);
  call->done.set();  // first: whoever saw `begun` without a connection reads the status
  call->begun.set();
}

void TorchClient::Impl::begin(const std::shared_ptr<Call>& call) {
  if (closed_) {
    finish(call.get(), Status(Code::kInvalidState, text + ": the connection was closed"));
    return;
  }
  for (auto& [id, line] : lines_) {
    if (call->alone || line.call != nullptr) continue;
    line.call = call;
    line.connection->write(call->bytes);
    return;
  }
  const uint64_t id = ++last_line_;
  lines_[id].call = call;
  net::resolve(loop_, options.host, options.port,
               [weak = weak_from_this(), id](Result<std::vector<net::Address>> found) {
                 const auto impl = weak.lock();
                 if (impl == nullptr || impl->lines_.count(id) == 0) return;
                 if (!found.ok()) {
                   impl->lines_[id].only_local = false;
                   impl->closed(id, found.status().message());
                   return;
                 }
                 impl->lines_[id].addresses = std::move(found).value();
                 impl->dial(id);
               });
}

void TorchClient::Impl::dial(uint64_t id) {
  Line& line = lines_[id];
  line.connection.reset();
  const std::weak_ptr<Impl> weak = weak_from_this();
  net::ConnectionEvents events;
  events.on_open = [weak, id] {
    if (const auto impl = weak.lock()) impl->opened(id);
  };
  events.on_bytes = [weak, id](const char* data, size_t bytes) {
    if (const auto impl = weak.lock()) impl->received(id, data, bytes);
  };
  events.on_close = [weak, id](int error) {
    const auto impl = weak.lock();
    if (impl == nullptr || impl->lines_.count(id) == 0) return;
    Line& ended = impl->lines_[id];
    const bool is_down = net::is_loopback_down(error, ended.addresses[ended.next - 1]);
    ended.only_local = ended.only_local && !ended.open && is_down;
    if (!ended.open && ended.next < ended.addresses.size()) return impl->dial(id);
    impl->closed(id, is_down      ? net::kLoopbackDown
                     : error == 0 ? "it closed the connection"
                                  : errno_text(error));
  };
  auto dialled = net::Connection::dial(loop_, line.addresses[line.next++], std::move(events));
  if (dialled.ok()) {
    line.connection = std::move(dialled).value();
  } else if (line.next < line.addresses.size()) {
    dial(id);
  } else {
    closed(id, dialled.status().message());
  }
}

void TorchClient::Impl::opened(uint64_t id) {
  const auto found = lines_.find(id);
  if (found == lines_.end()) return;
  Line& line = found->second;
  line.open = true;
  if (local_host.empty()) local_host = line.connection->local_host();
  if (!line.call->alone && dialect == TorchDialect::kNew) {
    line.connection->write(encode_torch({TorchOp::kValidate, {}, kTorchMagic}, dialect));
  }
  line.call->is_open = true;
  line.call->begun.set();
  line.connection->write(line.call->bytes);
}

void TorchClient::Impl::received(uint64_t id, const char* data, size_t bytes) {
  const auto found = lines_.find(id);
  if (found == lines_.end()) return;
  Line& line = found->second;
  const size_t taken = line.call == nullptr ? 0 : line.call->reply.feed(data, bytes);
  // A probe may hear more than it asked for.
  const bool probe = line.call != nullptr && line.call->alone && line.call->reply.done();
  if ((taken < bytes && !probe) || !line.call->reply.status().ok()) {
    return closed(id, "its answer makes no sense");
  }
  if (!line.call->reply.done()) return;
  const std::shared_ptr<Call> call = std::move(line.call);
  line.call = nullptr;
  const auto idle = std::count_if(lines_.begin(), lines_.end(),
                                  [](const auto& each) { return each.second.call == nullptr; });
  if (call->alone || static_cast<size_t>(idle) > kMaxIdle) lines_.erase(found);
  finish(call.get(), {});
}

void TorchClient::Impl::closed(uint64_t id, const std::string& reason) {
  const auto found = lines_.find(id);
  if (found == lines_.end()) return;
  const Line line = std::move(found->second);
  lines_.erase(found);
  if (line.call == nullptr) return;
  line.call->only_local = line.only_local && !line.open;
  const char* advice = line.call->only_local ? "" : "; look whether its process has ended";
  finish(line.call.get(), Status(Code::kSystem, text + ": " + reason + advice));
}

void TorchClient::Impl::abandon(const std::shared_ptr<Call>& call) {
  std::erase_if(lines_, [&](const auto& line) { return line.second.call == call; });
}

void TorchClient::Impl::close() {
  closed_ = true;
  std::map<uint64_t, Line> lines;
  lines.swap(lines_);
  for (const auto& entry : lines) {
    if (entry.second.call == nullptr) continue;
    finish(entry.second.call.get(),
           Status(Code::kInvalidState, text + ": the connection was closed by this process"));
  }
}

// ---- calls ----

TorchClient::~TorchClient() {
  loop_->run([this] { impl_->close(); });
}

TorchDialect TorchClient::dialect() const { return impl_->dialect; }
std::string TorchClient::local_host() const { return impl_->local_host; }
const std::string& TorchClient::text() const { return impl_->text; }

Status TorchClient::begin(const std::shared_ptr<Call>& call) {
  DT_TRY(loop_->check_not_forked());
  if (loop_->on_thread()) {
    return Status(Code::kInvalidState,
                  impl_->text + ": the I/O thread must not wait; call from another thread");
  }
  if (!loop_->post([impl = impl_, call] { impl->begin(call); })) {
    return Status(Code::kInvalidState, impl_->text + ": the I/O thread has stopped");
  }
  return {};
}

Result<bool> TorchClient::run(const std::shared_ptr<Call>& call, const Wait& wait) {
  if (wait.interrupted()) return wait.interrupt->status();
  DT_TRY(begin(call));
  if (call->done.wait(wait)) {
    DT_TRY(call->status);
    return true;
  }
  loop_->post([impl = impl_, call] { impl->abandon(call); });
  if (wait.interrupted()) return wait.interrupt->status();
  return false;
}

Result<TorchReply> TorchClient::ask(const std::vector<TorchRequest>& requests, std::string shape,
                                    const std::string& what, const Wait& wait) {
  std::string bytes;
  for (const TorchRequest& request : requests) bytes += encode_torch(request, impl_->dialect);
  const auto call = std::make_shared<Call>(std::move(bytes), std::move(shape));
  Result<bool> answered = run(call, wait);
  if (wait.interrupted()) return wait.interrupt->status();
  if (!answered.ok()) return answered.status().within(what);
  if (answered.value()) return std::move(call->reply);
  return Status(
      Code::kTimeout,
      format("%s: no answer from %s within %s; its process may be stopped "
             "or its network down",
             what.c_str(), impl_->text.c_str(), seconds_text(wait.deadline.limit_ms()).c_str()));
}

// ---- finding the store and its dialect ----

Result<std::shared_ptr<TorchClient>> TorchClient::connect(net::Loop* loop,
                                                          TorchClientOptions options,
                                                          const Wait& wait) {
  std::shared_ptr<TorchClient> client(
      new TorchClient(loop, std::make_shared<Impl>(loop, std::move(options))));
  DT_TRY(client->find_dialect(wait));
  // A rank of PyTorch that serves the store may wait for as many clients as there are ranks.
  DT_TRY(client->ask({{TorchOp::kAdd, {kClientCounter}, 1}}, "n", "join", wait).status());
  return client;
}

// One byte that asks an older store for its number of keys. Newer ones, of which one kind hangs up
// and the other waits for the rest of a request, must not be greeted before: an older store that
// hears a newer client's greeting waits for more and serves nobody meanwhile.
Status TorchClient::find_dialect(const Wait& wait) {
  std::minstd_rand random(std::random_device{}());
  int64_t delay_ms = kFirstRetryMs;
  Event never;
  std::shared_ptr<Call> call;
  std::string last = "no answer";
  for (int tries = 1;; ++tries) {
    call = std::make_shared<Call>(encode_torch({TorchOp::kCountKeys, {}}, TorchDialect::kOld), "n");
    call->alone = true;
    DT_TRY(begin(call));
    (void)call->begun.wait(wait);
    if (call->begun.is_set() && call->is_open) break;
    loop_->post([impl = impl_, call] { impl->abandon(call); });
    if (wait.interrupted()) return wait.interrupt->status();
    // A try that the deadline cut off says less than the one before.
    if (call->done.is_set()) {
      if (call->only_local) return call->status;  // as it will be the next time
      last = call->status.message();
      if (impl_->options.logger) {
        impl_->options.logger->log(LogLevel::kDebug, "store: try %d failed: %s", tries,
                                   last.c_str());
      }
    }
    std::uniform_int_distribution<int64_t> jitter(delay_ms / 2, delay_ms);
    const Deadline again = Deadline::after_ms(jitter(random));
    (void)never.wait({wait.deadline.earlier(again), wait.interrupt});
    delay_ms = std::min(2 * delay_ms, kMaxRetryMs);
    if (wait.deadline.passed()) {
      return Status(Code::kTimeout,
                    format("no store within %s (%d tries, the last: %s); check the address",
                           seconds_text(wait.deadline.limit_ms()).c_str(), tries, last.c_str()));
    }
  }
  const bool answered =
      call->done.wait({wait.deadline.earlier(Deadline::after_ms(kSilenceMs)), wait.interrupt});
  if (!answered) loop_->post([impl = impl_, call] { impl->abandon(call); });
  if (answered && call->status.ok()) return find_number_seven(wait);
  if (wait.interrupted()) return wait.interrupt->status();
  impl_->dialect = TorchDialect::kNew;
  const Result<TorchReply> count =
      ask({{TorchOp::kCountKeys, {}}}, "n", "probe",
          {wait.deadline.earlier(Deadline::after_ms(kAnswerMs)), wait.interrupt});
  if (count.ok() && count.value().numbers[0] >= 0) return {};
  if (wait.interrupted()) return wait.interrupt->status();
  return Status(Code::kUnsupported,
                impl_->text +
                    " answers neither as PyTorch up to 2.1 nor as newer ones do; something "
                    "else listens there, or its protocol is newer than this release");
}

// What 7 means tells 2.1 from the older ones: the erasing of a key, answered by a number, or the
// beginning of a watch, answered by a byte that no such number begins with.
Status TorchClient::find_number_seven(const Wait& wait) {
  const auto call =
      std::make_shared<Call>(encode_torch({TorchOp::kWatch, {kProbeKey}}, TorchDialect::kOld), "b");
  call->alone = true;
  const Result<bool> answered =
      run(call, {wait.deadline.earlier(Deadline::after_ms(kAnswerMs)), wait.interrupt});
  DT_TRY(answered.status());
  const int64_t byte = answered.value() ? call->reply.numbers[0] : -1;
  if (byte == 0 || byte == kTorchWatching) {
    impl_->dialect = byte == 0 ? TorchDialect::kMiddle : TorchDialect::kOld;
    return {};
  }
  return Status(Code::kUnsupported,
                impl_->text +
                    " does not answer as any known release of PyTorch; something else "
                    "listens there");
}

// ---- keys and values ----

Status TorchClient::set(const std::string& key, const std::string& value, const Wait& wait) {
  return multi_set({{key, value}}, wait);
}

// A set is not answered; what is asked behind it tells that it was done.
Status TorchClient::multi_set(const std::vector<std::pair<std::string, std::string>>& pairs,
                              const Wait& wait) {
  const std::string what = pairs.size() == 1 ? "set " + store::quoted(pairs[0].first)
                                             : format("set %zu keys", pairs.size());
  std::vector<TorchRequest> requests;
  for (const auto& [key, value] : pairs) {
    DT_TRY(check_key(key));
    DT_TRY(check_value(what, value, impl_->text));
    requests.push_back({TorchOp::kSet, {wire(key), value}});
  }
  requests.push_back({TorchOp::kCheck, {}});
  return ask(requests, "b", what, wait).status();
}

Status TorchClient::wait_for(const std::vector<std::string>& keys, const Wait& wait) {
  TorchRequest request;
  request.op = TorchOp::kWait;
  for (const std::string& key : keys) {
    DT_TRY(check_key(key));
    request.texts.push_back(wire(key));
  }
  const std::string what = "wait for " + key_list(keys);
  const auto call = std::make_shared<Call>(encode_torch(request, impl_->dialect), "b");
  const Result<bool> answered = run(call, wait);
  if (wait.interrupted()) return wait.interrupt->status();
  if (!answered.ok()) return answered.status().within(what);
  if (answered.value()) return {};
  const bool one = keys.size() == 1;
  return Status(Code::kTimeout,
                format("%s%s %s set in %s within %s; look for the rank that should set %s",
                       one ? "" : "not all of ", key_list(keys).c_str(), one ? "was not" : "were",
                       impl_->text.c_str(), seconds_text(wait.deadline.limit_ms()).c_str(),
                       one ? "it" : "them"));
}

Result<std::string> TorchClient::get(const std::string& key, const Wait& wait) {
  const std::string what = "get " + store::quoted(key);
  for (int tries = 1;; ++tries) {
    DT_TRY(wait_for({key}, wait));
    Result<TorchReply> reply = ask({{TorchOp::kGet, {wire(key)}}}, "s", what, wait);
    if (reply.ok()) return std::move(reply.value().texts[0]);
    // An older store hangs up when the key was deleted in between.
    if (reply.status().code() != Code::kSystem || tries == kReadTries) return reply.status();
  }
}

Result<int64_t> TorchClient::add(const std::string& key, int64_t delta, const Wait& wait) {
  DT_TRY(check_key(key));
  DT_TRY_VALUE(const TorchReply reply, ask({{TorchOp::kAdd, {wire(key)}, delta}}, "n",
                                           "add to " + store::quoted(key), wait));
  return reply.numbers[0];
}

Result<Swap> TorchClient::compare_set(const std::string& key,
                                      const std::optional<std::string>& expected,
                                      const std::string& desired, const Wait& wait) {
  DT_TRY(check_key(key));
  const std::string asked = expected.value_or("");
  const std::string what = "compare_set " + store::quoted(key);
  for (const std::string* const value : {&asked, &desired}) {
    DT_TRY(check_value(what, *value, impl_->text));
  }
  DT_TRY_VALUE(TorchReply reply,
               ask({{TorchOp::kCompareSet, {wire(key), asked, desired}}}, "s", what, wait));
  Swap swap;
  swap.swapped = reply.texts[0] == desired;
  swap.current = std::move(reply.texts[0]);
  return swap;
}

Result<bool> TorchClient::erase(const std::string& key, const Wait& wait) {
  DT_TRY(check_key(key));
  DT_TRY_VALUE(const TorchReply reply,
               ask({{TorchOp::kErase, {wire(key)}}}, "n", "delete " + store::quoted(key), wait));
  return reply.numbers[0] > 0;
}

Result<std::vector<std::string>> TorchClient::list(const std::string& prefix, const Wait& wait) {
  const std::string what = "list " + store::quoted(prefix);
  if (torch_dialect_has(impl_->dialect, TorchOp::kListKeys)) {
    const Result<TorchReply> reply = ask({{TorchOp::kListKeys, {}}}, "l", what, wait);
    if (reply.ok()) return named(reply.value().texts, prefix);
    // A store that lacks the operation hangs up, but lives.
    const bool hung_up = reply.status().code() == Code::kSystem;
    if (!hung_up || !ask({{TorchOp::kCountKeys, {}}}, "n", what, wait).ok()) return reply.status();
  }
  return Status(Code::kUnsupported, what + ": " + impl_->text +
                                        " does not tell its keys, as newer releases do; agree on "
                                        "their names");
}

Result<std::vector<std::optional<std::string>>> TorchClient::multi_get(
    const std::vector<std::string>& keys, const Wait& wait) {
  const std::string what = "multi_get of " + key_list(keys);
  std::vector<TorchRequest> checks;
  for (const std::string& key : keys) {
    DT_TRY(check_key(key));
    checks.push_back({TorchOp::kCheck, {wire(key)}});
  }
  for (int tries = 1;; ++tries) {
    DT_TRY_VALUE(const TorchReply there, ask(checks, std::string(keys.size(), 'b'), what, wait));
    std::vector<TorchRequest> gets;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (there.numbers[i] == kTorchReady) gets.push_back({TorchOp::kGet, {wire(keys[i])}});
    }
    std::vector<std::optional<std::string>> values(keys.size());
    if (gets.empty()) return values;
    Result<TorchReply> reply = ask(gets, std::string(gets.size(), 's'), what, wait);
    if (!reply.ok() && reply.status().code() == Code::kSystem && tries < kReadTries) continue;
    DT_TRY(reply.status());
    for (size_t i = 0, next = 0; i < keys.size(); ++i) {
      if (there.numbers[i] == kTorchReady) values[i] = std::move(reply.value().texts[next++]);
    }
    return values;
  }
}

}  // namespace dt::store

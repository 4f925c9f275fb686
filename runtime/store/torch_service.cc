// SPDX-License-Identifier: Apache-2.0
#include "store/torch_service.h"

#include <cctype>
#include <charconv>
#include <limits>
#include <utility>

#include "store/protocol.h"
#include "store/text.h"

namespace dt::store {
namespace {

constexpr size_t kMaxWatchesPerClient = 64;
constexpr size_t kCopiedBytes = 1 << 20;  // an answer up to here goes out in one piece
constexpr size_t kSharedBytes = 256;      // from here on a value of a larger one is not copied
constexpr size_t kAllWaits = std::numeric_limits<size_t>::max();

std::string number_bytes(int64_t number) {
  std::string bytes;
  append_torch_number(&bytes, static_cast<uint64_t>(number));
  return bytes;
}

std::string text_bytes(std::string_view text) {
  std::string bytes;
  append_torch_text(&bytes, text);
  return bytes;
}

Status over_limit(const char* what, size_t bytes, size_t limit) {
  return Status(Code::kInvalidArgument,
                format("%s of %zu bytes is over the limit of %zu bytes", what, bytes, limit));
}

/// As strtoll reads it: blanks in front and anything behind the digits are fine.
Result<int64_t> leading_number(const std::string& key, const std::string& text) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end && isspace(static_cast<unsigned char>(*at)) != 0) ++at;
  if (at != end && *at == '+' && at + 1 != end && isdigit(static_cast<unsigned char>(at[1])) != 0) {
    ++at;
  }
  int64_t number = 0;
  if (std::from_chars(at, end, number).ec != std::errc()) {
    return Status(Code::kInvalidArgument,
                  format("add to key %s: its value %s is no number", store::quoted(key).c_str(),
                         store::quoted(text).c_str()));
  }
  return number;
}

size_t watch_bytes(const std::string& key) { return 2 * (key.size() + Keyspace::kItemBytes); }

size_t queued_bytes(const std::string& key, const std::string& value) {
  return key.size() + value.size() + Keyspace::kItemBytes;
}

int64_t wrapped_sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

}  // namespace

std::string torch_key(std::string_view wire_key) {
  if (!wire_key.empty() && wire_key.front() == '/') return "torch" + std::string(wire_key);
  return kTorchBarePrefix + std::string(wire_key);
}

std::string torch_wire_key(std::string_view key) {
  const std::string_view bare(kTorchBarePrefix);
  if (key.substr(0, bare.size()) == bare) return std::string(key.substr(bare.size()));
  return std::string(key.substr(std::string_view(kTorchPrefix).size() - 1));
}

std::string TorchAnswer::whole() const {
  std::string all;
  for (const Piece& piece : pieces) {
    all += piece.bytes;
    if (piece.shared != nullptr) all += *piece.shared;
  }
  return all;
}

TorchService::TorchService(Keyspace* keyspace, size_t max_answer_bytes)
    : keyspace_(keyspace), max_answer_bytes_(max_answer_bytes) {
  keyspace_->set_on_change([this](const std::string& key, const std::string* before,
                                  const std::string* after) { changed(key, before, after); });
}

std::string TorchService::reply_to_wait(const Answer& answer) {
  return answer.payload.empty() ? std::string(1, kTorchStopWaiting) : answer.payload;
}

Answers TorchService::take_events() { return std::exchange(events_, {}); }

bool TorchService::exists(const std::string& key) const {
  return keyspace_->find(key) != nullptr || queues_.count(key) != 0;
}

Result<TorchAnswer> TorchService::handle(uint64_t client, TorchDialect dialect,
                                         TorchRequest request, Answers* answers) {
  std::vector<std::string>& texts = request.texts;
  const bool pairs = request.op == TorchOp::kMultiSet;
  const bool all_keys = request.op == TorchOp::kCheck || request.op == TorchOp::kWait ||
                        request.op == TorchOp::kMultiGet;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i == 0 || all_keys || (pairs && i % 2 == 0)) texts[i] = torch_key(texts[i]);
  }
  if (request.op == TorchOp::kGet || request.op == TorchOp::kMultiGet) {
    return values(dialect, texts);
  }
  DT_TRY_VALUE(std::string bytes, answer(client, &request, answers));
  TorchAnswer whole;
  if (!bytes.empty()) whole.pieces.push_back({std::move(bytes)});
  return whole;
}

Result<std::string> TorchService::answer(uint64_t client, TorchRequest* request, Answers* answers) {
  std::vector<std::string>& texts = request->texts;
  switch (request->op) {
    case TorchOp::kSet:
      DT_TRY(keyspace_->set(texts[0], std::move(texts[1]), answers));
      return std::string();
    case TorchOp::kCompareSet: return compare_set(request, answers);
    case TorchOp::kAdd: return add(texts[0], request->number, answers);
    case TorchOp::kCheck: {
      char answer = kTorchReady;
      for (const std::string& key : texts) answer = exists(key) ? answer : kTorchNotReady;
      return std::string(1, answer);
    }
    case TorchOp::kWait: DT_TRY(wait(client, std::move(texts), answers)); return std::string();
    case TorchOp::kCountKeys:
      return number_bytes(static_cast<int64_t>(keyspace_->count(kTorchPrefix) +
                                               keyspace_->count(kTorchBarePrefix)));
    case TorchOp::kErase: return number_bytes(keyspace_->erase(texts[0]) ? 1 : 0);
    case TorchOp::kAppend: DT_TRY(append(texts[0], texts[1], answers)); return std::string();
    case TorchOp::kMultiSet: DT_TRY(multi_set(request, answers)); return std::string();
    case TorchOp::kCancelWait: keyspace_->drop(client); return std::string(1, kTorchWaitCancelled);
    case TorchOp::kPing: return number_bytes(request->number).substr(0, sizeof(uint32_t));
    case TorchOp::kQueuePush:
      DT_TRY(push(texts[0], std::move(texts[1]), answers));
      return std::string();
    case TorchOp::kQueuePop: return pop(texts[0]);
    case TorchOp::kQueueLength: {
      const auto queue = queues_.find(texts[0]);
      return number_bytes(queue == queues_.end() ? 0 : static_cast<int64_t>(queue->second.size()));
    }
    case TorchOp::kListKeys: return list();
    case TorchOp::kBarrier:
      DT_TRY(barrier(client, texts[0], request->number, answers));
      return std::string();
    case TorchOp::kWatch: DT_TRY(watch(client, texts[0])); return std::string(1, kTorchWatching);
    case TorchOp::kValidate:
    case TorchOp::kGet:
    case TorchOp::kMultiGet: break;
  }
  return std::string();
}

void TorchService::drop(uint64_t client) {
  const auto watched = watched_by_.find(client);
  if (watched == watched_by_.end()) return;
  for (const std::string& key : watched->second) {
    const auto watchers = watchers_.find(key);
    watchers->second.erase(client);
    keyspace_->give_back(watch_bytes(key));
    if (watchers->second.empty()) watchers_.erase(watchers);
  }
  watched_by_.erase(watched);
}

// ---- values ----

// Clients wait for a key before they get it, so an absent one was deleted in between: older servers
// then close the connection, newer ones answer nothing.
Result<TorchAnswer> TorchService::values(TorchDialect dialect,
                                         const std::vector<std::string>& keys) {
  size_t total_bytes = 0;
  for (const std::string& key : keys) {
    const std::string* value = keyspace_->find(key);
    if (value == nullptr && dialect != TorchDialect::kNew) {
      return Status(Code::kInvalidArgument, format("get of key %s, which is not there",
                                                   store::quoted(torch_wire_key(key)).c_str()));
    }
    total_bytes += sizeof(uint64_t) + (value == nullptr ? 0 : value->size());
  }
  const bool shares = total_bytes > kCopiedBytes || keys.size() == 1;
  const auto is_shared = [&](const SharedText& value) {
    return shares && value != nullptr && value->size() >= kSharedBytes;
  };
  size_t copied_bytes = 0;
  for (const std::string& key : keys) {
    const SharedText& value = keyspace_->share(key);
    copied_bytes += sizeof(uint64_t) + (value == nullptr || is_shared(value) ? 0 : value->size());
  }
  if (copied_bytes > max_answer_bytes_) {
    return over_limit("an answer", copied_bytes, max_answer_bytes_);
  }
  TorchAnswer answer;
  std::string bytes;
  for (const std::string& key : keys) {
    const SharedText& value = keyspace_->share(key);
    if (is_shared(value)) {
      append_torch_number(&bytes, value->size());
      answer.pieces.push_back({std::exchange(bytes, {}), value});
    } else {
      append_torch_text(&bytes, value == nullptr ? std::string_view() : *value);
    }
  }
  if (!bytes.empty()) answer.pieces.push_back({std::move(bytes)});
  return answer;
}

Result<std::string> TorchService::add(const std::string& key, int64_t delta, Answers* answers) {
  int64_t sum = delta;
  if (const std::string* text = keyspace_->find(key); text != nullptr) {
    DT_TRY_VALUE(const int64_t number, leading_number(torch_wire_key(key), *text));
    sum = wrapped_sum(number, delta);
  }
  DT_TRY(keyspace_->set(key, std::to_string(sum), answers));
  return number_bytes(sum);
}

// An absent key with an expected value stores nothing and answers as if the key had that value.
Result<std::string> TorchService::compare_set(TorchRequest* request, Answers* answers) {
  const std::string& key = request->texts[0];
  const std::string& expected = request->texts[1];
  const std::string& desired = request->texts[2];
  const std::string* value = keyspace_->find(key);
  if (value == nullptr && !expected.empty()) return text_bytes(expected);
  if (value != nullptr && *value != expected) return text_bytes(*value);
  DT_TRY(keyspace_->set(key, desired, answers));
  return text_bytes(desired);
}

Status TorchService::append(const std::string& key, const std::string& tail, Answers* answers) {
  const std::string* value = keyspace_->find(key);
  std::string whole = value == nullptr ? tail : *value + tail;
  if (whole.size() > kMaxValueBytes) return over_limit("a value", whole.size(), kMaxValueBytes);
  return keyspace_->set(key, std::move(whole), answers);
}

Status TorchService::multi_set(TorchRequest* request, Answers* answers) {
  std::vector<std::string> keys;
  std::vector<std::string> values;
  for (size_t i = 0; i + 1 < request->texts.size(); i += 2) {
    keys.push_back(std::move(request->texts[i]));
    values.push_back(std::move(request->texts[i + 1]));
  }
  return keyspace_->multi_set(keys, std::move(values), answers);
}

Result<std::string> TorchService::list() const {
  std::string bytes;
  std::vector<std::string> keys = keyspace_->list(kTorchPrefix);
  for (std::string& key : keyspace_->list(kTorchBarePrefix)) keys.push_back(std::move(key));
  append_torch_number(&bytes, keys.size());
  for (const std::string& key : keys) {
    append_torch_text(&bytes, torch_wire_key(key));
    if (bytes.size() > max_answer_bytes_) {
      return over_limit("an answer", bytes.size(), max_answer_bytes_);
    }
  }
  return bytes;
}

// ---- queues ----

Status TorchService::push(const std::string& key, std::string value, Answers* answers) {
  DT_TRY(keyspace_->reserve(queued_bytes(key, value)));
  queues_[key].push_back(std::move(value));
  keyspace_->notice(key, 1, answers);
  return {};
}

std::string TorchService::pop(const std::string& key) {
  const auto queue = queues_.find(key);
  if (queue == queues_.end()) return number_bytes(0);
  std::string bytes = number_bytes(static_cast<int64_t>(queue->second.size()));
  append_torch_text(&bytes, queue->second.front());
  keyspace_->give_back(queued_bytes(key, queue->second.front()));
  queue->second.pop_front();
  if (queue->second.empty()) queues_.erase(queue);
  return bytes;
}

// ---- waits ----

Status TorchService::wait(uint64_t client, std::vector<std::string> keys, Answers* answers) {
  std::erase_if(keys, [&](const std::string& key) { return queues_.count(key) != 0; });
  Answers own;
  keyspace_->wait({client, ++last_wait_}, std::move(keys), WaitKind::kNoticed, {}, 0, &own);
  for (Answer& answer : own) {
    DT_TRY(answer.status);  // too many waits of one client, or no room
    answers->push_back(std::move(answer));
  }
  return {};
}

Status TorchService::barrier(uint64_t client, const std::string& key, int64_t count,
                             Answers* answers) {
  DT_TRY(add(key, 1, answers).status());
  const std::string meeting = kTorchBarrierPrefix + key;
  Answers own;
  keyspace_->wait({client, ++last_wait_}, {meeting}, WaitKind::kNoticed, {}, 0, &own);
  for (const Answer& answer : own) DT_TRY(answer.status);
  DT_TRY_VALUE(const int64_t arrived, leading_number(key, *keyspace_->find(key)));
  if (arrived >= count) keyspace_->notice(meeting, kAllWaits, answers);
  return {};
}

// ---- watches ----

Status TorchService::watch(uint64_t client, const std::string& key) {
  std::set<std::string>& watched = watched_by_[client];
  if (watched.size() >= kMaxWatchesPerClient && watched.count(key) == 0) {
    return Status(Code::kInvalidArgument,
                  format("this connection watches %zu keys, the limit", kMaxWatchesPerClient));
  }
  if (watched.count(key) != 0) return {};
  DT_TRY(keyspace_->reserve(watch_bytes(key)));
  watched.insert(key);
  watchers_[key].insert(client);
  return {};
}

void TorchService::changed(const std::string& key, const std::string* before,
                           const std::string* after) {
  if (watchers_.empty()) return;
  const auto watchers = watchers_.find(key);
  if (watchers == watchers_.end()) return;
  const TorchChange change = before == nullptr  ? TorchChange::kCreated
                             : after == nullptr ? TorchChange::kDeleted
                                                : TorchChange::kUpdated;
  std::string event(1, static_cast<char>(change));
  append_torch_text(&event, torch_wire_key(key));
  append_torch_text(&event, before == nullptr ? std::string_view() : *before);
  append_torch_text(&event, after == nullptr ? std::string_view() : *after);
  const SharedText shared = keyspace_->texts(Owner::kGuests).keep(std::move(event));
  for (const uint64_t client : watchers->second) events_.push_back({{client, 0}, {}, {}, shared});
}

}  // namespace dt::store

// SPDX-License-Identifier: Apache-2.0
#include "training/named_messages.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "collective/descriptor.h"

namespace dt::training {
namespace {

/// Ranks of a job have the same byte order (the join compares that).
class NamedWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  template <class T, class F>
  void put_all(const std::vector<T>& all, F&& put_one) {
    put(static_cast<uint32_t>(all.size()));
    for (const T& each : all) put_one(each);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class NamedReader {
 public:
  explicit NamedReader(const std::string& bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    T value{};
    if (!has(sizeof value)) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    const auto size = get<uint32_t>();
    if (!has(size)) return {};
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  template <class T, class F>
  void get_all(std::vector<T>* all, F&& get_one) {
    for (auto left = get<uint32_t>(); left > 0 && good_; --left) all->push_back(get_one());
  }
  Status end() const {
    if (good_ && at_ == bytes_.size()) return {};
    return Status(Code::kInternal, "named submission: a message of another rank is damaged");
  }

 private:
  bool has(size_t size) { return good_ = good_ && size <= bytes_.size() - at_; }

  const std::string& bytes_;
  size_t at_ = 0;
  bool good_ = true;
};

void put_call(NamedWriter& out, const NamedCall& call) {
  out.put(call.kind);
  out.put(call.dtype);
  out.put(call.op);
  out.put(call.root);
  out.put(call.count);
  out.put(call.group_size);
  if (call.group_size == 0) return;
  out.put(call.group_index);
  out.put(call.group);
}

NamedCall get_call(NamedReader& in) {
  NamedCall call;
  call.kind = in.get<backend::Kind>();
  call.dtype = in.get<Dtype>();
  call.op = in.get<ReduceOp>();
  call.root = in.get<int32_t>();
  call.count = in.get<int64_t>();
  call.group_size = in.get<int32_t>();
  if (call.group_size == 0) return call;
  call.group_index = in.get<int32_t>();
  call.group = in.text();
  return call;
}

void put_status(NamedWriter& out, const Status& status) {
  out.put(status.code());
  if (status.ok()) return;
  out.put(status.info().rank);
  out.put(status.info().pid);
  out.put(status.info().host);
  out.put(status.message());
}

Status get_status(NamedReader& in) {
  ErrorInfo info;
  info.code = in.get<Code>();
  if (info.code == Code::kOk) return {};
  info.rank = in.get<int32_t>();
  info.pid = in.get<int64_t>();
  info.host = in.text();
  info.message = in.text();
  return Status(std::move(info));
}

}  // namespace

std::string NamedCall::text() const {
  collective::Collective collective;
  collective.kind = kind;
  collective.dtype = dtype;
  collective.op = op;
  collective.root = root;
  std::string described = collective::describe(collective::signature_of(collective), count, "");
  if (group_size == 0) return described;
  return described +
         format(", %d of %d in the group of \"%s\"", group_index + 1, group_size, group.c_str());
}

std::string pack(const NamedNews& news) {
  NamedWriter out;
  out.put(news.heard);
  out.put(news.leaves);
  out.put(news.joins);
  out.put(news.asks);
  out.put_all(news.known, [&](uint32_t id) { out.put(id); });
  out.put_all(news.fresh, [&](const NamedNews::Fresh& each) {
    out.put(each.name);
    put_call(out, each.call);
  });
  out.put_all(news.overdue, [&](const std::string& name) { out.put(name); });
  return out.take();
}

Result<NamedNews> unpack_news(const std::string& bytes) {
  NamedReader in(bytes);
  NamedNews news;
  news.heard = in.get<uint32_t>();
  news.leaves = in.get<bool>();
  news.joins = in.get<bool>();
  news.asks = in.get<bool>();
  in.get_all(&news.known, [&] { return in.get<uint32_t>(); });
  in.get_all(&news.fresh, [&] {
    NamedNews::Fresh fresh;
    fresh.name = in.text();
    fresh.call = get_call(in);
    return fresh;
  });
  in.get_all(&news.overdue, [&] { return in.text(); });
  DT_TRY(in.end());
  return news;
}

std::string pack(const NamedAnswer& answer) {
  NamedWriter out;
  out.put(answer.may_end);
  out.put(answer.joined);
  put_status(out, answer.broken);
  out.put(answer.report.has_value());
  if (answer.report) out.put(*answer.report);
  out.put_all(answer.operations, [&](const NamedAnswer::Operation& each) {
    out.put(each.id);
    out.put(each.known);
    if (each.known) return;
    out.put(each.name);
    put_call(out, each.call);
  });
  out.put_all(answer.forgotten, [&](uint32_t id) { out.put(id); });
  out.put_all(answer.failures, [&](const NamedAnswer::Failure& each) {
    out.put(each.name);
    put_status(out, each.status);
  });
  return out.take();
}

Result<NamedAnswer> unpack_answer(const std::string& bytes) {
  NamedReader in(bytes);
  NamedAnswer answer;
  answer.may_end = in.get<bool>();
  answer.joined = in.get<int32_t>();
  answer.broken = get_status(in);
  if (in.get<bool>()) answer.report = in.text();
  in.get_all(&answer.operations, [&] {
    NamedAnswer::Operation operation;
    operation.id = in.get<uint32_t>();
    operation.known = in.get<bool>();
    if (operation.known) return operation;
    operation.name = in.text();
    operation.call = get_call(in);
    return operation;
  });
  in.get_all(&answer.forgotten, [&] { return in.get<uint32_t>(); });
  in.get_all(&answer.failures, [&] {
    NamedAnswer::Failure failure;
    failure.name = in.text();
    failure.status = get_status(in);
    return failure;
  });
  DT_TRY(in.end());
  return answer;
}

}  // namespace dt::training
